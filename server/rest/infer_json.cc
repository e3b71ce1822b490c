// SPDX-License-Identifier: Apache-2.0
#include "server/rest/infer_json.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/base/json.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

using inference::InferParameter;
using inference::ModelInferRequest;
using inference::ModelInferResponse;
using InputTensor = ModelInferRequest::InferInputTensor;

constexpr char kBinarySize[] = "binary_data_size";
// More than any model has; each takes much more memory than its text.
constexpr int kMostTensors = 64, kMostParameters = 256;

// A datatype, and how a number of JSON becomes one of its values.
struct Datatype {
  std::string_view name;
  size_t bytes;
  // Appends the value; false if it has none of this type.
  bool (*append)(const JsonScalar& value, std::string* to);
};

template <typename T>
void AppendBytes(T value, std::string* to) {
  to->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
bool AppendInteger(const JsonScalar& scalar, std::string* to) {
  if (const auto* positive = std::get_if<uint64_t>(&scalar)) {
    if (*positive > static_cast<uint64_t>(std::numeric_limits<T>::max())) return false;
    AppendBytes(static_cast<T>(*positive), to);
    return true;
  }
  const auto* negative = std::get_if<int64_t>(&scalar);
  if (negative == nullptr || !std::in_range<T>(*negative)) return false;
  AppendBytes(static_cast<T>(*negative), to);
  return true;
}

template <typename T>
bool AppendReal(const JsonScalar& scalar, std::string* to) {
  double value = 0;
  if (const auto* positive = std::get_if<uint64_t>(&scalar)) {
    value = static_cast<double>(*positive);
  } else if (const auto* negative = std::get_if<int64_t>(&scalar)) {
    value = static_cast<double>(*negative);
  } else if (const auto* real = std::get_if<double>(&scalar)) {
    value = *real;
  } else {
    return false;
  }
  const T narrow = static_cast<T>(value);
  if (!std::isfinite(narrow)) return false;
  AppendBytes(narrow, to);
  return true;
}

bool AppendBool(const JsonScalar& scalar, std::string* to) {
  const auto* value = std::get_if<bool>(&scalar);
  if (value != nullptr) to->push_back(*value ? 1 : 0);
  return value != nullptr;
}

constexpr std::array kDatatypes = {
    Datatype{"FP32", 4, &AppendReal<float>},
    Datatype{"FP64", 8, &AppendReal<double>},
    Datatype{"BOOL", 1, &AppendBool},
    Datatype{"INT8", 1, &AppendInteger<int8_t>},
    Datatype{"INT16", 2, &AppendInteger<int16_t>},
    Datatype{"INT32", 4, &AppendInteger<int32_t>},
    Datatype{"INT64", 8, &AppendInteger<int64_t>},
    Datatype{"UINT8", 1, &AppendInteger<uint8_t>},
    Datatype{"UINT16", 2, &AppendInteger<uint16_t>},
    Datatype{"UINT32", 4, &AppendInteger<uint32_t>},
    Datatype{"UINT64", 8, &AppendInteger<uint64_t>},
};

const Datatype* FindDatatype(std::string_view name) {
  const auto found = std::ranges::find(kDatatypes, name, &Datatype::name);
  return found == kDatatypes.end() ? nullptr : &*found;
}

absl::StatusOr<int64_t> Integer(const JsonScalar& value, const std::string& field) {
  if (const auto* positive = std::get_if<uint64_t>(&value); positive && *positive <= INT64_MAX)
    return static_cast<int64_t>(*positive);
  if (const auto* negative = std::get_if<int64_t>(&value)) return *negative;
  return InvalidArgument(field, ": expected an integer");
}

absl::StatusOr<bool> Bool(const JsonScalar& value, const std::string& field) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag;
  return InvalidArgument(field, ": expected true or false");
}

absl::StatusOr<std::string> Text(JsonScalar& value, const std::string& field) {
  if (auto* text = std::get_if<std::string>(&value)) return std::move(*text);
  return InvalidArgument(field, ": expected a string");
}

absl::Status SetParameter(JsonScalar& value, const std::string& field, InferParameter* to) {
  if (const auto* flag = std::get_if<bool>(&value)) {
    to->set_bool_param(*flag);
  } else if (const auto* positive = std::get_if<uint64_t>(&value)) {
    if (*positive <= INT64_MAX) {
      to->set_int64_param(static_cast<int64_t>(*positive));
    } else {
      to->set_uint64_param(*positive);
    }
  } else if (const auto* negative = std::get_if<int64_t>(&value)) {
    to->set_int64_param(*negative);
  } else if (const auto* real = std::get_if<double>(&value)) {
    to->set_double_param(*real);
  } else if (auto* text = std::get_if<std::string>(&value)) {
    to->set_string_param(std::move(*text));
  } else {
    return InvalidArgument(field, ": expected a number, a string, true or false, got null");
  }
  return absl::OkStatus();
}

