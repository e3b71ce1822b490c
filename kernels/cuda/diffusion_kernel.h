// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_KERNEL_H_

// The solvers of diffusion models on a GPU, as far as they make reverse steps: sequential,
// propagation of all shooting intervals (what follows it is a pass of newton_kernel.h), the coarse
// guess, and the states between the ends of intervals. A block of threads makes the steps of one
// sample or of one interval.

#include <cstdint>

#include "kernels/cuda/block_memory.h"
#include "kernels/cuda/denoiser_step.h"
#include "kernels/cuda/interval_tree.h"
#include "kernels/solver/stopping.h"

namespace deeppcr::cuda {

// One process and the noise and modulation of n samples. Pointers are the device's.
struct DiffusionView {
  DenoiserView denoiser;
  int64_t num_steps;                        // L
  const ReverseCoefficients* coefficients;  // [L]
  const HoldCoefficients* holds;            // [L]
  const float* noise;                       // [n, L, D]
  const float* tables;                      // [tables, L, modulation_floats]
  const int32_t* table_of;                  // [n]
};

// The steps of one sample.
class SampleSteps {
 public:
  DEEPPCR_DEVICE SampleSteps(const DiffusionView& view, int64_t sample)
      : view_(view),
        noise_(view.noise + sample * view.num_steps * view.denoiser.state_dim),
        table_(view.tables +
               view.table_of[sample] * view.num_steps * view.denoiser.modulation_floats()) {}

  DEEPPCR_DEVICE const float* Noise(int64_t step) const {
    return noise_ + step * view_.denoiser.state_dim;
  }
  DEEPPCR_DEVICE StepView At(int64_t step) const {
    const ReverseCoefficients c = view_.coefficients[step];
    return {c, table_ + step * view_.denoiser.modulation_floats(),
            c.sigma == 0.0F ? nullptr : Noise(step), step};
  }

 private:
  const DiffusionView& view_;
  const float* const noise_;
  const float* const table_;
};

// Rows that pass through a step together: the state alone, with the probes, with everything.
template <int W>
constexpr int kAllRows = 1 + kNumProbes + W;

// A state [W] of memory that ends in zeros, into row r of a step.
template <int W, class Context, class Step>
DEEPPCR_DEVICE void PlaceState(Context& context, const float* from, int r, const Step& step) {
  for (int i = context.thread(); i < kStateCols<W>; i += context.num_threads())
    step.State(r, i) = i < W && from != nullptr ? from[i] : 0.0F;
}

// The barrier calls of these kernels.
enum DiffusionSite : int {
  kAfterInitialState = 16,  // beyond those of the Newton kernel
  kAfterInterval,
  kNumDiffusionSites,
};

// ---- Sequential
struct DiffusionSequentialArgs {
  DiffusionView process;
  int64_t begin, end;      // 0 <= begin < end <= L
  const float* states;     // z_begin [n, W], zero beyond D
  float* final_states;     // z_end [n, W], zero beyond D; may be `states`
  float* trajectories;     // z_0..z_L [n, L + 1, D], of which begin..end are written, or null
  int64_t* num_dependent;  // steps made, one after another, by the first sample
};

// Row 0 of a step, as z_l of a sample's trajectory.
template <class Context, class Step>
DEEPPCR_DEVICE void WriteState(Context& context, const Step& step, int dim, float* to) {
  for (int i = context.thread(); i < dim; i += context.num_threads()) to[i] = step.State(0, i);
}

// Body of a launch of one block per sample, with DenoiserMemory<W, 1>::Floats(d, 1) of shared
// memory.
template <int W, class Context>
DEEPPCR_DEVICE void SolveDiffusionSequentially(Context& context,
                                               const DiffusionSequentialArgs& args) {
  const DenoiserView& d = args.process.denoiser;
  const int64_t sample = context.cluster(), dim = d.state_dim;
  DenoiserStep<W, 1, Context> step(context, d, reinterpret_cast<float*>(context.shared()), 1,
                                   false);
  float* const trajectory = args.trajectories == nullptr
                                ? nullptr
                                : args.trajectories + sample * (args.process.num_steps + 1) * dim;
  PlaceState<W>(context, args.states + sample * W, 0, step);
  context.SyncBlock(kAfterInitialState);
  if (trajectory != nullptr && args.begin == 0) WriteState(context, step, d.state_dim, trajectory);
  const SampleSteps steps(args.process, sample);
  int64_t made = 0;
  for (int64_t l = args.begin; l < args.end; ++l, ++made) {
    step.Run(steps.At(l));
    if (trajectory != nullptr) WriteState(context, step, d.state_dim, trajectory + (l + 1) * dim);
  }
  for (int i = context.thread(); i < W; i += context.num_threads())
    args.final_states[sample * W + i] = step.State(0, i);
  if (sample == 0 && context.thread() == 0) *args.num_dependent = made;
}

// ---- Propagation of intervals
struct PropagationArgs {
  DiffusionView process;
  IntervalTree tree;
  int32_t shooting_interval;
  Linearization linearization;  // of the policy
  int32_t rows;                 // that a block's shared memory holds: [2, kAllRows<W>]
  const Progress* progress;     // [n]
  std::byte* slabs;             // as NewtonArgs
};

template <int W, class Context>
class IntervalPropagation {
 public:
  DEEPPCR_DEVICE IntervalPropagation(Context& context, const PropagationArgs& args)
      : context_(context),
        args_(args),
        dim_(args.process.denoiser.state_dim),
        sample_(context.cluster() / args.tree.num_intervals),
        interval_(context.cluster() % args.tree.num_intervals),
        memory_{args.tree, SlabOf()},
        local_(interval_ % args.tree.per_block),
        leaf_(args.tree.index_of(0, interval_)) {}

