// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_FUZZ_REQUEST_CHECKS_H_
#define DEEPPCR_TESTS_FUZZ_REQUEST_CHECKS_H_

// Models as the codec sees them, and the properties of a request that the codec accepts.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>

#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "server/codec/generation_controls.h"
#include "server/codec/gradient_codec.h"
#include "server/codec/request_codec.h"
#include "server/codec/wire.h"
#include "tests/fuzz/fuzz_target.h"

namespace deeppcr::fuzz {

inline constexpr int64_t kMaxMessageBytes = 1 << 20;

inline const ModelInfo& Info() {
  static const ModelInfo& info = *[] {
    auto* model = new ModelInfo();
    model->model_type = "resnet";
    model->input_dim = 2;
    model->output_dim = 3;
    model->state_dim = 2;
    model->num_layers = 4;
    model->max_batch_size = 4;
    for (const std::string_view name : SolverNames()) model->solvers.emplace_back(name);
    model->parameters = {{"layers.weight", {4, 2, 2}}, {"output.bias", {3}}};
    return model;
  }();
  return info;
}

// A class-conditional diffusion model with several numbers of steps; the default is neither the
// smallest nor the largest.
inline const ModelInfo& ClassInfo() {
  static const ModelInfo& info = *[] {
    auto* model = new ModelInfo(Info());
    model->model_type = "diffusion";
    model->parameters.clear();
    model->input_dim = 0;
    model->has_decoder = true;
    model->num_classes = 3;
    model->num_inference_steps = {4, 2, 6};
    model->solvers = {"sequential", "newton", "picard", "jacobi", "auto"};
    return model;
  }();
  return info;
}

inline const ModelInfo& ConditionInfo() {
  static const ModelInfo& info = *[] {
    auto* model = new ModelInfo(ClassInfo());
    model->input_dim = 2;
    model->has_decoder = false;
    model->num_classes = 0;
    model->max_inference_steps = 9;
    model->draws_step_noise = true;
    return model;
  }();
  return info;
}

inline bool Accepts(const ModelInfo& info, std::string_view solver) {
  return std::find(info.solvers.begin(), info.solvers.end(), solver) != info.solvers.end();
}

inline void RequireOptions(const SolveOptions& options, const ModelInfo& info, int64_t num_steps) {
  Require(Accepts(info, options.solver), "the solver is one that the model takes");
  Require(options.rtol >= 1e-7 && options.rtol <= 0.1, "rtol is in its range");
  Require(options.atol >= 0 && options.atol <= 1, "atol is in its range");
  Require(options.max_iterations >= 0 && options.max_iterations <= 10000,
          "max_iterations is in its range");
  Require(options.shooting_interval >= 0 && options.shooting_interval <= num_steps,
          "shooting_interval is in its range");
  Require(options.warm_sweeps >= -1 && options.warm_sweeps <= 64, "warm_sweeps is in its range");
  Require(options.initial_guess <= InitialGuess::kPrevious, "initial_guess is one of the enum");
  Require(options.initial_guess != InitialGuess::kCoarse || info.generates(),
          "a coarse guess is for diffusion models");
  Require(options.jacobian_refresh <= JacobianRefresh::kWhileContracting,
          "jacobian_refresh is one of the enum");
  Require(options.on_no_convergence <= OnNoConvergence::kError,
          "on_no_convergence is one of the enum");
}

// Requires a view of `samples` times `inner` floats in the message, finite if CheckFinite says so.
// Reads every value, so that AddressSanitizer sees each access.
inline void RequireTensor(const v1::Tensor& message, std::span<const float> values, int64_t samples,
                          int64_t inner) {
  Require(static_cast<int64_t>(values.size()) == samples * inner, "a tensor has its shape's size");
  Require(values.size_bytes() == message.data().size(), "a tensor has exactly the message's bytes");
  const bool finite = CheckFinite(values, "field").ok();
  bool really_finite = true;
  for (const float value : values) really_finite &= std::isfinite(value);
  Require(finite == really_finite, "values that pass the check are finite");
}

inline void RequireInitialStates(const v1::Tensor& message, const SolveInput& input,
                                 const ModelInfo& info) {
  const bool previous = input.options.initial_guess == InitialGuess::kPrevious;
  RequireTensor(message, input.initial_states.values, previous ? input.num_samples : 0,
                (input.num_steps + 1) * info.state_dim);
}

// Requires a bound of the reply that holds at least its tensors.
inline void RequireReply(const SolveInput& input) {
  Require(input.reply_bytes > 0 && input.reply_bytes <= kMaxMessageBytes,
          "the reply fits into a message");
  int64_t values = 3 * input.num_samples;
  if (input.options.return_trajectory) values += input.num_samples * (input.num_steps + 1) * 2;
  Require(input.reply_bytes >= 4 * values, "the bound of a reply holds its tensors");
  const int64_t kept = input.keeps_trajectory ? input.num_samples * (input.num_steps + 1) * 2 : 0;
  Require(input.scratch_bytes >= 4 * kept, "the memory of kept states is counted");
}

inline void RequireLabels(const v1::GenerationInput& message, const SolveInput& input,
                          const ModelInfo& info) {
  const auto n = static_cast<size_t>(input.num_samples);
  Require(input.labels.size() == (info.num_classes > 0 ? n : 0), "every sample has its label");
  for (size_t i = 0; i < input.labels.size(); ++i) {
    Require(input.labels[i] >= 0 && input.labels[i] < info.num_classes, "labels are classes");
    const int at = message.class_labels_size() == 1 ? 0 : static_cast<int>(i);
    Require(input.labels[i] == message.class_labels(at), "labels are the message's");
  }
}

inline void RequireGeneration(const v1::GenerationInput& message, const SolveInput& input,
                              const ModelInfo& info) {
  const int64_t n = input.num_samples, steps = input.num_steps, all = input.system.num_steps;
  Require(n >= 1 && n <= info.max_batch_size, "the number of samples is in its range");
  Require(n == std::max(message.num_samples(), 1), "the number of samples is the message's");
  Require(input.seed == message.seed() && input.first_sample == message.first_sample(),
          "seed and first sample are the message's");
  Require(input.first_sample + static_cast<uint64_t>(n) >= static_cast<uint64_t>(n),
          "sample indices do not wrap");
  const auto& listed = info.num_inference_steps;
  Require(std::find(listed.begin(), listed.end(), all) != listed.end() ||
              (all >= 1 && all <= info.max_inference_steps),
          "the model has the number of steps");
  const int64_t wanted = message.num_inference_steps(), first = message.first_step();
  Require(all == (wanted == 0 ? listed[0] : wanted),
          "the number of steps is the message's, or the default");
  Require(first >= 0 && first < all && input.system.first_step == first && steps == all - first,
          "the steps that are made are those that are left");
  RequireLabels(message, input, info);
  const bool one = message.conditioning().shape_size() > 0 && message.conditioning().shape(0) == 1;
  RequireTensor(message.conditioning(), input.inputs.values,
                info.input_dim == 0 ? 0
                : one               ? 1
                                    : n,
                info.input_dim);
  RequireTensor(first > 0 ? message.initial_samples() : message.initial_noise(),
                input.initial_noise.values, first > 0 || message.has_initial_noise() ? n : 0,
                info.state_dim);
  RequireTensor(message.step_noise(), input.step_noise.values, message.has_step_noise() ? n : 0,
                steps * info.state_dim);
}

// Requires what the worker makes of an accepted generation to be what its system takes, and no more
// than was counted.
inline void RequireCompletion(const SolveInput& input, const ModelInfo& info) {
  if (!CheckFinite(input).ok()) return;
  SolveInput made = input;  // its views are those of the input
  CompleteGeneration(info, &made);
  const SampleInputs samples = made.Samples();
  const auto n = static_cast<size_t>(input.num_samples), dim = static_cast<size_t>(info.state_dim);
  const size_t noise = n * static_cast<size_t>(input.num_steps) * dim;
  Require(samples.inputs.size() == n * static_cast<size_t>(VariedInputDim(info, input)),
          "the inputs are those of the system");
  Require(samples.initial_noise.empty() || samples.initial_noise.size() == n * dim,
          "the initial noise is that of the samples");
  Require(samples.step_noise.empty() || samples.step_noise.size() == noise,
          "the noise is that of the steps");
  size_t values = 0;
  for (const auto* of :
       {&made.varied_inputs, &made.shaped_initial_noise, &made.shaped_step_noise}) {
    values += of->size();
    Require(CheckFinite(*of, "made").ok(), "what is made is finite");
  }
  Require(static_cast<size_t>(input.scratch_bytes) >= values * sizeof(float),
          "the memory of what is made is counted");
}

// Checks what DecodeGradient accepted beside the solve.
inline void RequireGradient(const v1::GradientRequest& request, const SolveInput& solve,
                            const GradientInput& input, const ModelInfo& info,
                            bool by_parameters = false) {
  const int64_t n = solve.num_samples, m = input.columns;
  const int64_t states = solve.num_steps + 1;
  Require(m >= 1 && m <= kMostCotangents, "the number of cotangents is in its range");
  Require(input.ranked || m == 1, "several cotangents have an extent of their own");
  RequireTensor(request.cotangents(), input.of_outputs.values, request.has_cotangents() ? n * m : 0,
                info.output_dim);
  RequireTensor(request.final_state_cotangents(), input.of_final.values,
                request.has_final_state_cotangents() ? n * m : 0, info.state_dim);
  RequireTensor(request.trajectory(), input.trajectory.values, request.has_trajectory() ? n : 0,
                states * info.state_dim);
  Require(input.handle == request.trajectory_handle(), "a handle is the message's");
  Require(input.handle.empty() || !request.has_trajectory(), "states are named once");
  Require(input.solves() == (input.handle.empty() && !request.has_trajectory()),
          "known states are not solved for");
  Require(input.solves() || (input.loss == v1::LOSS_UNSPECIFIED && !input.estimates_error &&
                             !solve.keeps_trajectory && !solve.options.return_trajectory),
          "what takes a solve is refused beside known states");
  const bool mse = input.loss == v1::LOSS_MSE, entropy = input.loss == v1::LOSS_CROSS_ENTROPY;
  RequireTensor(request.targets(), input.targets.values, mse ? n : 0, info.output_dim);
  Require(static_cast<int64_t>(input.classes.size()) == (entropy ? n : 0), "a class per sample");
  for (const int32_t label : input.classes)
    Require(label >= 0 && label < info.output_dim, "target classes are outputs");
  const bool cotangents = !input.of_outputs.values.empty() || !input.of_final.values.empty();
  Require((mse || entropy) != cotangents, "either a loss or cotangents go back");
  Require(solve.options.on_no_convergence != OnNoConvergence::kReturn,
          "states that have not converged are refused");
  Require(input.wanted.shooting_interval >= 0 && input.wanted.shooting_interval <= solve.num_steps,
          "the interval of the way back is in its range");
  Require(by_parameters || input.by_inputs || input.by_initial_state || input.by_step_noise,
          "something is wanted");
  Require(!by_parameters || (m == 1 && !input.estimates_error && !info.parameters.empty()),
          "gradients by parameters are one sum, of a model that has some");
  Require(!input.by_inputs || info.input_dim > 0, "gradients by inputs are of models with inputs");
  Require(!input.by_step_noise || info.generates(), "gradients by noise are of models with noise");
  int64_t values = input.by_inputs ? info.input_dim : 0;
  if (input.by_initial_state) values += info.state_dim;
  if (input.by_step_noise) values += solve.num_steps * info.state_dim;
  Require(solve.reply_bytes <= kMaxMessageBytes && solve.reply_bytes >= 4 * n * m * values,
          "the reply fits into a message, and its bound holds its gradients");
  const bool kept = request.has_trajectory() || solve.options.return_trajectory;
  const int64_t of_parameters = by_parameters ? 16 + 3 + n * states * info.state_dim : 0;
  Require(solve.scratch_bytes >= 4 * ((kept ? 0 : n * states * info.state_dim) + of_parameters),
          "the memory of the states is counted");
}

// Checks an input that DecodeForward accepted.
inline void RequireForward(const v1::ForwardRequest& request, const SolveInput& input,
                           const ModelInfo& info) {
  Require(input.num_samples >= 1 && input.num_samples <= info.max_batch_size,
          "the number of samples is in its range");
  RequireTensor(request.inputs(), input.inputs.values, input.num_samples, info.input_dim);
  RequireOptions(input.options, info, input.num_steps);
  RequireInitialStates(request.initial_states(), input, info);
  RequireReply(input);
}

// Checks an input that DecodeGenerate accepted.
inline void RequireGenerate(const v1::GenerateRequest& request, const SolveInput& input,
                            const ModelInfo& info) {
  RequireGeneration(request.input(), input, info);
  RequireCompletion(input, info);
  RequireOptions(input.options, info, input.num_steps);
  RequireInitialStates(request.initial_states(), input, info);
  RequireReply(input);
}

// Parses bytes as the server does.
template <typename Request>
bool Receive(const std::string& bytes, Request* request) {
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()));
  const absl::Status wire = CheckWire(&stream, *Request::descriptor()).status();
  if (!wire.ok()) return RequireCleanRefusal(wire), false;
  if (!request->ParseFromString(bytes)) return false;
  Require(request->SpaceUsedLong() <= 2 * bytes.size() + 256 * (kMaxWireFields + 8),
          "a request takes memory in proportion to its bytes");
  return true;
}

}  // namespace deeppcr::fuzz

#endif  // DEEPPCR_TESTS_FUZZ_REQUEST_CHECKS_H_
