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

// Writes layers whose numbers are constants, or parameters where their places are given.
class LayerWriter {
 public:
  LayerWriter(const std::span<const TensorPlace>* places, const ProgramLimits& limits)
      : builder(limits), places_(places) {}

  // W x + b.
  absl::StatusOr<ValueId> Layer(const DenseSpec& layer, ValueId x) {
    const LinearLayer sizes = {.rows = layer.rows, .cols = layer.cols};
    if (places_ == nullptr) {
      LinearLayer constant = sizes;
      constant.weight = Copy(layer.weight);
      if (!layer.bias.empty()) constant.bias = Copy(layer.bias);
      return builder.AddLinear(x, constant);
    }
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId weight, Parameter(layer.weight));
    ValueId bias = kNoValue;
    if (!layer.bias.empty()) {
      DEEPPCR_ASSIGN_OR_RETURN(bias, Parameter(layer.bias));
    }
    return builder.AddProduct(x, weight, bias, sizes);
  }
  // Row `index` of a table.
  absl::StatusOr<ValueId> Lookup(std::span<const float> table, const LinearLayer& sizes,
                                 ValueId index) {
    LinearLayer rows = sizes;
    if (places_ == nullptr) {
      rows.weight = Copy(table);
      return builder.AddLookup(index, rows);
    }
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId id, Parameter(table));
    return builder.AddLookup(index, id, rows);
  }
  absl::StatusOr<ValueId> Vector(std::span<const float> numbers) {
    return places_ == nullptr ? builder.AddConstant({numbers.begin(), numbers.end()})
                              : Parameter(numbers);
  }

  ProgramBuilder builder;

 private:
  // Tensors lie in the storage as they lie in the spans over it.
  absl::StatusOr<ValueId> Parameter(std::span<const float> numbers) {
    std::vector<ParameterSlice> slices;
    for (const TensorPlace& place : *places_) {
      const float* const at = place.numbers.data();
      if (at >= numbers.data() && at < numbers.data() + numbers.size())
        slices.push_back({place.tensor, std::ssize(place.numbers)});
    }
    return builder.AddParameter(Copy(numbers), std::ssize(numbers), /*per_step=*/false,
                                std::move(slices));
  }

  const std::span<const TensorPlace>* const places_;
};

class Writer {
 public:
  // `parameters` may be null: numbers are constants then.
  Writer(const DiffusionSpec& spec, const DenoiserParameters* parameters,
         const ProgramLimits& limits)
      : spec_(spec),
        parameters_(parameters),
        layers_(parameters == nullptr ? nullptr : &parameters->places, limits),
        builder_(layers_.builder) {}

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
  absl::StatusOr<ValueId> TimeEmbedding() {
    const int64_t width = spec_.denoiser.hidden_dim;
    if (parameters_ != nullptr) return EmbeddingOfTime(*parameters_);
    auto rows = std::make_shared<std::vector<float>>(spec_.time_embedding.size());
    std::ranges::transform(spec_.time_embedding, rows->begin(),
                           [](double value) { return static_cast<float>(value); });
    return builder_.AddStacked(std::move(rows), width);
  }
  absl::StatusOr<ValueId> EmbeddingOfTime(const DenoiserParameters& of) {
    const size_t half = of.frequencies.size();
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId time, builder_.AddTime());
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId times,
                             builder_.AddArrange({{time}}, std::vector<Element>(half)));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId frequencies, builder_.AddConstant(of.frequencies));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId angles,
                             builder_.AddElementwise(Op::kMultiply, {{times, frequencies}}));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId cosines, builder_.AddElementwise(Op::kCos, {{angles}}));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId sines, builder_.AddElementwise(Op::kSin, {{angles}}));
    std::vector<Element> both;
    for (const int32_t part : {0, 1})
      for (size_t j = 0; j < half; ++j) both.push_back({part, static_cast<int64_t>(j)});
    DEEPPCR_ASSIGN_OR_RETURN(ValueId y, builder_.AddArrange({{cosines, sines}}, std::move(both)));
    DEEPPCR_ASSIGN_OR_RETURN(y, Layer(of.time_first, y));
    DEEPPCR_ASSIGN_OR_RETURN(y, builder_.AddElementwise(Op::kSilu, {{y}}));
    return Layer(of.time_second, y);
  }

  // The embedding of the time + that of the condition.
  absl::StatusOr<ValueId> Conditioning() {
    const int64_t width = spec_.denoiser.hidden_dim;
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId y, TimeEmbedding());
    if (spec_.num_classes > 0) {
      DEEPPCR_ASSIGN_OR_RETURN(const ValueId label, builder_.AddLabel());
      DEEPPCR_ASSIGN_OR_RETURN(
          const ValueId of_class,
          layers_.Lookup(spec_.class_embedding, {.rows = spec_.num_classes, .cols = width}, label));
      return builder_.AddElementwise(Op::kAdd, {{y, of_class}});
    }
    if (spec_.condition.rows == 0) return y;
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId c, builder_.AddCondition(spec_.condition.cols));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId of_vector, Layer(spec_.condition, c));
    return builder_.AddElementwise(Op::kAdd, {{y, of_vector}});
  }

  absl::StatusOr<ValueId> Layer(const DenseSpec& layer, ValueId x) {
    return layers_.Layer(layer, x);
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
    return builder_.AddPart(modulation_, p * width, width);
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
    const auto vector = [&](std::span<const float> x) {
      return layers_.Vector(x.subspan(*norm * width, width));
    };
    if (norm.has_value()) {
      DEEPPCR_ASSIGN_OR_RETURN(const ValueId weight, vector(net.norm_weight));
      DEEPPCR_ASSIGN_OR_RETURN(const ValueId bias, vector(net.norm_bias));
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
  const DenoiserParameters* const parameters_;
  LayerWriter layers_;
  ProgramBuilder& builder_;
  ValueId modulation_ = kNoValue;
};

}  // namespace

absl::StatusOr<Program> ProgramOfDenoiser(const DiffusionSpec& spec, const ProgramLimits& limits) {
  return Writer(spec, nullptr, limits).Run();
}

absl::StatusOr<Program> ParameterProgramOfDenoiser(const DiffusionSpec& spec,
                                                   const DenoiserParameters& parameters,
                                                   const ProgramLimits& limits) {
  return Writer(spec, &parameters, limits).Run();
}

absl::StatusOr<Program> ParameterProgramOfLayers(std::span<const DenseSpec> layers,
                                                 std::span<const TensorPlace> places,
                                                 const ProgramLimits& limits) {
  LayerWriter writer(&places, limits);
  DEEPPCR_ASSIGN_OR_RETURN(ValueId y, writer.builder.AddState(layers.front().cols));
  for (const DenseSpec& layer : layers) {
    DEEPPCR_ASSIGN_OR_RETURN(y, writer.Layer(layer, y));
    DEEPPCR_ASSIGN_OR_RETURN(y, AddActivation(writer.builder, layer.activation, y));
  }
  return writer.builder.FinishLayers(y);
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
