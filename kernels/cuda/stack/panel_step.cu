// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/loop/block_launch.cuh"
#include "kernels/cuda/stack/panel_sequential_kernel.h"

namespace deeppcr::cuda {
namespace {

using PanelSequentialArgs = BlockSequentialArgs<PanelStackView>;
template <int kGroups>
__global__ void __launch_bounds__(PanelRing<kGroups>::kWarps* kWarpSize, 1)
    PanelSequentialKernel(const PanelSequentialArgs args) {
  DeviceContext context;
  SolvePanelsSequentially<kGroups>(context, args);
}

}  // namespace

cudaError_t PreparePanelStack(int shared_bytes) {
  const cudaError_t error = PrepareBlocks<PanelStackView>(shared_bytes);
  if (error != cudaSuccess) return error;
  return AllowShared(shared_bytes, PanelSequentialKernel<1>, PanelSequentialKernel<2>,
                     PanelSequentialKernel<3>, PanelSequentialKernel<4>, PanelSequentialKernel<5>,
                     PanelSequentialKernel<6>, PanelSequentialKernel<7>, PanelSequentialKernel<8>);
}

cudaError_t LaunchBlocks(const PanelSequentialArgs& args, int num_samples, cudaStream_t stream) {
  if (!args.process.in_sequence) return LaunchBlockSequential(args, num_samples, stream);
  WithPanelGroups(args.process.width, [&](auto groups) {
    using Ring = PanelRing<groups.value>;
    PanelSequentialKernel<groups.value>
        <<<num_samples, Ring::kWarps * kWarpSize, Ring::kBytes, stream>>>(args);
  });
  return cudaGetLastError();
}
cudaError_t LaunchBlocks(const PropagationArgs<PanelStackView>& args, int num_samples,
                         cudaStream_t stream) {
  return LaunchPropagation(args, num_samples, stream);
}
cudaError_t LaunchBlocks(const ExpansionArgs<PanelStackView>& args, int num_samples,
                         cudaStream_t stream) {
  return LaunchExpansion(args, num_samples, stream);
}

}  // namespace deeppcr::cuda
