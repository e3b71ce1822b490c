// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/loop/block_launch.cuh"
#include "kernels/cuda/program/backward_kernel.h"
#include "kernels/cuda/program/backward_shape.h"

namespace deeppcr::cuda {
namespace {

template <int S>
__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    ProgramRetreatKernel(const ProgramRetreatArgs args) {
  DeviceContext context;
  RetreatIntervals<S>(context, args);
}
__global__ void ProgramScanKernel(const ProgramLevelArgs args) {
  DeviceContext context;
  ScanLevel(context, args);
}
template <int S>
__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    ConditionBackKernel(const ConditionBackArgs args) {
  DeviceContext context;
  BackConditions<S>(context, args);
}

template <class Args>
cudaError_t LaunchJobs(void (*alone)(Args), void (*together)(Args), const Args& args,
                       const ProgramBackShape& shape, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(BlocksOf(shape, args.jobs(shape.columns)));
  const void* const kernel = shape.columns == 1 ? HandleOf(alone) : HandleOf(together);
  void* arguments[] = {const_cast<Args*>(&args)};
  return cudaLaunchKernel(kernel, dim3(blocks), dim3(shape.num_warps * kWarpSize), arguments,
                          shape.shared_bytes, stream);
}

}  // namespace

cudaError_t PrepareProgramBackward(int shared_bytes) {
  return AllowShared(shared_bytes, ProgramRetreatKernel<1>, ProgramRetreatKernel<kBackColumns>,
                     ConditionBackKernel<1>, ConditionBackKernel<kBackColumns>);
}

cudaError_t LaunchProgramBackward(const ProgramRetreatArgs& args, const ProgramBackShape& shape,
                                  cudaStream_t stream) {
  return LaunchJobs(ProgramRetreatKernel<1>, ProgramRetreatKernel<kBackColumns>, args, shape,
                    stream);
}
cudaError_t LaunchProgramBackward(const ProgramLevelArgs& args, cudaStream_t stream) {
  ProgramScanKernel<<<static_cast<unsigned>(BlocksOf(args)), ScanThreads(args, kMaxBlockWarps),
                      static_cast<size_t>(ScanFloats(args)) * sizeof(float), stream>>>(args);
  return cudaGetLastError();
}
cudaError_t LaunchProgramBackward(const ConditionBackArgs& args, const ProgramBackShape& shape,
                                  cudaStream_t stream) {
  return LaunchJobs(ConditionBackKernel<1>, ConditionBackKernel<kBackColumns>, args, shape, stream);
}

}  // namespace deeppcr::cuda