  DEEPPCR_DEVICE void Run() {
    const Progress& progress = args_.progress[sample_];
    if (progress.next == NextPass::kStop) return;
    const IterationKind kind = KindOf(progress.next, progress.probes, args_.linearization);
    // d_0 = 0: the first matrix is never used.
    const int columns = kind.forms_matrices() && interval_ > 0 ? dim_ : 0;
    const int probes = kind.probes ? kNumProbes : 0;
    if (columns == 0) return probes == 0 ? Rows<1>(0, 0, 0) : Rows<1 + kNumProbes>(probes, 0, 0);
    // What does not fit goes along with the state again.
    for (int done = 0, with = probes; done < columns; with = 0) {
      const int room = args_.rows - 1 - with;
      const int count = columns - done < room ? columns - done : room;
      Rows<kAllRows<W>>(with, done, count);
      done += count;
    }
  }

 private:
  DEEPPCR_DEVICE std::byte* SlabOf() const {
    const int64_t block = sample_ * args_.tree.num_blocks + args_.tree.block_of(0, interval_);
    return args_.slabs + block * static_cast<int64_t>(BlockMemory<W>::Bytes(args_.tree));
  }

  // The state with its probes and `count` columns of the matrix from `first` on.
  template <int S>
  DEEPPCR_DEVICE void Rows(int probes, int first, int count) {
    const DiffusionView& process = args_.process;
    DenoiserStep<W, S, Context> step(context_, process.denoiser,
                                     reinterpret_cast<float*>(context_.shared()),
                                     1 + probes + count, probes > 0);
    Place(step, probes, first, count);
    context_.SyncBlock(kAfterInitialState);
    const int64_t begin = int64_t{interval_} * args_.shooting_interval;
    const int64_t wanted = begin + args_.shooting_interval;
    const int64_t end = wanted < process.num_steps ? wanted : process.num_steps;
    const SampleSteps steps(process, sample_);
    for (int64_t l = begin; l < end; ++l) step.Run(steps.At(l));
    Take(step, probes, first, count);
    context_.SyncBlock(kAfterInterval);  // other columns take the place of these
  }

  template <class Step>
  DEEPPCR_DEVICE void Place(const Step& step, int probes, int first, int count) {
    const float* entry = memory_.State(local_);
    for (int r = 0; r <= probes; ++r) PlaceState<W>(context_, entry + r * W, r, step);
    for (int j = 0; j < count; ++j) {
      for (int i = context_.thread(); i < kStateCols<W>; i += context_.num_threads())
        step.State(1 + probes + j, i) = i == first + j ? 1.0F : 0.0F;
    }
  }
  template <class Step>
  DEEPPCR_DEVICE void Take(const Step& step, int probes, int first, int count) {
    float* const propagated = memory_.Propagated(local_);
    float* const residual = memory_.Residual(leaf_);
    const float* y = memory_.State(local_ + 1);
    for (int i = context_.thread(); i < W; i += context_.num_threads()) {
      for (int r = 0; r <= probes; ++r) {
        propagated[r * W + i] = step.State(r, i);
        residual[r * W + i] = step.State(r, i) - y[r * W + i];
      }
      float* const row = memory_.Matrix(leaf_) + i * W;
      for (int j = 0; j < count; ++j) row[first + j] = step.State(1 + probes + j, i);
      for (int j = dim_; j < W && count > 0; ++j) row[j] = 0.0F;
    }
  }

