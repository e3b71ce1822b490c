// SPDX-License-Identifier: Apache-2.0
// Bodies of the v2 protocol's REST form: a line with the bytes of the JSON object, or "-" for all
// of them, then the body. An accepted one must give each input the bytes that a second reader of
// the JSON text finds for it.

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "kernels/base/strings.h"
#include "server/rest/infer_json.h"
#include "server/rest/route.h"
#include "tests/fuzz/fuzz_target.h"

namespace deeppcr::fuzz {
namespace {

using nlohmann::json;

#if defined(DEEPPCR_FUZZ_PLANTED_BUG)
// Takes all of the body for its object where the header promises more than came.
absl::StatusOr<RestInfer> Decode(std::string_view body, std::optional<int64_t> json_bytes) {
  if (json_bytes.has_value() && *json_bytes > static_cast<int64_t>(body.size())) json_bytes.reset();
  return DecodeRestInfer(body, json_bytes);
}
#else
absl::StatusOr<RestInfer> Decode(std::string_view body, std::optional<int64_t> json_bytes) {
  return DecodeRestInfer(body, json_bytes);
}
#endif

// The numbers of nested lists, as doubles.
void Flatten(const json& data, std::vector<double>* values) {
  if (data.is_array()) {
    for (const json& each : data) Flatten(each, values);
  } else {
    values->push_back(data.is_boolean() ? (data.get<bool>() ? 1 : 0) : data.get<double>());
  }
}

template <typename T>
bool Holds(const std::string& bytes, const std::vector<double>& values) {
  if (bytes.size() != values.size() * sizeof(T)) return false;
  for (size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    // Compared as doubles: integers beyond 2^53 agree as far as these tell.
    if (static_cast<double>(value) != static_cast<double>(static_cast<T>(values[i])) &&
        static_cast<double>(value) != values[i])
      return false;
  }
  return true;
}

bool HoldsAs(const std::string& type, const std::string& bytes, const std::vector<double>& values) {
  if (type == "FP32") return Holds<float>(bytes, values);
  if (type == "FP64") return Holds<double>(bytes, values);
  if (type == "INT8") return Holds<int8_t>(bytes, values);
  if (type == "INT16") return Holds<int16_t>(bytes, values);
  if (type == "INT32") return Holds<int32_t>(bytes, values);
  if (type == "UINT16") return Holds<uint16_t>(bytes, values);
  if (type == "UINT32") return Holds<uint32_t>(bytes, values);
  if (type == "BOOL" || type == "UINT8") return Holds<uint8_t>(bytes, values);
  // A double near the ends of these may have no value of them.
  return (type == "INT64" || type == "UINT64") && bytes.size() == values.size() * 8;
}

void RequireSame(const RestInfer& infer, std::string_view body, std::optional<int64_t> json_bytes) {
  const auto length = static_cast<size_t>(json_bytes.value_or(static_cast<int64_t>(body.size())));
  Require(length <= body.size(), "the object lies within the body");
  const json object = json::parse(body.substr(0, length), nullptr, false);
  Require(object.is_object(), "a second reader finds an object");
  const json inputs = object.value("inputs", json::array());
  const auto& request = infer.request;
  Require(inputs.size() == static_cast<size_t>(request.inputs_size()) &&
              request.inputs_size() == request.raw_input_contents_size(),
          "every input has its bytes");
  Require(infer.binary.size() == static_cast<size_t>(request.outputs_size()),
          "every output has its form");
  size_t at = length;
  for (int i = 0; i < request.inputs_size(); ++i) {
    const json& input = inputs[static_cast<size_t>(i)];
    const std::string& bytes = request.raw_input_contents(i);
    if (input.contains("data")) {
      std::vector<double> values;
      Flatten(input["data"], &values);
      Require(HoldsAs(request.inputs(i).datatype(), bytes, values), "values are those of the text");
    } else {
      Require(body.substr(at, bytes.size()) == bytes, "bytes follow the object in order");
      at += bytes.size();
    }
  }
  Require(at == body.size(), "every byte of the body is of an input");
}

}  // namespace

bool TryInput(std::string_view bytes) {
  const std::string_view head = bytes.substr(0, bytes.find('\n'));
  const std::string_view body = bytes.substr(std::min(bytes.size(), head.size() + 1));
  std::optional<int64_t> json_bytes;
  int64_t length = 0;
  if (absl::SimpleAtoi(ToAbsl(head), &length)) json_bytes = length;
  // A path is of any bytes too.
  if (const auto route = ParseRoute(head); route.has_value())
    Require(route->model.find('/') == std::string::npos, "a name is one part of a path");
  const auto infer = Decode(body, json_bytes);
  if (!infer.ok()) return RequireCleanRefusal(infer.status()), false;
  RequireSame(*infer, body, json_bytes);
  return true;
}

}  // namespace deeppcr::fuzz