// An input as the JSON object has it, beside its message.
struct InputForm {
  bool has_data = false;
  std::optional<int64_t> binary_bytes;
};

// Walks the object twice, since the datatype of a tensor may come after its values: first all but
// the values, then these, each at once in the bytes that it will have.
class InferHandler final : public JsonHandler {
 public:
  explicit InferHandler(RestInfer* infer) : infer_(*infer) {}

  // Begins the second walk.
  absl::Status BeginValues() {
    values_ = true;
    input_ = output_ = -1;
    for (int i = 0; i < infer_.request.inputs_size(); ++i) {
      const InputTensor& tensor = infer_.request.inputs(i);
      infer_.request.add_raw_input_contents();
      if (!forms_[static_cast<size_t>(i)].has_data) continue;
      if (FindDatatype(tensor.datatype()) == nullptr)
        return InvalidArgument("inputs[", i, "].datatype: expected FP32, FP64, BOOL or an integer ",
                               "type such as INT64, got ", Quoted(tensor.datatype()));
    }
    return absl::OkStatus();
  }
  const std::vector<InputForm>& forms() const { return forms_; }

  absl::Status OnStartObject() override {
    if (places_.empty()) return Enter(Place::kTop);
    switch (places_.back()) {
      case Place::kInputs:
        if (++input_ == kMostTensors) return TooMany("inputs", kMostTensors);
        if (!values_) {
          infer_.request.add_inputs();
          forms_.emplace_back();
        }
        return Enter(Place::kInput);
      case Place::kOutputs:
        if (++output_ == kMostTensors) return TooMany("outputs", kMostTensors);
        if (!values_) {
          infer_.request.add_outputs();
          infer_.binary.emplace_back();
        }
        return Enter(Place::kOutput);
      case Place::kTop:
      case Place::kInput:
      case Place::kOutput:
        if (key_ == "parameters") return Enter(Place::kParameters);
        [[fallthrough]];
      default:
        return InvalidArgument(Field(), ": expected no object");
    }
  }
  absl::Status OnKey(std::string key) override {
    key_ = std::move(key);
    return absl::OkStatus();
  }
  absl::Status OnEndObject() override { return Leave(); }
  absl::Status OnStartArray() override {
    const Place place = places_.empty() ? Place::kNone : places_.back();
    if (place == Place::kTop && key_ == "inputs") return Enter(Place::kInputs);
    if (place == Place::kTop && key_ == "outputs") return Enter(Place::kOutputs);
    if (place == Place::kInput && key_ == "shape") return Enter(Place::kShape);
    if (place == Place::kInput && key_ == "data") {
      if (!values_) forms_.back().has_data = true;
      return Enter(Place::kData);
    }
    if (place == Place::kData) return Enter(Place::kData);
    return InvalidArgument(Field(), ": expected no array");
  }
  absl::Status OnEndArray() override { return Leave(); }

  absl::Status OnScalar(JsonScalar value) override {
    const Place place = places_.empty() ? Place::kNone : places_.back();
    if (place == Place::kData) return OnValue(value);
    if (values_) return absl::OkStatus();
    switch (place) {
      case Place::kTop:
        return OnTop(value);
      case Place::kInput:
        return OnInput(value);
      case Place::kOutput:
        return OnOutput(value);
      case Place::kShape: {
        DEEPPCR_ASSIGN_OR_RETURN(const int64_t extent, Integer(value, Field()));
        Input().add_shape(extent);
        return absl::OkStatus();
      }
      case Place::kParameters:
        return OnParameter(value);
      default:
        return InvalidArgument(Field(), ": expected an object");
    }
  }

 private:
  enum class Place : uint8_t {
    kNone,
    kTop,
    kParameters,
    kInputs,
    kInput,
    kShape,
    kData,
    kOutputs,
    kOutput
  };

  absl::Status Enter(Place place) {
    places_.push_back(place);
    return absl::OkStatus();
  }
  absl::Status Leave() {
    places_.pop_back();
    return absl::OkStatus();
  }
  InputTensor& Input() { return *infer_.request.mutable_inputs(input_); }

  // Where the walk is, for messages.
  std::string Field() const {
    std::string field;
    for (const Place place : places_) {
      if (place == Place::kInput) field += StrCat("inputs[", input_, "].");
      if (place == Place::kOutput) field += StrCat("outputs[", output_, "].");
      if (place == Place::kParameters) field += "parameters.";
      if (place == Place::kShape) return field + "shape";
      if (place == Place::kData) return field + "data";
      if (place == Place::kInputs && places_.back() == place) return "inputs";
      if (place == Place::kOutputs && places_.back() == place) return "outputs";
    }
    const bool plain = std::ranges::all_of(key_, [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
    });
    return field + (key_.empty() ? "body" : plain ? key_.substr(0, 80) : Quoted(key_));
  }
  absl::Status Unknown(std::string_view expected) const {
    return InvalidArgument(Field(), ": expected one of ", expected);
  }

