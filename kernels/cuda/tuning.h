// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_TUNING_H_
#define DEEPPCR_KERNELS_CUDA_TUNING_H_

// The tuning numbers of the CUDA backend, by kernel. A change here may change time, memory and how
// a launch is cut into blocks; answers keep their bits, but for the two numbers that say which code
// multiplies tangents. None has been tuned on a GPU yet: the word behind it says where it comes
// from.
//   compiled  from what nvcc 13.0 makes of the kernel for sm_90 (tests/gpu/README.md)
//   assumed   from arithmetic, or from the sizes of an H100 or H200
// Numbers that shape an answer's sums (panels, chains of a product, roots of the backward scan)
// stay beside their kernels.

#include <cstdint>

#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// ---- The host's part of a solve
// Time for which the host polls at full speed, as long as solves of small models take, then that up
// to which it yields its core between two polls, longer than most solves take, and the length of
// the naps after that (assumed).
inline constexpr int kSpinMicroseconds = 100, kYieldMicroseconds = 2000, kNapMicroseconds = 20;
// Least limit on a wait, far beyond what solves take on a device that works, and the limit in
// longest waits so far (assumed).
inline constexpr int kLeastWaitSeconds = 30;
inline constexpr int kWaitLimitFactor = 100;
// Passes that are launched before the host looks whether the samples still wanted them (assumed).
inline constexpr int kPassesAhead = 3;
// Number of steps from which a solve may take longer than 5 ms and polls its cancel word (assumed).
inline constexpr int64_t kLongSolve = int64_t{1} << 14;

// ---- Launches of steps one after another
// Longest launch of the sequential mode, which nothing interrupts (assumed), and what a launch is
// taken to cost: a step by a block, a step of a denoiser, and each of their weights (assumed).
inline constexpr double kLaunchNanoseconds = 5e6;
inline constexpr double kStackStepNanoseconds = 300, kDenoiserStepNanoseconds = 1500;
inline constexpr double kWeightNanoseconds = 0.04;
// The same of an exchange between all blocks of a GPU with the layer before it, and of a weight
// that all of them read (assumed).
inline constexpr double kExchangeNanoseconds = 2500, kGridWeightNanoseconds = 0.001;
// The same of an instruction of a step program (assumed).
inline constexpr double kInstructionNanoseconds = 300;
// Most instructions on elements of a program that is compiled: each takes the compiler a second or
// more, if it is one that takes long (compiled).
inline constexpr int kMostCompiledElements = 48;
// Longest that a load compiles (assumed).
inline constexpr int kMostCompileSeconds = 120;
// Steps by a warp of a launch, each of some 70 ns (compiled).
inline constexpr int64_t kWarpStepsPerPoll = int64_t{1} << 16;

// ---- Memory
// Memory of the samples that are taken together, and their largest number (assumed).
inline constexpr int64_t kGroupBytes = int64_t{64} << 20;
inline constexpr int64_t kMaxGroup = 256;
// Largest number of samples whose intervals lie in the workspace at a time, and the memory that
// they may take there where launches of blocks make the passes (assumed).
inline constexpr int kWorkspaceGroup = 8;
inline constexpr int64_t kWorkspaceBudget = int64_t{128} << 20;
// Workspace of cuBLAS: for products of the matrices of a tree, which are small (assumed), and for
// products with whole layers, as NVIDIA recommends for the largest GPUs.
inline constexpr int64_t kTreeProductBytes = int64_t{4} << 20;
inline constexpr int64_t kLayerProductBytes = int64_t{32} << 20;
// Limit on the modulation rows of all classes; beyond it, rows are made for each sample (assumed).
inline constexpr int64_t kMaxModulationBytes = int64_t{64} << 20;

// Limit on what a condition gives of one sample, for all its steps, as on the CPU (assumed).
inline constexpr int64_t kMostConditionBytes = int64_t{512} << 20;

// ---- Sequential kernel of stacks (stack/sequential_kernel.h)
// Threads of a block: one warp, so that samples spread over all multiprocessors first (assumed).
inline constexpr int kSequentialThreads = kWarpSize;
// Layers of a chunk, and chunks of the ring in shared memory: that which is at hand, that which is
// waited for before its end, and that which is asked for meanwhile (compiled).
template <int W>
inline constexpr int kSequentialChunk = W < kWarpSize ? 8 : 3;
inline constexpr int kSequentialRing = 3;

// ---- Newton kernel (loop/newton_kernel.h)
// Largest number of warps of a block: a thread holds a column and a row of a matrix, which take
// more registers the wider the matrix is (compiled).
constexpr int MaxNewtonWarps(int width) { return width <= 8 ? 16 : 8; }
// The same of the kernels that make parts of a solve, which propagate nothing (compiled).
constexpr int MaxPartWarps(int width) { return width <= 16 ? 16 : 8; }
// Blocks that a multiprocessor is to hold; 0: as the compiler likes. The compiler would spill
// registers to make room for a second block of the kernels of width 8 and of those that make parts
// of a solve, and would take one load after another in that of width 16 in shared memory
// (compiled).
constexpr int MinNewtonBlocks(int width, bool parts, bool in_shared) {
  return width == 8 || parts || (width == 16 && in_shared) ? 1 : 0;
}

