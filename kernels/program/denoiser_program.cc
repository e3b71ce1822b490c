// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/denoiser_program.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/activation.h"
#include "kernels/program/sampler_step.h"

namespace deeppcr::program {
namespace {

using Numbers = std::shared_ptr<const std::vector<float>>;

Numbers Copy(std::span<const float> from) {
  return std::make_shared<std::vector<float>>(from.begin(), from.end());
}

class Writer {
 public:
  Writer(const DiffusionSpec& spec, const ProgramLimits& limits) : spec_(spec), builder_(limits) {}

  absl::StatusOr<Program> Run() {
    const DenoiserSpec& net = spec_.denoiser;
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId z,
                             AddSamplerState(builder_, spec_.state_dim, spec_.form.carries));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId y, Conditioning());
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId active, builder_.AddElementwise(Op::kSilu, {{y}}));
    DEEPPCR_ASSIGN_OR_RETURN(modulation_, Layer(net.modulation, active));
    DEEPPCR_ASSIGN_OR_RETURN(ValueId h, Layer(net.input, z));
    for (int64_t i = 0; i < net.num_blocks; ++i) {
      DEEPPCR_ASSIGN_OR_RETURN(
          h, net.kind == DenoiserKind::kResidualMlp ? ResidualBlock(h, i) : AdaLnBlock(h, i));
    }
    if (net.kind == DenoiserKind::kAdaLnMlp) {
      DEEPPCR_ASSIGN_OR_RETURN(h, Modulated(h, std::nullopt, 3 * net.num_blocks));
    }
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId m, Layer(net.output, h));
    return FinishSampler(builder_, z, m, spec_.form);
  }

 private:
  // time_embedding[step] + condition.
  absl::StatusOr<ValueId> Conditioning() {
    const int64_t width = spec_.denoiser.hidden_dim;
    auto rows = std::make_shared<std::vector<float>>(spec_.time_embedding.size());
    std::ranges::transform(spec_.time_embedding, rows->begin(),
                           [](double value) { return static_cast<float>(value); });
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId y, builder_.AddStacked(std::move(rows), width));
    if (spec_.num_classes > 0) {
      DEEPPCR_ASSIGN_OR_RETURN(const ValueId label, builder_.AddLabel());
      DEEPPCR_ASSIGN_OR_RETURN(const ValueId of_class,
                               builder_.AddLookup(label, {.rows = spec_.num_classes,
                                                          .cols = width,
                                                          .weight = Copy(spec_.class_embedding)}));
      return builder_.AddElementwise(Op::kAdd, {{y, of_class}});
    }
    if (spec_.condition.rows == 0) return y;
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId c, builder_.AddCondition(spec_.condition.cols));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId of_vector, Layer(spec_.condition, c));
    return builder_.AddElementwise(Op::kAdd, {{y, of_vector}});
  }

  absl::StatusOr<ValueId> Layer(const DenseSpec& layer, ValueId x) {
    return builder_.AddLinear(x, {.rows = layer.rows,
                                  .cols = layer.cols,
                                  .weight = Copy(layer.weight),
                                  .bias = layer.bias.empty() ? nullptr : Copy(layer.bias)});
  }
  // Layer i of a stack of square ones.
  absl::StatusOr<ValueId> BlockLayer(std::span<const float> weights, std::span<const float> biases,
                                     int64_t i, ValueId x) {
    const int64_t width = spec_.denoiser.hidden_dim;
    return Layer({.rows = width,
                  .cols = width,
                  .weight = weights.subspan(i * width * width, width * width),
                  .bias = biases.empty() ? biases : biases.subspan(i * width, width)},
                 x);
  }

  // Part p of mu, [H].
  absl::StatusOr<ValueId> Part(int64_t p) {
    const int64_t width = spec_.denoiser.hidden_dim;
    std::vector<Element> elements;
    for (int64_t k = 0; k < width; ++k) elements.push_back({0, p * width + k});
    return builder_.AddArrange({{modulation_}}, std::move(elements));
  }

  absl::StatusOr<ValueId> ResidualBlock(ValueId h, int64_t i) {
    const DenoiserSpec& net = spec_.denoiser;
    DEEPPCR_ASSIGN_OR_RETURN(ValueId branch, BlockLayer(net.first_weight, net.first_bias, i, h));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId mu, Part(i));
    DEEPPCR_ASSIGN_OR_RETURN(branch, builder_.AddElementwise(Op::kAdd, {{branch, mu}}));
    DEEPPCR_ASSIGN_OR_RETURN(branch, AddActivation(builder_, spec_.denoiser.activation, branch));
    return builder_.AddElementwise(Op::kAdd, {{h, branch}});
  }

  // norm(h) (1 + scale) + shift, with the norm of block `norm`; parts shift, scale from `part` on.
  absl::StatusOr<ValueId> Modulated(ValueId h, std::optional<int64_t> norm, int64_t part) {
    const DenoiserSpec& net = spec_.denoiser;
    const int64_t width = net.hidden_dim;
    DEEPPCR_ASSIGN_OR_RETURN(
        ValueId u, builder_.AddAlongAxis(Op::kStandardize, h, {.length = width}, kNormEpsilon));
    const auto constant = [&](std::span<const float> x) {
      const auto of_block = x.subspan(*norm * width, width);
      return builder_.AddConstant({of_block.begin(), of_block.end()});
    };
    if (norm.has_value()) {
      DEEPPCR_ASSIGN_OR_RETURN(const ValueId weight, constant(net.norm_weight));
      DEEPPCR_ASSIGN_OR_RETURN(const ValueId bias, constant(net.norm_bias));
      DEEPPCR_ASSIGN_OR_RETURN(u, builder_.AddElementwise(Op::kMultiply, {{u, weight}}));
      DEEPPCR_ASSIGN_OR_RETURN(u, builder_.AddElementwise(Op::kAdd, {{u, bias}}));
    }
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId shift, Part(part));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId scale, Part(part + 1));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId one,
                             builder_.AddConstant(std::vector<double>(width, 1.0)));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId gain, builder_.AddElementwise(Op::kAdd, {{scale, one}}));
    DEEPPCR_ASSIGN_OR_RETURN(u, builder_.AddElementwise(Op::kMultiply, {{u, gain}}));
    return builder_.AddElementwise(Op::kAdd, {{u, shift}});
  }

  absl::StatusOr<ValueId> AdaLnBlock(ValueId h, int64_t i) {
    const DenoiserSpec& net = spec_.denoiser;
    DEEPPCR_ASSIGN_OR_RETURN(ValueId u, Modulated(h, i, 3 * i));
    DEEPPCR_ASSIGN_OR_RETURN(u, BlockLayer(net.first_weight, net.first_bias, i, u));
    DEEPPCR_ASSIGN_OR_RETURN(u, AddActivation(builder_, spec_.denoiser.activation, u));
    DEEPPCR_ASSIGN_OR_RETURN(u, BlockLayer(net.second_weight, net.second_bias, i, u));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId gate, Part(3 * i + 2));
    DEEPPCR_ASSIGN_OR_RETURN(u, builder_.AddElementwise(Op::kMultiply, {{u, gate}}));
    return builder_.AddElementwise(Op::kAdd, {{h, u}});
  }

  const DiffusionSpec& spec_;
  ProgramBuilder builder_;
  ValueId modulation_ = kNoValue;
};

}  // namespace

absl::StatusOr<Program> ProgramOfDenoiser(const DiffusionSpec& spec, const ProgramLimits& limits) {
  return Writer(spec, limits).Run();
}

DiffusionProgramSpec WithProgram(const DiffusionSpec& spec, const Program& program) {
  return {.state_dim = spec.state_dim,
          .steps = spec.steps,
          .clip_range = spec.clip_range,
          .initial_scale = spec.initial_scale,
          .form = spec.form,
          .program = &program,
          .step_weights = spec.step_weights(),
          .condition_dim = spec.input_dim(),
          .num_classes = spec.num_classes,
          .decoder = spec.decoder};
}

}  // namespace deeppcr::program
