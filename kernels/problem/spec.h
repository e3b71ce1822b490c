// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROBLEM_SPEC_H_
#define DEEPPCR_KERNELS_PROBLEM_SPEC_H_

// Description of a model for backends: plain data, no model classes, so that a backend can be a
// module.

#include <cstdint>
#include <span>
#include <variant>

#include "kernels/problem/activation.h"
#include "kernels/problem/reverse_step.h"

namespace deeppcr::program {
struct Program;
}

namespace deeppcr {

// y = act(W x + b). An absent layer (identity map) has rows == 0.
struct DenseSpec {
  int64_t rows = 0;               // outputs
  int64_t cols = 0;               // inputs
  std::span<const float> weight;  // [rows, cols], row-major
  std::span<const float> bias;    // [rows], or empty for zero
  Activation activation = Activation::kIdentity;
};

// The families `mlp` and `resnet`: z_l = f_l(z_{l-1}), l = 1..L, with
//   f_l(z) = act(W_l z + b_l)             (residual == false)
//   f_l(z) = z + scale * act(W_l z + b_l) (residual == true)
// between an optional input layer z_0 = encode(x) and an optional output layer y = decode(z_L).
struct DenseStackSpec {
  int64_t num_steps = 0;  // L >= 1
  int64_t state_dim = 0;  // D >= 1
  bool residual = false;
  float residual_scale = 1.0F;
  Activation activation = Activation::kIdentity;
  std::span<const float> weights;  // [L, D, D], row-major
  std::span<const float> biases;   // [L, D], or empty for zero
  DenseSpec encode;
  DenseSpec decode;

  int64_t input_dim() const { return encode.rows > 0 ? encode.cols : state_dim; }
  int64_t output_dim() const { return decode.rows > 0 ? decode.rows : state_dim; }
};

enum class DenoiserKind : uint8_t {
  kResidualMlp,
  kAdaLnMlp,  // adaptive layer norm: Peebles and Xie 2023 (arXiv 2212.09748), Li et al. 2024
              // (MAR, arXiv 2406.11838)
};

// The denoiser m(z, step): a network of hidden width H and N blocks, which a step and a condition
// modulate through mu = modulation(silu(y)), y = time_embedding[step] + condition.
//
//   h = input(z)
//   residual MLP, block i:  h <- h + act(first_i h + b_i + mu_i)           mu: N parts of H
//                           m = output(h)
//   adaLN MLP, block i:     u = norm(h; weight_i, bias_i) (1 + scale) + shift
//                           h <- h + gate * (second_i act(first_i u))      mu: per block shift,
//                           m = output(norm(h) (1 + scale) + shift)        scale, gate; at the end
//                                                                          shift, scale
// norm(h) = (h - mean) / sqrt(variance + 1e-6), the variance over H (biased); weight_i and bias_i
// belong to the layer norm of block i, the last norm has no weight and no bias.
struct DenoiserSpec {
  DenoiserKind kind = DenoiserKind::kResidualMlp;
  int64_t hidden_dim = 0;  // H >= 1
  int64_t num_blocks = 0;  // N >= 1
  Activation activation = Activation::kSilu;
  DenseSpec input;                                    // [H, D]
  DenseSpec output;                                   // [D, H]; [2 D, H] with a learned scale
  std::span<const float> first_weight, first_bias;    // [N, H, H], [N, H]
  std::span<const float> second_weight, second_bias;  // [N, H, H], [N, H]; adaLN only
  std::span<const float> norm_weight, norm_bias;      // [N, H]; adaLN only
  DenseSpec modulation;                               // [M, H]

  // M, the length of mu.
  int64_t modulation_dim() const {
    return (kind == DenoiserKind::kResidualMlp ? num_blocks : 3 * num_blocks + 2) * hidden_dim;
  }
  // Number of weights that one evaluation of the denoiser multiplies with, of inputs and outputs of
  // these sizes.
  int64_t weights(int64_t inputs, int64_t outputs) const {
    const int64_t layers = kind == DenoiserKind::kResidualMlp ? num_blocks : 2 * num_blocks;
    return hidden_dim * (layers * hidden_dim + inputs + outputs);
  }
};

inline constexpr double kNormEpsilon = 1e-6;

// The family `diffusion`: z_l = reverse step l of (z_{l-1}, m(z_{l-1}, step l), noise_l), from
// z_0 = initial_scale * noise, rounded to float32; the answer is decoder(z_L). Where the sampler
// carries a memory, the state of the recurrence is [z_l, c_l], with c_0 = 0.
struct DiffusionSpec {
  int64_t state_dim = 0;               // D >= 1, of z
  std::span<const ReverseStep> steps;  // [L], in the order they are made
  double clip_range = 0;               // largest |x0|; infinity for no clip
  float initial_scale = 1.0F;          // finite, above 0
  SamplerForm form;
  DenoiserSpec denoiser;
  std::span<const double> time_embedding;  // [L, H]: y without the condition
  // The condition: at most one of classes and a vector.
  int64_t num_classes = 0;
  std::span<const float> class_embedding;  // [num_classes, H]
  DenseSpec condition;                     // [H, input_dim]; condition by a vector
  // Layers from z_L to the answer; empty if the answer is z_L.
  std::span<const DenseSpec> decoder;

