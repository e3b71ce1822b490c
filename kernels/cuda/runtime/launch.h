// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RUNTIME_LAUNCH_H_
#define DEEPPCR_KERNELS_CUDA_RUNTIME_LAUNCH_H_

// Launches of the kernels. Plain C++ on both sides of nvcc: no abseil here.

#include <cuda_runtime_api.h>

#include "kernels/cuda/diffusion/grid_steps.h"
#include "kernels/cuda/diffusion/kernel.h"
#include "kernels/cuda/diffusion/noise_kernel.h"
#include "kernels/cuda/diffusion/resident_propagation.h"
#include "kernels/cuda/diffusion/resident_solve.h"
#include "kernels/cuda/diffusion/tangent_kernel.h"
#include "kernels/cuda/loop/block_recurrence.h"
#include "kernels/cuda/loop/newton_args.h"
#include "kernels/cuda/loop/newton_shape.h"
#include "kernels/cuda/loop/pass_kernel.h"
#include "kernels/cuda/math/dense_back_kernel.h"
#include "kernels/cuda/math/dense_chain_kernel.h"
#include "kernels/cuda/program/backward_shape.h"
#include "kernels/cuda/program/kernel.h"
#include "kernels/cuda/stack/backward_args.h"
#include "kernels/cuda/stack/backward_shape.h"
#include "kernels/cuda/stack/panel_step.h"
#include "kernels/cuda/stack/resident_stack_solve.h"
#include "kernels/cuda/stack/sequential_kernel.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

// Set the limits of kernels once for all, before the first launch: a limit belongs to a kernel and
// not to a thread, so a launch that set a limit of its own would break another launch's.
cudaError_t PrepareBackward(int shared_bytes);
cudaError_t PrepareDenseChain(int shared_bytes);
cudaError_t PrepareDiffusion(int shared_bytes);
cudaError_t PrepareGridSteps(int shared_bytes);
cudaError_t PrepareModulation(int shared_bytes);
cudaError_t PrepareNewton(int shared_bytes);
cudaError_t PreparePanelStack(int shared_bytes);
cudaError_t PreparePasses(int shared_bytes);
cudaError_t PrepareProgram(int shared_bytes);
cudaError_t PrepareProgramBackward(int shared_bytes);
cudaError_t PrepareResident(int shared_bytes);
cudaError_t PrepareResidentSolve(int shared_bytes);
cudaError_t PrepareResidentStack(int shared_bytes);
cudaError_t PrepareWideDenoiser(int shared_bytes);

// All launches are asynchronous and return errors of the launch itself.

// One block of threads per sample.
cudaError_t LaunchDenseChain(const DenseChainArgs& args, int num_samples, cudaStream_t stream);

// Sequential solver, states padded to `width`, one of kWidths; else cudaErrorInvalidValue.
cudaError_t LaunchSequential(const SequentialArgs& args, int width, cudaStream_t stream);

// One cluster per sample, in the workspace where the args have one. cudaErrorInvalidValue for a
// shape that ChooseNewtonShape cannot return, cudaErrorNotSupported on devices without
// clusters.
cudaError_t LaunchNewton(const NewtonArgs& args, const NewtonShape& shape, cudaStream_t stream);

// Kernels of block_recurrence.h and the coarse guess, one block per sample or per sample and
// interval.
cudaError_t LaunchBlocks(const BlockSequentialArgs<DiffusionView>& args, int num_samples,
                         cudaStream_t stream);
cudaError_t LaunchBlocks(const PropagationArgs<DiffusionView>& args, int num_samples,
                         cudaStream_t stream);
cudaError_t LaunchBlocks(const ExpansionArgs<DiffusionView>& args, int num_samples,
                         cudaStream_t stream);
cudaError_t LaunchBlocks(const CoarseArgs<DiffusionView>& args, int num_samples,
                         cudaStream_t stream);