  Context& context_;
  const PropagationArgs& args_;
  const int dim_;
  const int64_t sample_;
  const int32_t interval_;
  const BlockMemory<W> memory_;
  const int32_t local_, leaf_;
};

// Body of a launch of one block per sample and interval, with DenoiserMemory::Floats(d, rows) of
// shared memory.
template <int W, class Context>
DEEPPCR_DEVICE void PropagateIntervals(Context& context, const PropagationArgs& args) {
  IntervalPropagation<W, Context>(context, args).Run();
}

// ---- The states within intervals
struct ExpansionArgs {
  DiffusionView process;
  IntervalTree tree;
  int32_t shooting_interval;
  std::byte* slabs;
  float* trajectories;  // z_0..z_L [n, L + 1, D]
};

// Body of a launch of one block per sample and interval: z_l of the interval, propagated from its
// entry, and at its end y_p itself. Shared memory as for the sequential solver.
template <int W, class Context>
DEEPPCR_DEVICE void ExpandIntervals(Context& context, const ExpansionArgs& args) {
  const DiffusionView& process = args.process;
  const int32_t dim = process.denoiser.state_dim;
  const int64_t sample = context.cluster() / args.tree.num_intervals;
  const int32_t interval = context.cluster() % args.tree.num_intervals;
  const int32_t local = interval % args.tree.per_block;
  const int64_t block = sample * args.tree.num_blocks + args.tree.block_of(0, interval);
  const BlockMemory<W> memory{
      args.tree, args.slabs + block * static_cast<int64_t>(BlockMemory<W>::Bytes(args.tree))};
  float* const to = args.trajectories + sample * (process.num_steps + 1) * dim;
  DenoiserStep<W, 1, Context> step(context, process.denoiser,
                                   reinterpret_cast<float*>(context.shared()), 1, false);
  PlaceState<W>(context, memory.State(local), 0, step);
  context.SyncBlock(kAfterInitialState);
  if (interval == 0) WriteState(context, step, dim, to);
  const int64_t begin = int64_t{interval} * args.shooting_interval;
  const int64_t wanted = begin + args.shooting_interval;
  const int64_t end = wanted < process.num_steps ? wanted : process.num_steps;
  const SampleSteps steps(process, sample);
  for (int64_t l = begin; l + 1 < end; ++l) {
    step.Run(steps.At(l));
    WriteState(context, step, dim, to + (l + 1) * dim);
  }
  for (int i = context.thread(); i < dim; i += context.num_threads())
    to[end * dim + i] = memory.State(local + 1)[i];
}

// ---- The coarse guess
struct CoarseArgs {
  DiffusionView process;
  int32_t shooting_interval, num_intervals;
  const float* initial_states;  // z_0 [n, W], zero beyond D
  float* guesses;               // y_1..y_P [n, P, W], zero beyond D
};

// Element i of a state through steps [begin, end) with one x0.
DEEPPCR_DEVICE float HoldSample(const CoarseArgs& args, const SampleSteps& steps, int64_t begin,
                                int64_t end, float x0, float clipped, int i, float z, int width,
                                float* guesses) {
  const bool real = i < args.process.denoiser.state_dim;
  for (int64_t l = begin; l < end; ++l) {
    const HoldCoefficients hold = args.process.holds[l];
    float next = fmaf(hold.clipped, clipped, fmaf(hold.raw, x0, hold.z * z));
    if (real && hold.sigma != 0.0F) next = fmaf(hold.sigma, steps.Noise(l)[i], next);
    // A guess may be wrong, but not useless.
    if (isfinite(next)) z = next;
    if ((l + 1) % args.shooting_interval == 0 || l + 1 == args.process.num_steps)
      guesses[l / args.shooting_interval * width + i] = z;
  }
  return z;
}

// Body of a launch of one block per sample: the denoiser is evaluated every CoarseStride steps, and
// in between its x0 is held. Shared memory: that of the sequential solver and W floats.
template <int W, class Context>
DEEPPCR_DEVICE void GuessCoarsely(Context& context, const CoarseArgs& args) {
  const DiffusionView& process = args.process;
  const DenoiserView& d = process.denoiser;
  const int64_t sample = context.cluster(), every = CoarseStride(process.num_steps);
  float* const shared = reinterpret_cast<float*>(context.shared());
  float* const z = shared + DenoiserMemory<W, 1>::Floats(d, 1);
  float* const guesses = args.guesses + sample * args.num_intervals * W;
  DenoiserStep<W, 1, Context> step(context, d, shared, 1, false);
  const SampleSteps steps(process, sample);
  for (int i = context.thread(); i < W; i += context.num_threads())
    z[i] = args.initial_states[sample * W + i];
  // A thread has the same elements of z everywhere: it needs no barrier.
  for (int64_t begin = 0; begin < process.num_steps; begin += every) {
    PlaceState<W>(context, z, 0, step);
    context.SyncBlock(kAfterInterval);
    const StepView at = steps.At(begin);
    step.Predict(at);
    const int64_t end = begin + every < process.num_steps ? begin + every : process.num_steps;
    for (int i = context.thread(); i < W; i += context.num_threads()) {
      const float m = i < d.state_dim ? step.Prediction(i) : 0.0F;
      const float x0 = fmaf(at.coefficients.x0_m, m, at.coefficients.x0_z * z[i]);
      z[i] = HoldSample(args, steps, begin, end, x0, step.Clip(x0), i, z[i], W, guesses);
    }
  }
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_KERNEL_H_