  static absl::Status TooMany(std::string_view what, int most) {
    return InvalidArgument(what, ": expected at most ", most);
  }

  absl::Status OnTop(JsonScalar& value) {
    if (key_ != "id") return Unknown("id, parameters, inputs, outputs, each of its type");
    DEEPPCR_ASSIGN_OR_RETURN(std::string id, Text(value, Field()));
    infer_.request.set_id(std::move(id));
    return absl::OkStatus();
  }
  absl::Status OnInput(JsonScalar& value) {
    if (key_ != "name" && key_ != "datatype")
      return Unknown("name, shape, datatype, parameters, data, each of its type");
    DEEPPCR_ASSIGN_OR_RETURN(std::string text, Text(value, Field()));
    key_ == "name" ? Input().set_name(std::move(text)) : Input().set_datatype(std::move(text));
    return absl::OkStatus();
  }
  absl::Status OnOutput(JsonScalar& value) {
    if (key_ != "name") return Unknown("name, parameters, each of its type");
    DEEPPCR_ASSIGN_OR_RETURN(std::string name, Text(value, Field()));
    infer_.request.mutable_outputs(output_)->set_name(std::move(name));
    return absl::OkStatus();
  }
  absl::Status OnParameter(JsonScalar& value) {
    if (++parameters_ > kMostParameters) return TooMany("parameters", kMostParameters);
    switch (places_[places_.size() - 2]) {
      case Place::kInput: {
        if (key_ != kBinarySize)
          return SetParameter(value, Field(), &(*Input().mutable_parameters())[key_]);
        DEEPPCR_ASSIGN_OR_RETURN(const int64_t bytes, Integer(value, Field()));
        if (bytes < 0) return InvalidArgument(Field(), ": expected 0 or more, got ", bytes);
        forms_.back().binary_bytes = bytes;
        return absl::OkStatus();
      }
      case Place::kOutput: {
        auto& parameters = *infer_.request.mutable_outputs(output_)->mutable_parameters();
        if (key_ != "binary_data") return SetParameter(value, Field(), &parameters[key_]);
        DEEPPCR_ASSIGN_OR_RETURN(infer_.binary.back(), Bool(value, Field()));
        return absl::OkStatus();
      }
      default: {
        auto& parameters = *infer_.request.mutable_parameters();
        if (key_ != "binary_data_output") return SetParameter(value, Field(), &parameters[key_]);
        DEEPPCR_ASSIGN_OR_RETURN(infer_.binary_by_default, Bool(value, Field()));
        return absl::OkStatus();
      }
    }
  }
  absl::Status OnValue(const JsonScalar& value) {
    if (!values_) return absl::OkStatus();
    const Datatype* type = FindDatatype(Input().datatype());
    if (type->append(value, infer_.request.mutable_raw_input_contents(input_)))
      return absl::OkStatus();
    return InvalidArgument(Field(), ": expected values of ", type->name);
  }

  RestInfer& infer_;
  std::vector<InputForm> forms_;
  std::vector<Place> places_;
  std::string key_;
  int input_ = -1, output_ = -1, parameters_ = 0;
  bool values_ = false;
};

