// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_KERNEL_H_

// Recurrences whose step is a program, on a GPU: the Process for block_recurrence.h, and what a
// condition gives.

#include <cstdint>

#include "kernels/cuda/loop/block_recurrence.h"
#include "kernels/cuda/math/team.h"
#include "kernels/cuda/program/step.h"
#include "kernels/cuda/program/view.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"
#include "kernels/iteration/pass.h"
#include "kernels/problem/reverse_step.h"

namespace deeppcr::cuda {

class ProgramSteps;
template <int S, class Team, class Code, class Layers = StreamedLayers>
class ProgramStep;

// A Process: a step program and what n samples have for themselves. Pointers are to device memory.
struct ProgramView {
  static constexpr bool kHasDiagonals = false, kAnySampler = true;
  using Code = Interpreted;

  ProgramSection section;                  // what depends on the state
  ProgramValue state, next, prediction;    // in its frame
  int64_t num_steps;                       // L
  int32_t state_dim;                       // D
  int32_t width;                           // W
  float clip_range;                        // may be infinite
  int32_t time_floats;                     // of a row
  int32_t condition_floats, mixed_floats;  // the same
  int32_t sample_dim;                      // of the noise of a step; 0: none
  NoiseScale noise_scale;
  int32_t parts;                            // coefficients of a step
  const float* constants;                   // [constant floats]
  const float* times;                       // [L, time_floats]
  const ReverseCoefficients* coefficients;  // [L, parts]
  const HoldCoefficients* holds;            // [L], of the coarse guess
  const MemoryHold* memory_holds;           // the same, where the sampler carries a memory
  const float* conditions;                  // [n, condition_floats + L mixed_floats]
  const float* noise;                       // [n, L, sample_dim]
  // The host's: kernels that are compiled for this program, or null.
  const ProgramKernels* kernels;

  constexpr int64_t given_floats() const {
    return condition_floats + num_steps * int64_t{mixed_floats};
  }
  DEEPPCR_DEVICE ProgramSteps StepsOf(int64_t sample, int32_t draw = 0) const;
  DEEPPCR_DEVICE const ReverseCoefficients& CoefficientsOf(int64_t step) const {
    return coefficients[step * parts];
  }
  constexpr int64_t StepFloats(int rows) const { return FrameFloats(section, rows); }
  template <class Team>
  DEEPPCR_DEVICE auto NewSoleStep(const Team& team, float* memory) const {
    return NewStep<1>(team, memory, 1, false);
  }
  template <int S, class Team>
  DEEPPCR_DEVICE ProgramStep<S, Team, Code> NewStep(const Team& team, float* memory, int rows,
                                                    bool probes) const {
    return {team, *this, memory, rows, probes};
  }
};

// The steps of one sample.
class ProgramSteps {
 public:
  DEEPPCR_DEVICE ProgramSteps(const ProgramView& view, int64_t sample, int32_t draw)
      : view_(view),
        condition_(view.conditions + sample * view.given_floats()),
        noise_(view.noise + sample * view.num_steps * view.sample_dim),
        signs_(DrawOfSigns(0, draw, view.num_steps)) {}

  DEEPPCR_DEVICE const float* Noise(int64_t step) const { return noise_ + step * view_.sample_dim; }
  DEEPPCR_DEVICE ProgramStepView At(int64_t step) const {
    return {view_.constants,
            TimeRow(step),
            condition_,
            MixedRow(step),
            view_.coefficients + step * view_.parts,
            Noise(step),
            step,
            signs_ + step};
  }
  // Prefetches what a step reads from rows of its own, as long as these are short: the weights
  // would evict a longer one.
  template <class Team>
  DEEPPCR_DEVICE void Prefetch(const Team& team, int64_t step) const {
    if (step + 1 >= view_.num_steps) return;
    PrefetchRow(team, TimeRow(step + 1), view_.time_floats);
    PrefetchRow(team, MixedRow(step + 1), view_.mixed_floats);
    PrefetchRow(team, Noise(step + 1), view_.sample_dim);
  }

 private:
  DEEPPCR_DEVICE const float* TimeRow(int64_t step) const {
    return view_.times + step * view_.time_floats;
  }
  DEEPPCR_DEVICE const float* MixedRow(int64_t step) const {
    return condition_ + view_.condition_floats + step * view_.mixed_floats;
  }
  template <class Team>
  DEEPPCR_DEVICE static void PrefetchRow(const Team& team, const float* row, int floats) {
    constexpr int kLineFloats = 32;
    if (floats > kMostPrefetchedModulation) return;
    auto& context = team.context();
    for (int at = context.thread() * kLineFloats; at < floats;
         at += context.num_threads() * kLineFloats)
      context.Prefetch(row + at);
  }

