// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/math/warp_width.h"
#include "kernels/cuda/runtime/cluster_launch.h"
#include "kernels/cuda/runtime/device_context.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/stack/backward_kernel.h"
#include "kernels/cuda/stack/backward_scan_kernel.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {
namespace {

template <int W>
constexpr int kMaxThreads = MaxBackwardWarps(W) * kWarpSize;

// One warp a block: rows spread over all multiprocessors first.
template <int W>
__global__ void __launch_bounds__(kWarpSize) BackwardKernel(const BackwardStepsArgs args) {
  DeviceContext context;
  GoBackSequentially<W>(context, args);
}

template <int W, bool kInWorkspace>
__global__ void __launch_bounds__(kMaxThreads<W>, MinBackwardBlocks(W))
    BackwardScanKernel(const BackwardScanArgs args) {
#if __CUDA_ARCH__ >= 900  // first with clusters; LaunchBackwardScan refuses older GPUs
  ClusterContext context;
  GoBackByScan<W, kInWorkspace>(context, args);
#endif
}

__global__ void __launch_bounds__(kParameterThreads)
    ParameterGradientKernel(const ParameterGradientArgs args) {
  DeviceContext context;
  SumParameterGradients(context, args);
}

template <int W>
cudaError_t Prepare(int shared_bytes) {
  const cudaError_t error = AllowClusters(BackwardScanKernel<W, false>, shared_bytes);
  return error == cudaSuccess ? AllowClusters(BackwardScanKernel<W, true>, shared_bytes) : error;
}

template <int W>
cudaError_t Launch(const BackwardStepsArgs& args, cudaStream_t stream) {
  const int rows = args.backward.num_samples * args.backward.num_columns;
  BackwardKernel<W><<<rows, kWarpSize, 0, stream>>>(args);
  return cudaGetLastError();
}

template <int W>
cudaError_t Launch(const BackwardScanArgs& args, const NewtonShape& shape, cudaStream_t stream) {
  if (shape.num_blocks < 1 || shape.num_blocks > kChainNodes ||
      shape.num_warps * kWarpSize > kMaxThreads<W>)
    return cudaErrorInvalidValue;
  const size_t bytes =
      BackwardMemory<W>::Bytes(args.tree, args.shooting_interval, args.backward.num_columns);
  const ClusterLauncher launcher(shape, args.workspace == nullptr ? bytes : 0, stream);
  return args.workspace == nullptr
             ? cudaLaunchKernelEx(&launcher.config, BackwardScanKernel<W, false>, args)
             : cudaLaunchKernelEx(&launcher.config, BackwardScanKernel<W, true>, args);
}

}  // namespace

cudaError_t PrepareBackward(int shared_bytes) {
  if (!HasClusters()) return cudaSuccess;
  return ForWidths([&](auto w) { return Prepare<w.value>(shared_bytes); });
}

cudaError_t LaunchBackward(const BackwardStepsArgs& args, int width, cudaStream_t stream) {
  return WithWidth(width, [&](auto w) { return Launch<w.value>(args, stream); });
}

cudaError_t LaunchBackwardScan(const BackwardScanArgs& args, const NewtonShape& shape,
                               cudaStream_t stream) {
  if (!HasClusters()) return cudaErrorNotSupported;
  return WithWidth(shape.width, [&](auto w) { return Launch<w.value>(args, shape, stream); });
}

cudaError_t LaunchParameterGradients(const ParameterGradientArgs& args, cudaStream_t stream) {
  // A thread takes up to four weights.
  const int64_t per_layer = (int64_t{args.rows} * args.cols - 1) / 4 + 1;
  int threads = kWarpSize;
  while (threads < kParameterThreads && threads < per_layer) threads *= 2;
  const int64_t blocks = args.num_layers * ((per_layer - 1) / threads + 1), most = 1 << 20;
  ParameterGradientKernel<<<static_cast<unsigned>(blocks < most ? blocks : most), threads, 0,
                            stream>>>(args);
  return cudaGetLastError();
}

}  // namespace deeppcr::cuda