// Takes the bytes of the inputs that come after the object, in the order of the inputs.
absl::Status TakeBinary(std::string_view bytes, const std::vector<InputForm>& forms,
                        ModelInferRequest* request) {
  for (int i = 0; i < request->inputs_size(); ++i) {
    const InputForm& form = forms[static_cast<size_t>(i)];
    if (form.has_data == form.binary_bytes.has_value())
      return InvalidArgument("inputs[", i, "]: expected either data or parameters.", kBinarySize,
                             ", got ", form.has_data ? "both" : "none");
    if (form.has_data) continue;
    const auto size = static_cast<uint64_t>(*form.binary_bytes);
    if (size > bytes.size())
      return InvalidArgument("inputs[", i, "].parameters.", kBinarySize, ": expected at most the ",
                             bytes.size(), " bytes that are left of the body, got ", size);
    request->mutable_raw_input_contents(i)->assign(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  if (bytes.empty()) return absl::OkStatus();
  return InvalidArgument("body: expected no more bytes than its inputs have, got ", bytes.size(),
                         " more");
}

void AppendQuoted(std::string_view text, std::string* to) {
  *to += nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

template <typename T>
void AppendNumber(T value, std::string* to) {
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  to->append(digits.data(), end);
}

template <typename T>
void AppendReals(std::string_view bytes, std::string* to) {
  for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof(T));
    if (at > 0) *to += ',';
    if (std::isfinite(value)) {
      AppendNumber(value, to);
    } else {
      *to += "null";
    }
  }
}

void AppendParameter(const InferParameter& parameter, std::string* to) {
  switch (parameter.parameter_choice_case()) {
    case InferParameter::kBoolParam:
      *to += parameter.bool_param() ? "true" : "false";
      break;
    case InferParameter::kInt64Param:
      AppendNumber(parameter.int64_param(), to);
      break;
    case InferParameter::kUint64Param:
      AppendNumber(parameter.uint64_param(), to);
      break;
    case InferParameter::kDoubleParam:
      if (std::isfinite(parameter.double_param())) {
        AppendNumber(parameter.double_param(), to);
      } else {
        *to += "null";
      }
      break;
    default:
      AppendQuoted(parameter.string_param(), to);
  }
}

void AppendParameters(const google::protobuf::Map<std::string, InferParameter>& parameters,
                      std::string* to) {
  std::vector<std::string> names;
  for (const auto& [name, value] : parameters) names.push_back(name);
  std::ranges::sort(names);
  for (const std::string& name : names) {
    AppendQuoted(name, to);
    *to += ':';
    AppendParameter(parameters.at(name), to);
    if (&name != &names.back()) *to += ',';
  }
}

bool IsBinary(std::string_view output, const RestInfer& asked) {
  for (int i = 0; i < asked.request.outputs_size(); ++i) {
    if (asked.request.outputs(i).name() == output)
      return asked.binary[static_cast<size_t>(i)].value_or(asked.binary_by_default);
  }
  return asked.binary_by_default;
}

}  // namespace

absl::StatusOr<RestInfer> DecodeRestInfer(std::string_view body,
                                          std::optional<int64_t> json_bytes) {
  if (json_bytes.has_value() &&
      (*json_bytes < 0 || static_cast<uint64_t>(*json_bytes) > body.size()))
    return InvalidArgument("Inference-Header-Content-Length: expected at most the ", body.size(),
                           " bytes of the body, got ", *json_bytes);
  const std::string_view text =
      body.substr(0, json_bytes.has_value() ? static_cast<size_t>(*json_bytes) : body.size());
  const JsonLimits limits = {.max_bytes = static_cast<int64_t>(text.size())};
  RestInfer infer;
  InferHandler handler(&infer);
  DEEPPCR_RETURN_IF_ERROR(WalkJson(text, limits, handler));
  DEEPPCR_RETURN_IF_ERROR(handler.BeginValues());
  DEEPPCR_RETURN_IF_ERROR(WalkJson(text, limits, handler));
  DEEPPCR_RETURN_IF_ERROR(TakeBinary(body.substr(text.size()), handler.forms(), &infer.request));
  return infer;
}

RestBody EncodeRestInfer(const ModelInferResponse& reply, const RestInfer& asked) {
  RestBody body;
  std::string& text = body.bytes;
  std::vector<int> binary;
  text += "{\"model_name\":";
  AppendQuoted(reply.model_name(), &text);
  text += ",\"model_version\":";
  AppendQuoted(reply.model_version(), &text);
  if (!reply.id().empty()) {
    text += ",\"id\":";
    AppendQuoted(reply.id(), &text);
  }
  text += ",\"parameters\":{";
  AppendParameters(reply.parameters(), &text);
  text += "},\"outputs\":[";
  for (int i = 0; i < reply.outputs_size(); ++i) {
    const auto& output = reply.outputs(i);
    const std::string& bytes = reply.raw_output_contents(i);
    text += i == 0 ? "{\"name\":" : ",{\"name\":";
    AppendQuoted(output.name(), &text);
    text += ",\"datatype\":";
    AppendQuoted(output.datatype(), &text);
    text += ",\"shape\":[";
    for (int k = 0; k < output.shape_size(); ++k) {
      if (k > 0) text += ',';
      AppendNumber(output.shape(k), &text);
    }
    text += "],";
    if (IsBinary(output.name(), asked)) {
      binary.push_back(i);
      text += StrCat("\"parameters\":{\"", kBinarySize, "\":", bytes.size(), "}}");
      continue;
    }
    text += "\"data\":[";
    output.datatype() == "FP64" ? AppendReals<double>(bytes, &text)
                                : AppendReals<float>(bytes, &text);
    text += "]}";
  }
  text += "]}";
  if (!binary.empty()) body.json_bytes = text.size();
  for (const int i : binary) text += reply.raw_output_contents(i);
  return body;
}

}  // namespace deeppcr
