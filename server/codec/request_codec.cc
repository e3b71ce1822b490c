// SPDX-License-Identifier: Apache-2.0
#include "server/codec/request_codec.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "kernels/base/never_fits.h"
#include "kernels/base/shape.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "server/codec/generation_codec.h"
#include "server/codec/generation_controls.h"
#include "server/models/model_store.h"

namespace deeppcr {
namespace {

// Upper bounds of the bytes of a reply beside its tensors: per sample report, per row, and once.
constexpr int64_t kReportBytes = 256;
constexpr int64_t kRowBytes = 1024;
constexpr int64_t kEnvelopeBytes = 1024;

// Decodes the input vectors of a dense stack, which say how many samples there are.
absl::Status DecodeInputs(bool present, const v1::Tensor& tensor, const ModelInfo& info,
                          SolveInput* input) {
  const ExpectedShape expected = {"inputs", {info.input_dim}};
  if (!present) return Mismatch("inputs", StrCat("a tensor ", expected.Text()), "none");
  DEEPPCR_ASSIGN_OR_RETURN(input->inputs, DecodeTensor(tensor, expected, 1, info.max_batch_size));
  input->num_samples = tensor.shape(0);
  input->num_steps = info.num_layers;
  return absl::OkStatus();
}

absl::StatusOr<std::string_view> DecodeSolver(const std::string& name, const ModelInfo& info,
                                              const FieldName& field) {
  const std::string_view wanted = name.empty() ? std::string_view("auto") : std::string_view(name);
  const bool accepted =
      std::find(info.solvers.begin(), info.solvers.end(), wanted) != info.solvers.end();
  for (const std::string_view known : SolverNames()) {
    if (accepted && known == wanted) return known;
  }
  return Mismatch(field, StrCat("one of ", absl::StrJoin(info.solvers, ", ")), Quoted(name));
}

// An enumerator of a request, and the option that it stands for.
template <typename Wire, typename Option>
struct EnumRow {
  Wire wire;
  Option option;
};
constexpr EnumRow<v1::InitialGuess, InitialGuess> kGuesses[] = {
    {v1::INITIAL_GUESS_UNSPECIFIED, InitialGuess::kFromPlan},
    {v1::INITIAL_GUESS_CONSTANT, InitialGuess::kConstant},
    {v1::INITIAL_GUESS_CALIBRATED, InitialGuess::kCalibrated},
    {v1::INITIAL_GUESS_PREVIOUS, InitialGuess::kPrevious},
    {v1::INITIAL_GUESS_COARSE, InitialGuess::kCoarse},
};
constexpr EnumRow<v1::JacobianRefresh, JacobianRefresh> kRefreshes[] = {
    {v1::JACOBIAN_REFRESH_UNSPECIFIED, JacobianRefresh::kFromPlan},
    {v1::JACOBIAN_REFRESH_EVERY_ITERATION, JacobianRefresh::kEveryIteration},
    {v1::JACOBIAN_REFRESH_WHILE_CONTRACTING, JacobianRefresh::kWhileContracting},
};
constexpr EnumRow<v1::OnNoConvergence, OnNoConvergence> kActions[] = {
    {v1::ON_NO_CONVERGENCE_UNSPECIFIED, OnNoConvergence::kFallback},
    {v1::ON_NO_CONVERGENCE_FALLBACK, OnNoConvergence::kFallback},
    {v1::ON_NO_CONVERGENCE_RETURN, OnNoConvergence::kReturn},
    {v1::ON_NO_CONVERGENCE_ERROR, OnNoConvergence::kError},
};

template <typename Wire, typename Option, size_t N>
absl::StatusOr<Option> DecodeEnum(const EnumRow<Wire, Option> (&rows)[N], Wire value,
                                  const FieldName& field) {
  for (const EnumRow<Wire, Option>& row : rows) {
    if (row.wire == value) return row.option;
  }
  return Mismatch(field, StrCat("a value of ", google::protobuf::GetEnumDescriptor<Wire>()->name()),
                  static_cast<int>(value));
}

absl::Status DecodeNumbers(const v1::SolverOptions& message, int64_t num_steps,
                           std::string_view prefix, SolveOptions* options) {
  const auto field = [&](std::string_view name) { return FieldName(prefix, name); };
  if (message.has_rtol()) options->rtol = message.rtol();
  if (message.has_atol()) options->atol = message.atol();
  DEEPPCR_RETURN_IF_ERROR(CheckRange(field(".rtol"), options->rtol, 1e-7, 0.1));
  DEEPPCR_RETURN_IF_ERROR(CheckRange(field(".atol"), options->atol, 0.0, 1.0));
  if (message.has_max_iterations()) {
    options->max_iterations = message.max_iterations();
    DEEPPCR_RETURN_IF_ERROR(
        CheckRange(field(".max_iterations"), options->max_iterations, 1, 10000));
  }
  options->shooting_interval = message.shooting_interval();
  const auto longest = static_cast<int32_t>(std::min<int64_t>(num_steps, INT32_MAX));
  DEEPPCR_RETURN_IF_ERROR(
      CheckRange(field(".shooting_interval"), options->shooting_interval, 0, longest));
  if (message.has_warm_sweeps()) {
    options->warm_sweeps = message.warm_sweeps();
    DEEPPCR_RETURN_IF_ERROR(CheckRange(field(".warm_sweeps"), options->warm_sweeps, 0, 64));
  }
  return absl::OkStatus();
}

absl::Status DecodeOptions(const v1::SolverOptions& message, const ModelInfo& info,
                           int64_t num_steps, std::string_view prefix, SolveOptions* options) {
  const auto field = [&](std::string_view name) { return FieldName(prefix, name); };
  DEEPPCR_ASSIGN_OR_RETURN(options->solver, DecodeSolver(message.solver(), info, field(".solver")));
  DEEPPCR_RETURN_IF_ERROR(DecodeNumbers(message, num_steps, prefix, options));
  DEEPPCR_ASSIGN_OR_RETURN(options->initial_guess,
                           DecodeEnum(kGuesses, message.initial_guess(), field(".initial_guess")));
  if (options->initial_guess == InitialGuess::kCoarse && !info.generates()) {
    return Mismatch(field(".initial_guess"),
                    "CONSTANT, CALIBRATED or PREVIOUS, as this is no diffusion model", "COARSE");
  }
  DEEPPCR_ASSIGN_OR_RETURN(
      options->jacobian_refresh,
      DecodeEnum(kRefreshes, message.jacobian_refresh(), field(".jacobian_refresh")));
  DEEPPCR_ASSIGN_OR_RETURN(
      options->on_no_convergence,
      DecodeEnum(kActions, message.on_no_convergence(), field(".on_no_convergence")));
  options->return_trajectory = message.return_trajectory();
  return absl::OkStatus();
}

absl::Status CheckReplyBytes(int64_t bytes, int64_t max_message_bytes) {
  if (bytes <= max_message_bytes) return absl::OkStatus();
  return NeverFits("the reply would have ", bytes, " bytes; the limit is ", max_message_bytes,
                   ". Ask for fewer samples, or without return_trajectory");
}

absl::StatusOr<int64_t> ReplyBytes(const SolveInput& input, const ModelInfo& info) {
  const int64_t n = input.num_samples;
  int64_t values = info.output_dim;
  // The latents of a decoder are sent too. The sum saturates: no product with its limit fits.
  if (info.generates() && __builtin_add_overflow(values, info.state_dim, &values))
    values = INT64_MAX;
  DEEPPCR_ASSIGN_OR_RETURN(int64_t bytes, CheckedProduct({n, values, sizeof(float)}));
  if (input.options.return_trajectory) {
    DEEPPCR_ASSIGN_OR_RETURN(
        const int64_t trajectory,
        CheckedProduct({n, input.num_steps + 1, info.state_dim, sizeof(float)}));
    // The sum saturates: anything near its limit is far above every message limit.
    if (__builtin_add_overflow(bytes, trajectory, &bytes)) bytes = INT64_MAX / 2;
  }
  return std::min(bytes, INT64_MAX / 2) + n * kReportBytes + kEnvelopeBytes;
}

absl::Status DecodeInitialStates(bool present, const v1::Tensor& states, const ModelInfo& info,
                                 SolveInput* input) {
  const bool wanted = input->options.initial_guess == InitialGuess::kPrevious;
  const int64_t rows = input->num_steps + 1;
  const ExpectedShape expected = {"initial_states", {rows, info.state_dim}};
  if (wanted != present) {
    return wanted ? Mismatch("initial_states",
                             StrCat("a tensor ", expected.Text(), " for PREVIOUS"), "none")
                  : Mismatch("initial_states", "none unless options.initial_guess is PREVIOUS",
                             "a tensor");
  }
  if (!wanted) return absl::OkStatus();
  const int64_t n = input->num_samples;
  DEEPPCR_ASSIGN_OR_RETURN(input->initial_states, DecodeTensor(states, expected, n, n));
  return absl::OkStatus();
}

absl::Status CheckFamily(bool generates, const ModelInfo& info) {
  if (info.generates() == generates) return absl::OkStatus();
  return generates ? Mismatch("model", "a diffusion model for Generate",
                              StrCat("one of type ", info.model_type, ": use Forward"))
                   : Mismatch("model", "a model that maps inputs to outputs for Forward",
                              "a diffusion model: use Generate");
}

// Decodes the inputs or the generation of a request, whichever the model takes.
template <typename Request>
absl::Status DecodeSource(const Request& request, const ModelInfo& info, SolveInput* input) {
  if (info.generates()) {
    if (request.has_inputs())
      return Mismatch("inputs", "none for a diffusion model: set generation", "a tensor");
    DEEPPCR_RETURN_IF_ERROR(DecodeGeneration(request.generation(), info, input));
    return CheckNoBounds(*input);
  }
  if (request.has_generation())
    return Mismatch("generation", "none: the model is no diffusion model", "one");
  return DecodeInputs(request.has_inputs(), request.inputs(), info, input);
}

absl::Status CheckReply(const ModelInfo& info, int64_t max_message_bytes, SolveInput* input) {
  DEEPPCR_ASSIGN_OR_RETURN(input->reply_bytes, ReplyBytes(*input, info));
  return CheckReplyBytes(input->reply_bytes, max_message_bytes);
}

// Decodes the fields that Forward and Generate share. The input's samples and steps are known.
template <typename Request>
absl::Status DecodeCommon(const Request& request, const ModelInfo& info, int64_t max_message_bytes,
                          SolveInput* input) {
  DEEPPCR_RETURN_IF_ERROR(DecodeOptions(request.options(), info, input->num_steps,
                                        input->names.options, &input->options));
  DEEPPCR_RETURN_IF_ERROR(
      DecodeInitialStates(request.has_initial_states(), request.initial_states(), info, input));
  input->keeps_trajectory = request.options().keep_trajectory();
  if (input->keeps_trajectory) {
    DEEPPCR_RETURN_IF_ERROR(AddBytes({input->num_samples, input->num_steps + 1, info.state_dim},
                                     &input->scratch_bytes));
  }
  return CheckReply(info, max_message_bytes, input);
}

absl::Status DecodeRow(const v1::SolverOptions& message, const ModelInfo& info, int index,
                       CompareInput* input) {
  const std::string prefix = StrCat("options[", index, "]");
  if (message.solver().empty()) return Mismatch(prefix + ".solver", "the name of a solver", "none");
  if (message.return_trajectory()) {
    return Mismatch(prefix + ".return_trajectory", "false in Compare", "true");
  }
  if (message.keep_trajectory())
    return Mismatch(prefix + ".keep_trajectory", "false in Compare", "true");
  SolveOptions options;
  DEEPPCR_RETURN_IF_ERROR(DecodeOptions(message, info, input->request.num_steps, prefix, &options));
  if (options.initial_guess == InitialGuess::kPrevious) {
    return Mismatch(prefix + ".initial_guess", "CONSTANT, COARSE or CALIBRATED in Compare",
                    "PREVIOUS");
  }
  input->rows.push_back(options);
  return absl::OkStatus();
}

absl::Status DecodeRows(const v1::CompareRequest& request, const ModelInfo& info,
                        CompareInput* input) {
  if (request.options_size() > kMaxCompareRows) {
    return Mismatch("options", StrCat("at most ", kMaxCompareRows, " rows"),
                    request.options_size());
  }
  for (int i = 0; i < request.options_size(); ++i) {
    DEEPPCR_RETURN_IF_ERROR(DecodeRow(request.options(i), info, i, input));
  }
  if (input->rows.empty()) {
    for (const std::string_view solver : {"sequential", "newton", "auto"}) {
      input->rows.emplace_back().solver = solver;
    }
  }
  const auto is_sequential = [](const SolveOptions& row) { return row.solver == "sequential"; };
  input->sequential_added = std::none_of(input->rows.begin(), input->rows.end(), is_sequential);
  if (input->sequential_added) {
    SolveOptions sequential;
    sequential.solver = "sequential";
    input->rows.insert(input->rows.begin(), sequential);
  }
  return absl::OkStatus();
}

absl::Status CheckCompareSize(const CompareInput& input) {
  const int64_t rows = static_cast<int64_t>(input.rows.size());
  const int64_t work = input.request.num_samples * input.repetitions * rows;
  if (work <= kMaxComparedSamples) return absl::OkStatus();
  return Mismatch("repetitions",
                  StrCat("samples * repetitions * rows of at most ", kMaxComparedSamples),
                  StrCat(input.request.num_samples, " * ", input.repetitions, " * ", rows));
}

}  // namespace

absl::Status CheckModelFields(std::string_view model, int64_t version) {
  DEEPPCR_RETURN_IF_ERROR(CheckModelName(model));
  if (version >= 0) return absl::OkStatus();
  return Mismatch("version", "0 (the latest) or a positive integer", version);
}

absl::Status CheckRequestId(std::string_view field, std::string_view request_id) {
  const bool printable = std::all_of(request_id.begin(), request_id.end(),
                                     [](char c) { return c >= 0x20 && c < 0x7f; });
  if (printable && request_id.size() <= kMaxRequestIdBytes) return absl::OkStatus();
  return Mismatch(field, StrCat("at most ", kMaxRequestIdBytes, " printable ASCII characters"),
                  StrCat(Quoted(request_id), " (", request_id.size(), " bytes)"));
}

absl::StatusOr<SolveInput> DecodeForward(const v1::ForwardRequest& request, const ModelInfo& info,
                                         int64_t max_message_bytes, const FieldNames& names) {
  SolveInput input;
  input.names = names;
  DEEPPCR_RETURN_IF_ERROR(CheckFamily(/*generates=*/false, info));
  DEEPPCR_RETURN_IF_ERROR(DecodeInputs(request.has_inputs(), request.inputs(), info, &input));
  DEEPPCR_RETURN_IF_ERROR(DecodeCommon(request, info, max_message_bytes, &input));
  return input;
}

absl::StatusOr<SolveInput> DecodeGenerate(const v1::GenerateRequest& request, const ModelInfo& info,
                                          int64_t max_message_bytes, const FieldNames& names) {
  SolveInput input;
  input.names = names;
  DEEPPCR_RETURN_IF_ERROR(CheckFamily(/*generates=*/true, info));
  DEEPPCR_RETURN_IF_ERROR(DecodeGeneration(request.input(), info, &input));
  DEEPPCR_RETURN_IF_ERROR(DecodeCommon(request, info, max_message_bytes, &input));
  return input;
}

absl::StatusOr<SolveInput> DecodeGradientSolve(const v1::GradientRequest& request,
                                               const ModelInfo& info, int64_t max_message_bytes,
                                               const FieldNames& names) {
  SolveInput input;
  input.names = names;
  DEEPPCR_RETURN_IF_ERROR(DecodeSource(request, info, &input));
  DEEPPCR_RETURN_IF_ERROR(DecodeCommon(request, info, max_message_bytes, &input));
  return input;
}

absl::StatusOr<CompareInput> DecodeCompare(const v1::CompareRequest& request, const ModelInfo& info,
                                           int64_t max_message_bytes) {
  CompareInput input;
  SolveInput& solve = input.request;
  solve.names = kSourceFields;
  DEEPPCR_RETURN_IF_ERROR(DecodeSource(request, info, &solve));
  DEEPPCR_RETURN_IF_ERROR(DecodeRows(request, info, &input));
  input.repetitions = request.repetitions() == 0 ? kDefaultRepetitions : request.repetitions();
  DEEPPCR_RETURN_IF_ERROR(CheckRange("repetitions", input.repetitions, 1, kMaxRepetitions));
  DEEPPCR_RETURN_IF_ERROR(CheckCompareSize(input));
  const int64_t rows = static_cast<int64_t>(input.rows.size());
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t outputs, CheckedProduct({solve.num_samples, rows,
                                                                  info.output_dim, sizeof(float)}));
  solve.reply_bytes = std::min(outputs, INT64_MAX / 2) + rows * kRowBytes + kEnvelopeBytes;
  DEEPPCR_RETURN_IF_ERROR(CheckReplyBytes(solve.reply_bytes, max_message_bytes));
  return input;
}