  int64_t num_steps() const { return static_cast<int64_t>(steps.size()); }
  int64_t input_dim() const { return condition.rows > 0 ? condition.cols : 0; }
  int64_t step_weights() const { return denoiser.weights(state_dim, denoiser.output.rows); }
  int64_t output_dim() const { return decoder.empty() ? state_dim : decoder.back().rows; }
};

// The family `diffusion` with a step program in place of a named denoiser: z_l = program(z_{l-1})
// with the timestep, the coefficients and the noise of reverse step l.
struct DiffusionProgramSpec {
  int64_t state_dim = 0;                       // D >= 1, of z
  std::span<const ReverseStep> steps;          // [L], in the order they are made
  double clip_range = 0;                       // largest |x0|; infinity for no clip
  float initial_scale = 1.0F;                  // as in DiffusionSpec
  SamplerForm form;                            // the program's
  const program::Program* program = nullptr;   // kernels/program/sampler_step.h ends it
  int64_t step_weights = 0;                    // that a step multiplies with
  int64_t condition_dim = 0, num_classes = 0;  // at most one is not 0
  std::span<const DenseSpec> decoder;          // as in DiffusionSpec

  int64_t num_steps() const { return static_cast<int64_t>(steps.size()); }
  int64_t input_dim() const { return condition_dim; }
  int64_t output_dim() const { return decoder.empty() ? state_dim : decoder.back().rows; }
};

// The family `stack`: z_l = program(z_{l-1}) with the stacked constants of layer l, l = 1..L,
// between an optional input layer z_0 = encode(x) and an optional output layer y = decode(z_L).
struct StackProgramSpec {
  int64_t num_steps = 0;                      // L >= 1
  int64_t state_dim = 0;                      // D >= 1
  const program::Program* program = nullptr;  // kernels/program/program.h; without a reverse step
  int64_t step_weights = 0;                   // that a step multiplies with
  DenseSpec encode;
  DenseSpec decode;

  int64_t input_dim() const { return encode.rows > 0 ? encode.cols : state_dim; }
  int64_t output_dim() const { return decode.rows > 0 ? decode.rows : state_dim; }
};

using SystemSpec =
    std::variant<DenseStackSpec, DiffusionSpec, DiffusionProgramSpec, StackProgramSpec>;

// Sizes and capabilities of a system: all that solvers and plans know of it. The capabilities stand
// for what a family has, so that no caller asks for the family itself.
struct SystemShape {
  int64_t num_steps = 0;  // L
  int64_t state_dim = 0;  // D, of the recurrence
  // The last elements of the state that are a sampler's memory, which no noise, no denoiser and no
  // decoder knows of.
  int64_t memory_dim = 0;
  int64_t input_dim = 0;     // values per sample of a request; may be 0
  int64_t output_dim = 0;    // values per sample of a reply
  int64_t step_weights = 0;  // that a step multiplies with: what it costs
  int64_t num_classes = 0;   // of labels; 0: takes none
  bool has_decoder = false;  // a reply may have the final states beside its outputs
  // Dense layers before and after the recurrence, of a stack.
  bool has_input_layer = false, has_output_layer = false;
  // The backward pass gives deltas, and the backend the gradients of weights and biases.
  bool has_parameter_gradients = false;
  bool draws_noise = false;  // samples have seeds, and may bring noise of their own
  // Guesses beside the constant one: a run with few steps, or an affine map of z_0 that is fitted
  // at load.
  bool coarse_guess = false;
  bool affine_guess = true;
  bool cheap_diagonal = true;  // the diagonal of a step's Jacobian costs less than the whole
  // Iterations hardly become fewer with longer shooting intervals: only short ones are worth
  // trying.
  bool short_intervals = false;

  // The state without the memory: that of the noise and of the answers without a decoder.
  int64_t sample_dim() const { return state_dim - memory_dim; }

  bool operator==(const SystemShape&) const = default;
};

inline SystemShape ShapeOf(const DenseStackSpec& spec) {
  return {.num_steps = spec.num_steps,
          .state_dim = spec.state_dim,
          .input_dim = spec.input_dim(),
          .output_dim = spec.output_dim(),
          .step_weights = spec.state_dim * spec.state_dim,
          .has_input_layer = spec.encode.rows > 0,
          .has_output_layer = spec.decode.rows > 0,
          .has_parameter_gradients = true};
}
// An affine map of the initial noise would know nothing of the condition and of the noise of the
// steps; the coarse run does.
template <class Spec>
SystemShape ShapeOfDiffusion(const Spec& spec, int64_t step_weights) {
  return {.num_steps = spec.num_steps(),
          .state_dim = spec.form.carries ? 2 * spec.state_dim : spec.state_dim,
          .memory_dim = spec.form.carries ? spec.state_dim : 0,
          .input_dim = spec.input_dim(),
          .output_dim = spec.output_dim(),
          .step_weights = step_weights,
          .num_classes = spec.num_classes,
          .has_decoder = !spec.decoder.empty(),
          .draws_noise = true,
          .coarse_guess = true,
          .affine_guess = false,
          .cheap_diagonal = false,
          .short_intervals = true};
}
inline SystemShape ShapeOf(const DiffusionSpec& spec) {
  return ShapeOfDiffusion(spec, spec.step_weights());
}
inline SystemShape ShapeOf(const DiffusionProgramSpec& spec) {
  return ShapeOfDiffusion(spec, spec.step_weights);
}
inline SystemShape ShapeOf(const StackProgramSpec& spec) {
  return {.num_steps = spec.num_steps,
          .state_dim = spec.state_dim,
          .input_dim = spec.input_dim(),
          .output_dim = spec.output_dim(),
          .step_weights = spec.step_weights,
          .has_input_layer = spec.encode.rows > 0,
          .has_output_layer = spec.decode.rows > 0,
          .cheap_diagonal = false};
}
inline SystemShape ShapeOf(const SystemSpec& spec) {
  return std::visit([](const auto& s) { return ShapeOf(s); }, spec);
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PROBLEM_SPEC_H_