cudaError_t LaunchBlocks(const ResidentArgs& args, int num_members, cudaStream_t stream);
// Cooperative launches: an error where their blocks would not all run side by side.
cudaError_t LaunchBlocks(const GridStepsArgs<DiffusionView>& args, cudaStream_t stream);
cudaError_t LaunchBlocks(const ResidentSolveArgs& args, cudaStream_t stream);
cudaError_t LaunchBlocks(const ResidentStackArgs& args, cudaStream_t stream);
cudaError_t LaunchBlocks(const GridStepsArgs<ProgramView>& args, cudaStream_t stream);
cudaError_t LaunchBlocks(const BlockSequentialArgs<PanelStackView>& args, int num_samples,
                         cudaStream_t stream);
cudaError_t LaunchBlocks(const PropagationArgs<PanelStackView>& args, int num_samples,
                         cudaStream_t stream);
cudaError_t LaunchBlocks(const ExpansionArgs<PanelStackView>& args, int num_samples,
                         cudaStream_t stream);

cudaError_t LaunchBlocks(const BlockSequentialArgs<ProgramView>& args, int num_samples,
                         cudaStream_t stream);
cudaError_t LaunchBlocks(const PropagationArgs<ProgramView>& args, int num_samples,
                         cudaStream_t stream);
cudaError_t LaunchBlocks(const ExpansionArgs<ProgramView>& args, int num_samples,
                         cudaStream_t stream);
cudaError_t LaunchBlocks(const CoarseArgs<ProgramView>& args, int num_samples, cudaStream_t stream);
// What a condition gives, one block per sample, or per sample and step.
cudaError_t LaunchCondition(const ConditionArgs& args, int num_samples, cudaStream_t stream);

// Propagation of wide denoisers: states, and tangents between two products.
cudaError_t LaunchBlocks(const IntervalStepArgs& args, cudaStream_t stream);
cudaError_t LaunchTangents(const TangentArgs& args, cudaStream_t stream);

// The rest of a pass.
cudaError_t LaunchPass(const StartArgs& args, int num_samples, cudaStream_t stream);
cudaError_t LaunchPass(const LevelArgs& args, int num_members, cudaStream_t stream);
cudaError_t LaunchPass(const UpdateArgs& args, int num_members, cudaStream_t stream);
cudaError_t LaunchPass(const CollectArgs& args, int num_members, cudaStream_t stream);
cudaError_t LaunchPass(const TreeArgs& args, int num_members, cudaStream_t stream);

// The backward pass, of stacks with states padded to `width`; else cudaErrorInvalidValue.
cudaError_t LaunchBackward(const BackwardStepsArgs& args, int width, cudaStream_t stream);
// One cluster per sample, in the workspace where the args have one; errors as for LaunchNewton,
// shapes as ChooseBackwardShape returns them.
cudaError_t LaunchBackwardScan(const BackwardScanArgs& args, const NewtonShape& shape,
                               cudaStream_t stream);
// One block per sample.
cudaError_t LaunchDenseBack(const DenseBackArgs& args, int num_samples, cudaStream_t stream);
// Gradients by the parameters, from the deltas of either way back.
cudaError_t LaunchParameterGradients(const ParameterGradientArgs& args, cudaStream_t stream);

// The way back of step programs: intervals, the scan over them, and conditions.
cudaError_t LaunchProgramBackward(const ProgramRetreatArgs& args, const ProgramBackShape& shape,
                                  cudaStream_t stream);
cudaError_t LaunchProgramBackward(const ProgramLevelArgs& args, cudaStream_t stream);
cudaError_t LaunchProgramBackward(const ConditionBackArgs& args, const ProgramBackShape& shape,
                                  cudaStream_t stream);

cudaError_t LaunchNoise(const NoiseArgs& args, cudaStream_t stream);
cudaError_t LaunchModulation(const ModulationArgs& args, int64_t num_tables, cudaStream_t stream);

// Largest power of two of blocks that the current device takes in a cluster of the Newton kernel of
// any width, with the most shared memory; 0 if the device knows no clusters.
cudaError_t MaxNewtonClusterBlocks(int* blocks);
// LaunchLimits::grid_blocks of the current device, of which a process may have a part: tried with a
// launch. Synchronises.
cudaError_t CountGridBlocks(int multiprocessors, size_t shared_bytes, int* blocks);
// Number of clusters of up to max_blocks blocks, each block with all the shared memory that it may
// have, that the current device runs at a time.
cudaError_t CountClusters(int max_blocks, ClusterCounts* counts);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_RUNTIME_LAUNCH_H_