absl::Status AboutSteps(const FieldNames& names, const SystemKey& wanted,
                        const absl::Status& status) {
  if (!absl::IsInvalidArgument(status) && !absl::IsResourceExhausted(status)) return status;
  const std::string_view message = ToStd(status.message());
  const auto about = [&](std::string_view field) {
    return field == "known_elements" ? names.Tensor(field) : names.Setting(field);
  };
  for (const std::string_view field :
       {"num_inference_steps", "first_step", "guidance_scale", "known_elements"})
    if (message.starts_with(StrCat(field, ": ")))
      return Rephrased(status, StrCat(about(field).Text(), message.substr(field.size())));
  // A schedule fails for a number of steps, and memory for what is asked beside it.
  const std::string_view field =
      absl::IsInvalidArgument(status) ? "num_inference_steps" : FieldOf(wanted);
  return Rephrased(status, StrCat(about(field).Text(), ": ", message));
}

absl::Status CheckFinite(const SolveInput& input) {
  const FieldName inputs =
      input.generates ? input.names.Tensor("conditioning") : FieldName("inputs");
  DEEPPCR_RETURN_IF_ERROR(CheckFinite(input.inputs.values, inputs));
  DEEPPCR_RETURN_IF_ERROR(CheckFinite(input.initial_states.values, "initial_states"));
  const bool begins = input.system.first_step > 0;
  DEEPPCR_RETURN_IF_ERROR(
      CheckFinite(input.initial_noise.values,
                  input.names.Tensor(begins ? "initial_samples" : "initial_noise")));
  DEEPPCR_RETURN_IF_ERROR(CheckFinite(input.step_noise.values, input.names.Tensor("step_noise")));
  return CheckFiniteControls(input);
}

}  // namespace deeppcr
