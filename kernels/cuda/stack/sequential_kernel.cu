// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/math/warp_width.h"
#include "kernels/cuda/runtime/device_context.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/stack/sequential_kernel.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {
namespace {

template <int W>
__global__ void __launch_bounds__(kSequentialThreads) SequentialKernel(const SequentialArgs args) {
  DeviceContext context;
  SolveSequentially<W>(context, args);
}

template <int W>
cudaError_t Launch(const SequentialArgs& args, cudaStream_t stream) {
  SequentialKernel<W>
      <<<args.num_samples, kSequentialThreads, SequentialBytes<W>(kSequentialThreads), stream>>>(
          args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchSequential(const SequentialArgs& args, int width, cudaStream_t stream) {
  return WithWidth(width, [&](auto w) { return Launch<w.value>(args, stream); });
}

}  // namespace deeppcr::cuda
