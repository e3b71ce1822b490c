// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/loop/block_launch.cuh"

namespace deeppcr::cuda {

cudaError_t PreparePanelStack(int shared_bytes) {
  return PrepareBlocks<PanelStackView>(shared_bytes);
}

cudaError_t LaunchBlocks(const BlockSequentialArgs<PanelStackView>& args, int num_samples,
                         cudaStream_t stream) {
  return LaunchBlockSequential(args, num_samples, stream);
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
