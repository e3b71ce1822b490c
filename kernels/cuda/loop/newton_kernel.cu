// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/loop/newton_kernel.h"
#include "kernels/cuda/math/warp_width.h"
#include "kernels/cuda/runtime/cluster_launch.h"
#include "kernels/cuda/runtime/device_context.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {
namespace {

// Kind of a kernel, of the kernels with the same launch.
enum class Kernel {
  kInShared,
  kInWorkspace,
  kParts,
  kPrefixesInShared,
  kPrefixesInWorkspace,
  kPartsWithTree,
};

constexpr bool InShared(Kernel kernel) {
  return kernel == Kernel::kInShared || kernel == Kernel::kPrefixesInShared;
}
[[maybe_unused]] constexpr bool HasPrefixes(Kernel kernel) {
  return kernel == Kernel::kPrefixesInShared || kernel == Kernel::kPrefixesInWorkspace;
}

constexpr bool MakesParts(Kernel kernel) {
  return kernel == Kernel::kParts || kernel == Kernel::kPartsWithTree;
}

template <int W, Kernel kKernel>
constexpr int kMaxThreads = (MakesParts(kKernel) ? MaxPartWarps(W) : MaxNewtonWarps(W)) * kWarpSize;

template <int W, Kernel kKernel>
__global__ void __launch_bounds__(kMaxThreads<W, kKernel>,
                                  MinNewtonBlocks(W, MakesParts(kKernel), InShared(kKernel)))
    NewtonKernel(const __grid_constant__ NewtonArgs args) {
#if __CUDA_ARCH__ >= 900  // first with clusters; LaunchNewton refuses older GPUs
  ClusterContext context;
  if constexpr (MakesParts(kKernel)) {
    SolveNewtonInPartsAs<W, kKernel == Kernel::kPartsWithTree>(context, args);
  } else {
    SolveNewtonAs<W, !InShared(kKernel), HasPrefixes(kKernel)>(context, args);
  }
#endif
}

template <int W, Kernel kKernel>
cudaError_t Allow(int shared_bytes) {
  return AllowClusters(NewtonKernel<W, kKernel>, shared_bytes);
}
template <int W>
cudaError_t Prepare(int shared_bytes) {
  cudaError_t error = Allow<W, Kernel::kInShared>(shared_bytes);
  if (error == cudaSuccess) error = Allow<W, Kernel::kInWorkspace>(shared_bytes);
  if (error == cudaSuccess) error = Allow<W, Kernel::kPrefixesInShared>(shared_bytes);
  if (error == cudaSuccess) error = Allow<W, Kernel::kPrefixesInWorkspace>(shared_bytes);
  if (error == cudaSuccess) error = Allow<W, Kernel::kParts>(shared_bytes);
  if (error == cudaSuccess) error = Allow<W, Kernel::kPartsWithTree>(shared_bytes);
  return error;
}

template <int W, Kernel kKernel>
cudaError_t Launch(const NewtonArgs& args, const NewtonShape& shape, cudaStream_t stream) {
  if (shape.num_blocks < 1 || shape.num_warps * kWarpSize > kMaxThreads<W, kKernel>)
    return cudaErrorInvalidValue;
  const ClusterLauncher launcher(shape, NewtonBytes(args, W), stream);
  return cudaLaunchKernelEx(&launcher.config, NewtonKernel<W, kKernel>, args);
}
template <int W>
cudaError_t Launch(const NewtonArgs& args, const NewtonShape& shape, cudaStream_t stream) {
  if (args.part != NewtonPart::kWhole)
    return args.holds_tree ? Launch<W, Kernel::kPartsWithTree>(args, shape, stream)
                           : Launch<W, Kernel::kParts>(args, shape, stream);
  const bool in_shared = args.workspace == nullptr;
  if (HasPrefixes(args.tree))
    return in_shared ? Launch<W, Kernel::kPrefixesInShared>(args, shape, stream)
                     : Launch<W, Kernel::kPrefixesInWorkspace>(args, shape, stream);
  return in_shared ? Launch<W, Kernel::kInShared>(args, shape, stream)
                   : Launch<W, Kernel::kInWorkspace>(args, shape, stream);
}

// Largest cluster with the most threads and the most shared memory.
template <int W>
cudaError_t MaxClusterBlocks(size_t shared_bytes, int* blocks) {
  const ClusterLauncher launcher({W, 1, kMostClusterBlocks, MaxNewtonWarps(W)}, shared_bytes,
                                 nullptr);
  return cudaOccupancyMaxPotentialClusterSize(blocks, NewtonKernel<W, Kernel::kInShared>,
                                              &launcher.config);
}

cudaError_t SharedBytes(size_t* bytes) {
  int device = 0, most = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  *bytes = static_cast<size_t>(most);
  return error;
}

}  // namespace

cudaError_t PrepareNewton(int shared_bytes) {
  if (!HasClusters()) return cudaSuccess;
  return ForWidths([&](auto w) { return Prepare<w.value>(shared_bytes); });
}

cudaError_t LaunchNewton(const NewtonArgs& args, const NewtonShape& shape, cudaStream_t stream) {
  if (!HasClusters()) return cudaErrorNotSupported;
  return WithWidth(shape.width, [&](auto w) { return Launch<w.value>(args, shape, stream); });
}

cudaError_t MaxNewtonClusterBlocks(int* blocks) {
  *blocks = 0;
  if (!HasClusters()) return cudaSuccess;
  size_t shared_bytes = 0;
  if (const cudaError_t error = SharedBytes(&shared_bytes); error != cudaSuccess) return error;
  int most = kMostClusterBlocks;
  const cudaError_t error = ForWidths([&](auto w) {
    int of_width = 0;
    const cudaError_t status = MaxClusterBlocks<w.value>(shared_bytes, &of_width);
    if (of_width < most) most = of_width;
    return status;
  });
  if (error != cudaSuccess) return error;
  for (*blocks = 1; 2 * *blocks <= most;) *blocks *= 2;
  return cudaSuccess;
}

cudaError_t CountClusters(int max_blocks, ClusterCounts* counts) {
  size_t shared_bytes = 0;
  cudaError_t error = max_blocks > 0 ? SharedBytes(&shared_bytes) : cudaSuccess;
  for (int i = 0; error == cudaSuccess && 1 << i <= max_blocks; ++i) {
    const ClusterLauncher launcher({16, 1, 1 << i, MaxNewtonWarps(16)}, shared_bytes, nullptr);
    error = cudaOccupancyMaxActiveClusters(&counts->of[i], NewtonKernel<16, Kernel::kInShared>,
                                           &launcher.config);
  }
  return error;
}

}  // namespace deeppcr::cuda