// ---- Steps by blocks of threads (loop/block_recurrence.h, diffusion/kernel.h)
// Largest number of warps of a block, with a warp for each panel of a layer (compiled).
inline constexpr int kMaxBlockWarps = 16;
// Largest number of rows that pass through a step together: more would not fit a thread's registers
// (compiled).
inline constexpr int kMostStepRows = 37;
// Width from which all blocks of a cluster make a step, each with panels enough, and cuBLAS
// multiplies tangents: narrower layers would lose more to the barriers of a cluster than they win
// (assumed).
inline constexpr int kWideLayer = 256, kPanelsPerBlock = 8;
// Samples that a team takes together at most (assumed).
inline constexpr int kTeamSamples = 16;
// Warps of a block where all blocks of the GPU make a step: enough that a thread awaits one pair of
// elements of a layer of 1024 (assumed). Samples that they take one after another: three clusters
// side by side make a step in the time of 2.4 steps (predicted).
inline constexpr int kGridWarps = 16, kMostGridSamples = 2;
// Layers of the residual denoiser whose weights stay in registers from step to step, as many as 128
// registers a thread have room for, and their largest width (compiled).
inline constexpr int kHeldLayers = 3, kHeldWidth = 128;
// Blocks of the residual denoiser whose weights stay in registers as half-precision numbers, with
// those of the input and the output layer (compiled).
inline constexpr int kHalfBlocks = 3;
// Intervals of a block that keeps all layers of a residual denoiser in shared memory, and its
// warps, of which each has a tile of tangents in registers (compiled).
inline constexpr int kResidentIntervals = 8, kResidentWarps = 8;
// The most steps that an interval takes in all iterations of a solve that is one launch: the host
// waits for it without a look at its passes (assumed).
inline constexpr int64_t kMostGridSteps = int64_t{1} << 16;
// Floats of the longest modulation row that is prefetched a step ahead: the weights would evict a
// longer one (assumed).
inline constexpr int kMostPrefetchedModulation = 4096;
// Layers by which a stack's weights are prefetched (assumed).
inline constexpr int kLayersPrefetched = 4;

// ---- The rest of a pass (loop/pass_kernel.h)
// Warps of a block, and of a block that places a state (assumed).
inline constexpr int kPassWarps = 16, kStartWarps = 2;
// Bytes of matrices of a level that a block of a tree's team may have to read: it takes some 2.5 us
// for them, as long as a launch takes (assumed).
inline constexpr int64_t kTreeBlockBytes = int64_t{256} << 10;

// ---- Wide denoisers (diffusion/wide_propagation.h)
// Approximate number of tangents that pass through the layers together. With H = 1024 the tangents
// are as many tiles of 128 x 128 as a large GPU has multiprocessors, and all vectors of a part take
// 25 MB (assumed). cuBLAS may choose another product for another number.
inline constexpr int64_t kPartTangents = 2048;
// Tangents of a group: few enough for many blocks, many enough that the work that a block does once
// for its interval pays (assumed). Warps of the block that works on them (assumed).
inline constexpr int kTangentGroup = 8, kTangentWarps = 8;

// ---- Layers outside the recurrence, noise (math/dense_chain_kernel.h, diffusion/noise_kernel.h)
// Threads of a block (assumed).
inline constexpr int kDenseChainThreads = 256, kNoiseThreads = 128, kModulationThreads = 256;
// Columns of the Jacobian that go through the layers together (assumed).
inline constexpr int kChainTangents = 8;

// ---- Backward (stack/backward_kernel.h, stack/backward_scan_kernel.h)
// Largest number of warps, a power of two, as the number of a block's intervals is; the registers
// of a wider kernel leave room for fewer warps (compiled).
constexpr int MaxBackwardWarps(int width) { return width <= 16 ? 16 : 8; }
// Blocks that a multiprocessor is to hold; 0: as the compiler likes. The compiler would spill
// registers of the narrow kernel to make room for a second block, and registers of the widest
// kernel if it were told that there is no second block (compiled).
constexpr int MinBackwardBlocks(int width) { return width == 8 ? 1 : 0; }
// Layers whose slopes are evaluated together, and by which layers are read ahead: as many as
// registers hold (compiled).
template <int W>
inline constexpr int kBackwardAhead = W < kWarpSize ? 4 : 2;
// Largest sum of the scales of a residual stack's branches whose Jacobians tensor cores multiply:
// such a product is too small by up to 2^-22 of itself, so the gradient is by 2^-16; and by 2^-10
// where a solve's matrices are TF32, so these are by a few percent of their branches (assumed).
inline constexpr float kMostBranches = 64;
// Threads of a block that forms gradients of parameters, and the layers and samples of one launch,
// whose vectors are gathered before (assumed).
inline constexpr int kParameterThreads = 256;
inline constexpr int64_t kAddedLayers = 32, kAddedSamples = 32;
// Cotangents of a sample that go back together (assumed).
inline constexpr int64_t kBackwardColumns = 32;

// ---- Backward, of step programs (program/backward_kernel.h)
// Blocks of a launch for each multiprocessor, which take one interval after another, and the memory
// of those whose frames are larger than shared memory (assumed).
inline constexpr int kBackBlocks = 2;
inline constexpr int64_t kBackWorkspaceBytes = int64_t{128} << 20;
// Samples that go back together at most (assumed), and what a step takes whose values lie in the
// workspace, by one whose values lie in shared memory (assumed).
inline constexpr int64_t kBackSamples = 32, kWorkspaceCost = 8;

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_TUNING_H_
