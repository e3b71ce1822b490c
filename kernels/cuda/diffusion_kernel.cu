// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device_context.h"
#include "kernels/cuda/diffusion_shape.h"
#include "kernels/cuda/launch.h"

namespace deeppcr::cuda {
namespace {

constexpr int kMaxThreads = kMaxDiffusionWarps * kWarpSize;

template <int W>
__global__ void __launch_bounds__(kMaxThreads, 1)
    SequentialKernel(const DiffusionSequentialArgs args) {
  DeviceContext context;
  SolveDiffusionSequentially<W>(context, args);
}
template <int W>
__global__ void __launch_bounds__(kMaxThreads, 1) PropagationKernel(const PropagationArgs args) {
  DeviceContext context;
  PropagateIntervals<W>(context, args);
}
template <int W>
__global__ void __launch_bounds__(kMaxThreads, 1) ExpansionKernel(const ExpansionArgs args) {
  DeviceContext context;
  ExpandIntervals<W>(context, args);
}
template <int W>
__global__ void __launch_bounds__(kMaxThreads, 1) CoarseKernel(const CoarseArgs args) {
  DeviceContext context;
  GuessCoarsely<W>(context, args);
}

template <class Args>
cudaError_t Launch(void (*kernel)(Args), const Args& args, int64_t blocks, size_t shared_bytes,
                   cudaStream_t stream) {
  const int threads = DiffusionWarps(args.process.denoiser, kMaxDiffusionWarps) * kWarpSize;
  kernel<<<static_cast<unsigned>(blocks), threads, shared_bytes, stream>>>(args);
  return cudaGetLastError();
}

template <int W>
cudaError_t Prepare(int shared_bytes) {
  constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  cudaError_t error = cudaFuncSetAttribute(SequentialKernel<W>, kAttribute, shared_bytes);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(PropagationKernel<W>, kAttribute, shared_bytes);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(ExpansionKernel<W>, kAttribute, shared_bytes);
  if (error == cudaSuccess) error = cudaFuncSetAttribute(CoarseKernel<W>, kAttribute, shared_bytes);
  return error;
}

}  // namespace

cudaError_t PrepareDiffusion(int shared_bytes) {
  cudaError_t error = Prepare<8>(shared_bytes);
  if (error == cudaSuccess) error = Prepare<16>(shared_bytes);
  if (error == cudaSuccess) error = Prepare<32>(shared_bytes);
  return error;
}

cudaError_t LaunchDiffusion(const DiffusionSequentialArgs& args, int width, int num_samples,
                            cudaStream_t stream) {
  const size_t bytes = StepBytes(width, args.process.denoiser, 1);
  if (width == 8) return Launch(SequentialKernel<8>, args, num_samples, bytes, stream);
  if (width == 16) return Launch(SequentialKernel<16>, args, num_samples, bytes, stream);
  if (width == 32) return Launch(SequentialKernel<32>, args, num_samples, bytes, stream);
  return cudaErrorInvalidValue;
}

cudaError_t LaunchDiffusion(const PropagationArgs& args, int width, int num_samples,
                            cudaStream_t stream) {
  const size_t bytes = StepBytes(width, args.process.denoiser, args.rows);
  const int64_t blocks = int64_t{num_samples} * args.tree.num_intervals;
  if (width == 8) return Launch(PropagationKernel<8>, args, blocks, bytes, stream);
  if (width == 16) return Launch(PropagationKernel<16>, args, blocks, bytes, stream);
  if (width == 32) return Launch(PropagationKernel<32>, args, blocks, bytes, stream);
  return cudaErrorInvalidValue;
}

cudaError_t LaunchDiffusion(const ExpansionArgs& args, int width, int num_samples,
                            cudaStream_t stream) {
  const size_t bytes = StepBytes(width, args.process.denoiser, 1);
  const int64_t blocks = int64_t{num_samples} * args.tree.num_intervals;
  if (width == 8) return Launch(ExpansionKernel<8>, args, blocks, bytes, stream);
  if (width == 16) return Launch(ExpansionKernel<16>, args, blocks, bytes, stream);
  if (width == 32) return Launch(ExpansionKernel<32>, args, blocks, bytes, stream);
  return cudaErrorInvalidValue;
}

cudaError_t LaunchDiffusion(const CoarseArgs& args, int width, int num_samples,
                            cudaStream_t stream) {
  const size_t bytes = CoarseBytes(width, args.process.denoiser);
  if (width == 8) return Launch(CoarseKernel<8>, args, num_samples, bytes, stream);
  if (width == 16) return Launch(CoarseKernel<16>, args, num_samples, bytes, stream);
  if (width == 32) return Launch(CoarseKernel<32>, args, num_samples, bytes, stream);
  return cudaErrorInvalidValue;
}

}  // namespace deeppcr::cuda
