// SPDX-License-Identifier: Apache-2.0
#include "server/codec/v2/request.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "server/codec/solve_input.h"
#include "server/codec/tensor_codec.h"
#include "server/codec/v2/parameters.h"
#include "server/models/repository.h"

namespace deeppcr {
namespace {

using Input = inference::ModelInferRequest::InferInputTensor;
using Contents = inference::InferTensorContents;

// ---- Outputs
constexpr std::array kOutputs = {
    V2Output::kValues,         V2Output::kLatents,     V2Output::kTrajectory, V2Output::kByInputs,
    V2Output::kByInitialNoise, V2Output::kByStepNoise, V2Output::kLosses};

bool Has(const ModelInfo& info, V2Output output) {
  switch (output) {
    case V2Output::kLatents:
      return info.has_decoder;
    case V2Output::kByInputs:
      return info.input_dim > 0;
    case V2Output::kByInitialNoise:
    case V2Output::kByStepNoise:
      return info.generates();
    default:
      return true;
  }
}

// The gradient that an output stands for; UNSPECIFIED for the others.
v1::GradientBy GradientOf(V2Output output) {
  switch (output) {
    case V2Output::kByInputs:
      return v1::GRADIENT_BY_INPUTS;
    case V2Output::kByInitialNoise:
      return v1::GRADIENT_BY_INITIAL_STATE;
    case V2Output::kByStepNoise:
      return v1::GRADIENT_BY_STEP_NOISE;
    default:
      return v1::GRADIENT_BY_UNSPECIFIED;
  }
}

std::string OutputNames(const ModelInfo& info) {
  std::vector<std::string> names;
  for (const V2Output output : kOutputs) {
    if (Has(info, output)) names.emplace_back(NameOf(output, info));
  }
  return absl::StrJoin(names, ", ");
}

absl::StatusOr<V2Output> DecodeOutput(
    const inference::ModelInferRequest::InferRequestedOutputTensor& wanted, const ModelInfo& info,
    const std::string& field) {
  if (!wanted.parameters().empty())
    return Mismatch(field + ".parameters", "none (no classification, no shared memory)",
                    Quoted(wanted.parameters().begin()->first));
  for (const V2Output output : kOutputs) {
    if (Has(info, output) && NameOf(output, info) == wanted.name()) return output;
  }
  return Mismatch(field + ".name", StrCat("one of ", OutputNames(info)), Quoted(wanted.name()));
}

absl::StatusOr<std::vector<V2Output>> DecodeOutputs(const inference::ModelInferRequest& request,
                                                    const ModelInfo& info) {
  if (request.outputs().empty()) return DefaultOutputs(info);
  std::vector<V2Output> outputs;
  for (int i = 0; i < request.outputs_size(); ++i) {
    const std::string field = StrCat("outputs[", i, "]");
    DEEPPCR_ASSIGN_OR_RETURN(const V2Output output, DecodeOutput(request.outputs(i), info, field));
    if (std::find(outputs.begin(), outputs.end(), output) != outputs.end())
      return Mismatch(field + ".name", "every output once", Quoted(request.outputs(i).name()));
    outputs.push_back(output);
  }
  return outputs;
}

// ---- Tensors
// The elements of one input: bytes that came raw, or typed contents of the tensor's own.
struct Elements {
  const Input& tensor;
  std::string* raw;  // null: typed
};

bool IsEmpty(const Contents& contents) { return contents.ByteSizeLong() == 0; }

// A typed field as bytes; an error if any other field is set.
template <typename T>
absl::StatusOr<std::string> BytesOf(const Input& tensor,
                                    const google::protobuf::RepeatedField<T>& values,
                                    std::string_view name) {
  const Contents& all = tensor.contents();
  const int others = all.bool_contents_size() + all.int_contents_size() +
                     all.int64_contents_size() + all.uint_contents_size() +
                     all.uint64_contents_size() + all.fp32_contents_size() +
                     all.fp64_contents_size() + all.bytes_contents_size() - values.size();
  if (others > 0 || values.empty())
    return Mismatch(StrCat(tensor.name(), ".contents"), StrCat(name, " and nothing else"),
                    others > 0 ? "other contents" : "none (and no raw_input_contents)");
  return std::string(reinterpret_cast<const char*>(values.data()),
                     static_cast<size_t>(values.size()) * sizeof(T));
}

absl::Status CheckDatatype(const Input& tensor, std::string_view wanted) {
  if (tensor.datatype() == wanted) return absl::OkStatus();
  return Mismatch(tensor.name() + ".datatype", wanted, Quoted(tensor.datatype()));
}

absl::Status ToTensor(const Elements& from, v1::Tensor* tensor) {
  DEEPPCR_RETURN_IF_ERROR(CheckDatatype(from.tensor, "FP32"));
  *tensor->mutable_shape() = from.tensor.shape();
  if (from.raw != nullptr) {
    tensor->set_data(std::move(*from.raw));
    return absl::OkStatus();
  }
  DEEPPCR_ASSIGN_OR_RETURN(
      *tensor->mutable_data(),
      BytesOf(from.tensor, from.tensor.contents().fp32_contents(), "fp32_contents"));
  return absl::OkStatus();
}

using Integers = google::protobuf::RepeatedField<int32_t>;

// Appends integers of width T in [0, bound), and at most `most` of them. Without a bound (0) there
// is nothing that they could be: they are refused later, with the other fields.
template <typename T>
absl::Status AppendIntegers(const std::string& field, std::string_view bytes, int64_t bound,
                            int64_t most, Integers* to) {
  const size_t count = bytes.size() / sizeof(T);
  if (bytes.size() % sizeof(T) != 0 || static_cast<int64_t>(count) > most)
    return Mismatch(field, StrCat("at most ", most, " values of ", sizeof(T), " bytes"),
                    StrCat(bytes.size(), " bytes"));
  for (size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    if (bound > 0) DEEPPCR_RETURN_IF_ERROR(CheckRange<int64_t>(field, value, 0, bound - 1));
    to->Add(static_cast<int32_t>(value));
  }
  return absl::OkStatus();
}

// Takes INT32 or INT64 of shape [n] or [n, 1], in [0, bound).
absl::Status ToIntegers(const Elements& from, int64_t bound, int64_t most, Integers* to) {
  const Input& tensor = from.tensor;
  const bool wide = tensor.datatype() == "INT64";
  if (!wide) DEEPPCR_RETURN_IF_ERROR(CheckDatatype(tensor, "INT32"));
  std::string bytes;
  if (from.raw != nullptr) {
    bytes = std::move(*from.raw);
  } else if (wide) {
    DEEPPCR_ASSIGN_OR_RETURN(bytes,
                             BytesOf(tensor, tensor.contents().int64_contents(), "int64_contents"));
  } else {
    DEEPPCR_ASSIGN_OR_RETURN(bytes,
                             BytesOf(tensor, tensor.contents().int_contents(), "int_contents"));
  }
  DEEPPCR_RETURN_IF_ERROR(wide ? AppendIntegers<int64_t>(tensor.name(), bytes, bound, most, to)
                               : AppendIntegers<int32_t>(tensor.name(), bytes, bound, most, to));
  const auto& shape = tensor.shape();
  const bool column = shape.size() == 2 && shape[1] == 1;
  if ((shape.size() == 1 || column) && shape[0] == to->size()) return absl::OkStatus();
  return Mismatch(tensor.name() + ".shape", StrCat("[n, 1] with n = ", to->size()),
                  StrCat("[", absl::StrJoin(shape, ", "), "]"));
}

absl::Status ToLabels(const Elements& from, const ModelInfo& info, v1::GenerationInput* to) {
  if (to->class_labels_size() > 0)
    return Mismatch(from.tensor.name(), "none beside the parameter class_label", "a tensor");
  return ToIntegers(from, info.num_classes, info.max_batch_size, to->mutable_class_labels());
}

absl::Status Place(const Elements& from, const ModelInfo&, v1::ForwardRequest* to) {
  const std::string& name = from.tensor.name();
  if (name == "inputs") return ToTensor(from, to->mutable_inputs());
  if (name == "initial_states") return ToTensor(from, to->mutable_initial_states());
  return Mismatch("inputs", "names among inputs, initial_states", Quoted(name));
}

v1::GenerationInput* GenerationOf(v1::GenerateRequest* request) { return request->mutable_input(); }
v1::GenerationInput* GenerationOf(v1::GradientRequest* request) {
  return request->mutable_generation();
}

// The names that PlaceKnown takes.
constexpr std::array<std::string_view, 9> kOfGeneration = {
    "class_labels",      "conditioning",    "initial_noise",  "step_noise",  "initial_states",
    "null_conditioning", "initial_samples", "known_elements", "known_values"};

std::string NamesOfGeneration() {
  return StrJoin(kOfGeneration, ", ", [](std::string_view name) { return name; });
}

// Tensors that may have one row for all samples.
constexpr std::array<std::string_view, 4> kSpread = {"class_labels", "conditioning",
                                                     "null_conditioning", "known_values"};

// Notes how many samples there are, which the first tensor says.
absl::Status NoteSamples(const Elements& from, const ModelInfo& info, v1::GenerationInput* input) {
  const std::string& name = from.tensor.name();
  const bool shaped = from.tensor.shape_size() > 0;
  // One row may be for all samples: its shape does not say how many there are.
  const bool spreads = std::ranges::find(kSpread, name) != kSpread.end();
  const bool says = shaped && name != "known_elements" && !(spreads && from.tensor.shape(0) == 1);
  if (input->num_samples() == 0 && says) {
    DEEPPCR_RETURN_IF_ERROR(CheckRange<int64_t>(StrCat(name, ".shape[0]"), from.tensor.shape(0), 1,
                                                info.max_batch_size));
    input->set_num_samples(static_cast<int32_t>(from.tensor.shape(0)));
  }
  return absl::OkStatus();
}

template <typename Request>
absl::Status PlaceKnown(const Elements& from, const ModelInfo& info, Request* to) {
  const std::string& name = from.tensor.name();
  v1::GenerationInput* input = GenerationOf(to);
  DEEPPCR_RETURN_IF_ERROR(NoteSamples(from, info, input));
  if (name == "class_labels") return ToLabels(from, info, input);
  if (name == "conditioning") return ToTensor(from, input->mutable_conditioning());
  if (name == "initial_noise") return ToTensor(from, input->mutable_initial_noise());
  if (name == "step_noise") return ToTensor(from, input->mutable_step_noise());
  if (name == "null_conditioning") return ToTensor(from, input->mutable_null_conditioning());
  if (name == "initial_samples") return ToTensor(from, input->mutable_initial_samples());
  if (name == "known_values") return ToTensor(from, input->mutable_known_values());
  if (name == "known_elements")
    return ToIntegers(from, info.sample_dim(), info.sample_dim(), input->mutable_known_elements());
  return ToTensor(from, to->mutable_initial_states());
}

bool IsOfGeneration(std::string_view name) {
  return std::ranges::find(kOfGeneration, name) != kOfGeneration.end();
}

absl::Status Place(const Elements& from, const ModelInfo& info, v1::GenerateRequest* to) {
  if (IsOfGeneration(from.tensor.name())) return PlaceKnown(from, info, to);
  return Mismatch("inputs", StrCat("names among ", NamesOfGeneration()),
                  Quoted(from.tensor.name()));
}

// Places what goes back: cotangents of an output, or what a loss compares with.
absl::Status PlaceSeed(const Elements& from, const ModelInfo& info, v1::GradientRequest* to) {
  if (info.generates()) DEEPPCR_RETURN_IF_ERROR(NoteSamples(from, info, to->mutable_generation()));
  const std::string& name = from.tensor.name();
  if (name == "target_classes")
    return ToIntegers(from, info.output_dim, info.max_batch_size, to->mutable_target_classes());
  if (name == "targets") return ToTensor(from, to->mutable_targets());
  return ToTensor(from, name == kV2Fields.final_cotangents ? to->mutable_final_state_cotangents()
                                                           : to->mutable_cotangents());
}

// Places what goes back, or the inputs of either kind of model.
absl::Status Place(const Elements& from, const ModelInfo& info, v1::GradientRequest* to) {
  const std::string& name = from.tensor.name();
  const bool generates = info.generates();
  const std::string_view outputs = (generates ? kV2SampleFields : kV2Fields).cotangents;
  const bool of_final = info.has_decoder && name == kV2Fields.final_cotangents;
  if (name == outputs || of_final || name == "targets" || name == "target_classes")
    return PlaceSeed(from, info, to);
  if (generates && IsOfGeneration(name)) return PlaceKnown(from, info, to);
  if (!generates && name == "inputs") return ToTensor(from, to->mutable_inputs());
  if (!generates && name == "initial_states") return ToTensor(from, to->mutable_initial_states());
  return Mismatch(
      "inputs",
      StrCat("names among ",
             generates ? NamesOfGeneration() : std::string("inputs, initial_states"), ", ", outputs,
             info.has_decoder ? StrCat(", ", kV2Fields.final_cotangents) : "",
             ", targets, target_classes"),
      Quoted(name));
}

absl::Status CheckInput(const inference::ModelInferRequest& request, int i, bool raw) {
  const Input& tensor = request.inputs(i);
  const std::string field = StrCat("inputs[", i, "]");
  if (!tensor.parameters().empty())
    return Mismatch(field + ".parameters", "none (no shared memory)",
                    Quoted(tensor.parameters().begin()->first));
  if (raw && !IsEmpty(tensor.contents()))
    return Mismatch(field + ".contents", "none beside raw_input_contents", "some");
  for (int k = 0; k < i; ++k) {
    if (request.inputs(k).name() == tensor.name())
      return Mismatch(field + ".name", "every input once", Quoted(tensor.name()));
  }
  return absl::OkStatus();
}

template <typename Request>
absl::Status PlaceInputs(inference::ModelInferRequest* from, const ModelInfo& info, Request* to) {
  const bool raw = from->raw_input_contents_size() > 0;
  if (raw && from->raw_input_contents_size() != from->inputs_size())
    return Mismatch("raw_input_contents", StrCat(from->inputs_size(), ", one per input"),
                    from->raw_input_contents_size());
  for (int i = 0; i < from->inputs_size(); ++i) {
    DEEPPCR_RETURN_IF_ERROR(CheckInput(*from, i, raw));
    std::string* const bytes = raw ? from->mutable_raw_input_contents(i) : nullptr;
    DEEPPCR_RETURN_IF_ERROR(Place({from->inputs(i), bytes}, info, to));
  }
  return absl::OkStatus();
}

// Where parameters go.
V2Targets TargetsOf(v1::ForwardRequest* request, const ModelInfo&) {
  return {request->mutable_options(), nullptr, nullptr, nullptr};
}
V2Targets TargetsOf(v1::GenerateRequest* request, const ModelInfo&) {
  return {request->mutable_options(), request->mutable_input(), nullptr, nullptr};
}
V2Targets TargetsOf(v1::GradientRequest* request, const ModelInfo& info) {
  return {request->mutable_options(), info.generates() ? request->mutable_generation() : nullptr,
          request, nullptr};
}

// Asks for the gradients among the outputs. Options that say nothing are left out, as beside the
// handle of a trajectory, which leaves nothing to solve, and so no other outputs.
absl::Status PlaceOutputs(std::span<const V2Output> outputs, const ModelInfo& info,
                          v1::GradientRequest* to) {
  if (to->options().ByteSizeLong() == 0) to->clear_options();
  for (const V2Output output : outputs) {
    const v1::GradientBy by = GradientOf(output);
    if (by != v1::GRADIENT_BY_UNSPECIFIED) {
      to->add_gradients(by);
    } else if (output == V2Output::kLosses) {
      if (to->loss() == v1::LOSS_UNSPECIFIED)
        return Mismatch("outputs", StrCat("losses beside ", kV2Fields.loss), "none set");
    } else if (!to->trajectory_handle().empty()) {
      return Mismatch("outputs",
                      StrCat("gradients alone beside ", kV2Fields.handle, ", as nothing is solved"),
                      NameOf(output, info));
    }
  }
  return absl::OkStatus();
}

template <typename Request>
absl::StatusOr<V2Request> Decode(inference::ModelInferRequest* from, const ModelInfo& info) {
  V2Request result;
  Request request;
  DEEPPCR_ASSIGN_OR_RETURN(result.outputs, DecodeOutputs(*from, info));
  V2Targets targets = TargetsOf(&request, info);
  targets.timeout = &result.timeout;
  DEEPPCR_RETURN_IF_ERROR(DecodeV2Parameters(from->parameters(), targets));
  DEEPPCR_RETURN_IF_ERROR(PlaceInputs(from, info, &request));
  const auto wants = [&](V2Output output) {
    return std::find(result.outputs.begin(), result.outputs.end(), output) != result.outputs.end();
  };
  request.mutable_options()->set_return_trajectory(wants(V2Output::kTrajectory));
  if constexpr (std::is_same_v<Request, v1::GradientRequest>)
    DEEPPCR_RETURN_IF_ERROR(PlaceOutputs(result.outputs, info, &request));
  result.request = std::move(request);
  return result;
}

}  // namespace

std::string_view NameOf(V2Output output, const ModelInfo& info) {
  switch (output) {
    case V2Output::kValues:
      return info.generates() ? "samples" : "outputs";
    case V2Output::kLatents:
      return "latents";
    case V2Output::kTrajectory:
      return "trajectory";
    case V2Output::kByInputs:
      return info.generates() ? "grad_conditioning" : "grad_inputs";
    case V2Output::kByInitialNoise:
      return "grad_initial_noise";
    case V2Output::kByStepNoise:
      return "grad_step_noise";
    case V2Output::kLosses:
      return "losses";
  }
  return "";
}

std::vector<V2Output> DefaultOutputs(const ModelInfo& info) {
  if (info.generates() && info.has_decoder) return {V2Output::kValues, V2Output::kLatents};
  return {V2Output::kValues};
}

absl::StatusOr<V2Request> DecodeV2(inference::ModelInferRequest* request, const ModelInfo& info) {
  const bool gradients = std::ranges::any_of(request->outputs(), [](const auto& output) {
    return std::string_view(output.name()).starts_with("grad_");
  });
  if (gradients) return Decode<v1::GradientRequest>(request, info);
  for (const auto& output : request->outputs()) {
    if (output.name() == NameOf(V2Output::kLosses, info))
      return Mismatch("outputs", "losses beside gradients", "no output grad_<input>");
  }
  return info.generates() ? Decode<v1::GenerateRequest>(request, info)
                          : Decode<v1::ForwardRequest>(request, info);
}

absl::StatusOr<int64_t> DecodeVersion(const std::string& version) {
  if (version.empty()) return 0;
  if (const int64_t number = ParseVersion(version); number > 0) return number;
  return Mismatch("model_version", "a positive decimal integer, or nothing", Quoted(version));
}

}  // namespace deeppcr
