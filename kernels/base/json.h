// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_JSON_H_
#define DEEPPCR_KERNELS_BASE_JSON_H_

// Strict JSON (RFC 8259) from untrusted bytes. Stricter than most readers, so that no two of them
// can disagree about a text: a duplicate key, a NUL byte, a byte order mark, ill-formed UTF-8, a
// number that leaves double's range, anything after the value and too deep nesting are errors.
// Nothing throws.

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace deeppcr {

struct JsonLimits {
  int64_t max_bytes = int64_t{1} << 20;
  int max_depth = 16;  // nested objects and arrays
};

// A null, a boolean, an integer without a sign, an integer with a minus sign, any other number, or
// a string. An integer too long for 64 bits comes as a double.
using JsonScalar = std::variant<std::nullptr_t, bool, uint64_t, int64_t, double, std::string>;

// Receives the pieces of a JSON text in their order. An error that a method returns stops the walk
// and is the result of the walk.
class JsonHandler {
 public:
  virtual ~JsonHandler() = default;

  virtual absl::Status OnScalar(JsonScalar value) = 0;
  virtual absl::Status OnStartObject() = 0;
  virtual absl::Status OnKey(std::string key) = 0;
  virtual absl::Status OnEndObject() = 0;
  virtual absl::Status OnStartArray() = 0;
  virtual absl::Status OnEndArray() = 0;
};

// Walks the text without building anything from it but the sets of keys of the open objects.
// Errors: kInvalidArgument with the position and what is wrong; kResourceExhausted beyond
// max_bytes; whatever the handler returns.
absl::Status WalkJson(std::string_view text, const JsonLimits& limits, JsonHandler& handler);

// Parses the text into a tree, in memory within a constant factor of the text's size. Errors: those
// of WalkJson.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const JsonLimits& limits);

// A value for an error message: its type and the beginning of its text, e.g. `string "abc"`.
std::string DescribeJson(const nlohmann::json& value);

// Typed access. `field` names the value in errors.
// Errors: kInvalidArgument saying what was expected and what came. 1.0 and 1e3 are not integers.
absl::StatusOr<int64_t> JsonInteger(const nlohmann::json& value, std::string_view field,
                                    int64_t min, int64_t max);
absl::StatusOr<double> JsonNumber(const nlohmann::json& value, std::string_view field);
absl::StatusOr<bool> JsonBool(const nlohmann::json& value, std::string_view field);
absl::StatusOr<std::string> JsonString(const nlohmann::json& value, std::string_view field);

// Member `key` of an object. Never null.
// Errors: kInvalidArgument if `object` is no object or has no such member.
absl::StatusOr<const nlohmann::json*> JsonMember(const nlohmann::json& object,
                                                 std::string_view key);

// Errors: kInvalidArgument if `object` is no object or has a member of another name.
absl::Status CheckMembers(const nlohmann::json& object,
                          std::initializer_list<std::string_view> members);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_JSON_H_
