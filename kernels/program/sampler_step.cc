// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/sampler_step.h"

#include <array>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr::program {
namespace {

// [a, b].
absl::StatusOr<ValueId> Joined(ProgramBuilder& builder, ValueId a, ValueId b) {
  std::vector<Element> elements;
  for (const int32_t operand : {0, 1}) {
    const int64_t size = builder.at(operand == 0 ? a : b).size;
    for (int64_t i = 0; i < size; ++i) elements.push_back({operand, i});
  }
  return builder.AddArrange({{a, b}}, std::move(elements));
}

// The noise of a step times the scale that v gives.
absl::StatusOr<ValueId> ScaledNoise(ProgramBuilder& builder, ValueId z, ValueId m, ValueId v,
                                    NoiseScale kind) {
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId noise, builder.AddReverseStep(z, m, StepPart::kNoise));
  ValueId scale = kNoValue;
  if (kind == NoiseScale::kLearnedRange) {
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId spread, builder.AddReverseStep(v, m, StepPart::kSpread));
    DEEPPCR_ASSIGN_OR_RETURN(scale, builder.AddElementwise(Op::kExp, {{spread}}));
  } else {
    const auto size = static_cast<size_t>(builder.at(v).size);
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId least,
                             builder.AddConstant(std::vector<double>(size, kLeastVariance)));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId variance,
                             builder.AddElementwise(Op::kMaximum, {{v, least}}));
    DEEPPCR_ASSIGN_OR_RETURN(scale, builder.AddElementwise(Op::kSqrt, {{variance}}));
  }
  return builder.AddElementwise(Op::kMultiply, {{noise, scale}});
}

}  // namespace

absl::StatusOr<ValueId> AddSamplerState(ProgramBuilder& builder, int64_t dim, bool carries) {
  DEEPPCR_RETURN_IF_ERROR(builder.AddState(carries ? 2 * dim : dim).status());
  return SamplerStateOf(builder, carries);
}

absl::StatusOr<ValueId> SamplerStateOf(ProgramBuilder& builder, bool carries) {
  const ValueId state = builder.program().state;
  if (!carries) return state;
  return builder.AddPart(state, 0, builder.at(state).size / 2);
}

absl::StatusOr<Program> FinishSampler(ProgramBuilder& builder, ValueId z, ValueId prediction,
                                      const SamplerForm& form) {
  const int64_t dim = builder.at(z).size;
  if (form == SamplerForm{}) {
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId next, builder.AddReverseStep(z, prediction));
    return builder.Finish(next, prediction);
  }
  if (builder.at(prediction).size != PredictionSize(dim, form))
    return InvalidArgument("the denoiser makes ", builder.at(prediction).size, " values, not ",
                           PredictionSize(dim, form), ", of a state of ", dim);
  const bool learned = form.noise_scale != NoiseScale::kFixed;
  ValueId m = prediction;
  if (learned) {
    DEEPPCR_ASSIGN_OR_RETURN(m, builder.AddPart(prediction, 0, dim));
  }
  DEEPPCR_ASSIGN_OR_RETURN(
      ValueId next, builder.AddReverseStep(z, m, learned ? StepPart::kMean : StepPart::kState));
  if (learned) {
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId v, builder.AddPart(prediction, dim, dim));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId noise, ScaledNoise(builder, z, m, v, form.noise_scale));
    DEEPPCR_ASSIGN_OR_RETURN(next, builder.AddElementwise(Op::kAdd, {{next, noise}}));
  }
  if (!form.carries) return builder.Finish(next, prediction);
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId c, builder.AddPart(builder.program().state, dim, dim));
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId recalled, builder.AddReverseStep(c, m, StepPart::kRecall));
  DEEPPCR_ASSIGN_OR_RETURN(next, builder.AddElementwise(Op::kAdd, {{next, recalled}}));
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId memory, builder.AddReverseStep(z, m, StepPart::kMemory));
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId state, Joined(builder, next, memory));
  return builder.Finish(state, prediction);
}

}  // namespace deeppcr::program
