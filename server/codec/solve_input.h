// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CODEC_SOLVE_INPUT_H_
#define DEEPPCR_SERVER_CODEC_SOLVE_INPUT_H_

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/engine.h"
#include "server/codec/tensor_codec.h"

namespace deeppcr {

// The names that errors give to a request's fields, where protocols differ. Static storage.
struct FieldNames {
  std::string_view options;   // the solver's options
  std::string_view settings;  // prefix of the numbers of a generation: num_samples, seed, ...
  std::string_view tensors;   // prefix of the labels and tensors of a generation
  // Of requests for gradients.
  std::string_view cotangents = "cotangents";
  std::string_view final_cotangents = "final_state_cotangents";
  std::string_view way = "way";
  std::string_view way_interval = "shooting_interval";
  std::string_view handle = "trajectory_handle";
  std::string_view loss = "loss";
  std::string_view estimate_error = "estimate_error";

  FieldName Setting(std::string_view name) const { return {settings, name}; }
  FieldName Tensor(std::string_view name) const { return {tensors, name}; }
};
inline constexpr FieldNames kV1Fields = {"options", "input.", "input."};
// Of Compare and Gradient, which take inputs or a generation.
inline constexpr FieldNames kSourceFields = {"options", "generation.", "generation."};
inline constexpr FieldNames kV2Fields = {"parameters",
                                         "parameters.",
                                         "",
                                         "cotangent_outputs",
                                         "cotangent_latents",
                                         "parameters.way",
                                         "parameters.way_interval",
                                         "parameters.trajectory_handle",
                                         "parameters.loss",
                                         "parameters.estimate_error"};
// Of the v2 protocol's requests for gradients of a diffusion model.
inline constexpr FieldNames kV2SampleFields = [] {
  FieldNames names = kV2Fields;
  names.cotangents = "cotangent_samples";
  return names;
}();

// What noise, drawn or given, becomes: scale * min(max(noise, -clip), clip).
struct NoiseShape {
  double scale = 1;                                       // in [0, 1000]
  double clip = std::numeric_limits<double>::infinity();  // above 0

  bool operator==(const NoiseShape&) const = default;
};

// What a request for samples says about its process beside condition and noise. Values of a row per
// sample may have one row for all.
struct GenerationControls {
  double guidance_scale = 1;
  TensorInput null_condition;  // [n or 1, input_dim], or empty: the model's
  NoiseShape initial_noise, step_noise;
  std::vector<int32_t> known_elements;  // [k] of the state
  TensorInput known_values;             // [n or 1, k]
  std::vector<float> lower, upper;      // [output_dim], or empty
};

// The decoded request of Forward, Generate or Compare, or the part of Gradient that is solved.
struct SolveInput {
  FieldNames names = kV1Fields;
  bool generates = false;  // a generation: `inputs` are its conditioning vectors
  int64_t num_samples = 0;
  TensorInput inputs;          // [n, input_dim]
  TensorInput initial_states;  // [n, L + 1, D] or empty
  // For diffusion models only, up to step_noise.
  uint64_t seed = 0;
  uint64_t first_sample = 0;
  std::vector<int32_t> labels;            // [n] or empty
  TensorInput initial_noise, step_noise;  // [n, D], [n, L, D], or empty
  GenerationControls controls;
  SystemKey system;       // what solves it; 0 steps: the default
  int64_t num_steps = 0;  // L, of that system
  // What follows from the fields above, see CompleteGeneration; empty: they are taken as they are.
  std::vector<float> varied_inputs, shaped_initial_noise, shaped_step_noise;
  int64_t made_bytes = 0;  // of these, a part of scratch_bytes

  SolveOptions options;           // solver points into SolverNames(); for Compare see CompareInput
  bool keeps_trajectory = false;  // for a following Gradient
  std::optional<std::chrono::microseconds> timeout;  // set by the request, beside its deadline
  int64_t reply_bytes = 0;                           // upper bound
  int64_t scratch_bytes = 0;  // held beside request and reply until it is computed

  // Views of this object and the message.
  SampleInputs Samples() const {
    const auto either = [](const std::vector<float>& made, const TensorInput& given) {
      return made.empty() ? given.values : std::span<const float>(made);
    };
    return {.num_samples = num_samples,
            .inputs = either(varied_inputs, inputs),
            .seed = seed,
            .first_sample = first_sample,
            .labels = labels,
            .initial_noise = either(shaped_initial_noise, initial_noise),
            .step_noise = either(shaped_step_noise, step_noise),
            .initial_states = initial_states.values};
  }
};

struct CompareInput {
  SolveInput request;
  std::vector<SolveOptions>
      rows;  // as asked; if none of them is sequential, a sequential one is put first
  bool sequential_added = false;  // the first row is not part of the reply
  int repetitions = 0;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CODEC_SOLVE_INPUT_H_