  const ProgramView& view_;
  const float* const condition_;
  const float* const noise_;
  const int64_t signs_;  // draws the signs of the first step
};

DEEPPCR_DEVICE ProgramSteps ProgramView::StepsOf(int64_t sample, int32_t draw) const {
  return {*this, sample, draw};
}

// A step of a state and its tangents.
template <int S, class Team, class Code, class Layers>
class ProgramStep {
 public:
  // `memory`: StepFloats(rows) floats of a block's shared memory, aligned to 16 bytes.
  DEEPPCR_DEVICE ProgramStep(const Team& team, const ProgramView& view, float* memory, int rows,
                             bool probes, const Layers& layers = {})
      : context_(team.context()),
        runner_(team, view.section, memory, rows, probes, view.clip_range, layers),
        state_(runner_.At(view.state)),
        next_(runner_.At(view.next)),
        prediction_(runner_.At(view.prediction)),
        view_(view) {}

  DEEPPCR_DEVICE int cols() const { return state_.shape.cols; }
  // Element i < cols() of row r of the state. Elements beyond D are to be zero.
  DEEPPCR_DEVICE float& State(int r, int i) const { return state_(r, i); }

  // Makes one step of all rows. The caller has synchronised the team after writing the state in
  // every block; Run has synchronised each block when it returns, and begins in all of them only
  // when all have come so far.
  DEEPPCR_DEVICE void Run(const ProgramStepView& step) const {
    Evaluate(step);
    runner_.ForElements(cols(), [&](int i) {
      for (int r = 0; r < runner_.rows().count; ++r) state_(r, i) = next_(r, i);
    });
    context_.SyncBlock(kAfterState);
  }

  static constexpr bool kCopiesAhead = false;  // see DenoiserStep
  template <class Context>
  DEEPPCR_DEVICE Context& CopyingThreads(Context& context) const {
    return context;
  }
  // Evaluates the denoiser: its output for row 0 is Prediction(i), until the next step.
  DEEPPCR_DEVICE void Predict(const ProgramStepView& step) const { Evaluate(step); }
  DEEPPCR_DEVICE float Prediction(int i) const { return prediction_(0, i); }
  DEEPPCR_DEVICE float Clip(float x0) const { return ClipTo(view_.clip_range, x0); }
  // The scale of the noise of element i at a step, of which the prediction has the v.
  DEEPPCR_DEVICE float NoiseScaleOf(int64_t step, int i) const {
    if (view_.noise_scale == NoiseScale::kFixed) return 1.0F;
    const float v = Prediction(view_.sample_dim + i);
    if (view_.noise_scale == NoiseScale::kLearned)
      return sqrtf(fmaxf(v, static_cast<float>(kLeastVariance)));
    const int part = static_cast<int>(StepPart::kSpread);
    return expf(view_.coefficients[step * view_.parts + part].z_z * v);
  }

 private:
  DEEPPCR_DEVICE void Evaluate(const ProgramStepView& step) const {
    if (runner_.rows().probes > 0) {
      runner_.ForElements(cols(),
                          [&](int i) { state_(runner_.rows().sizes(), i) = fabsf(state_(0, i)); });
      context_.SyncBlock(kAfterState);
    }
    runner_.Run(step);
  }

  typename Team::Context& context_;
  const SectionRunner<S, Team, Code, Layers> runner_;
  const FrameVectors state_, next_, prediction_;
  const ProgramView& view_;
};

// ---- What a condition gives
// Rows of a section that depends on the condition, for n samples: one a sample, or one a sample and
// step. Pointers are to device memory.
struct ConditionArgs {
  ProgramView process;
  ProgramSection section;
  int32_t num_exports;
  const ProgramExport* exports;   // what the section writes to its row
  ProgramValue condition, label;  // in its frame; of size 0: not there
  bool per_step;                  // a row of process.mixed_floats for each step
  const float* inputs;            // [n, input_stride]
  int64_t input_stride;
  const float* labels;  // [n]
  float* conditions;    // [n, process.given_floats()]
};

enum ConditionSite : int { kAfterConditionInputs = 64, kNumConditionSites };

// Body of a launch of one block per sample, or per sample and step, with FrameFloats(section, 1)
// floats of shared memory.
template <class Context>
DEEPPCR_DEVICE void GiveCondition(Context& context, const ConditionArgs& args) {
  const ProgramView& process = args.process;
  const int64_t at = context.cluster();
  const int64_t sample = args.per_step ? at / process.num_steps : at;
  const int64_t step = args.per_step ? at % process.num_steps : 0;
  const SectionRunner<1, BlockTeam<Context>, Interpreted> runner(
      BlockTeam<Context>(context), args.section, SharedFloats(context), 1, false,
      process.clip_range);
  const auto place = [&](const ProgramValue& value, const float* from) {
    if (value.size == 0) return;
    runner.ForElements(PanelWidth(value.size),
                       [&](int i) { runner.At(value)(0, i) = i < value.size ? from[i] : 0.0F; });
  };
  place(args.condition, args.inputs + sample * args.input_stride);
  place(args.label, args.labels + sample);
  context.SyncBlock(kAfterConditionInputs);
  runner.Run(process.StepsOf(sample).At(step));
  float* const row = args.conditions + sample * process.given_floats() +
                     (args.per_step ? process.condition_floats + step * process.mixed_floats : 0);
  for (int e = 0; e < args.num_exports; ++e) {
    const ProgramExport& value = args.exports[e];
    runner.ForElements(value.from.size,
                       [&](int i) { row[value.to + i] = runner.At(value.from)(0, i); });
  }
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_KERNEL_H_
