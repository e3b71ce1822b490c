// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/json.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

// Message of the library without the prefix "[json.exception.parse_error.101] ", cut off because
// the token quoted at the end of the message may be as long as the text.
std::string LibraryMessage(std::string_view what) {
  if (const size_t end = what.find("] "); end != std::string_view::npos)
    what.remove_prefix(end + 2);
  constexpr size_t kMaxMessageBytes = 200;
  return absl::CHexEscape(ToAbsl(what.substr(0, kMaxMessageBytes)));
}

// Adds the checks that the library's SAX parser lacks: depth and duplicate keys. The library
// prescribes the member names.
class StrictSax {
 public:
  StrictSax(const JsonLimits& limits, JsonHandler& handler) : limits_(limits), handler_(handler) {}

  const absl::Status& status() const { return status_; }

  bool null() { return Scalar(nullptr); }
  bool boolean(bool value) { return Scalar(value); }
  bool number_integer(int64_t value) { return Scalar(value); }
  bool number_unsigned(uint64_t value) { return Scalar(value); }
  bool number_float(double value, const std::string&) { return Scalar(value); }
  bool string(std::string& value) { return Scalar(std::move(value)); }
  bool binary(nlohmann::json::binary_t&) {
    return Keep(absl::InternalError("binary value in a JSON text"));
  }

  bool start_object(size_t) {
    keys_.emplace_back();
    return Descend() && Keep(handler_.OnStartObject());
  }
  bool key(std::string& name) {
    if (!keys_.back().insert(name).second) {
      return Keep(InvalidArgument("key ", Quoted(name), " appears twice"));
    }
    return Keep(handler_.OnKey(std::move(name)));
  }
  bool end_object() {
    keys_.pop_back();
    --depth_;
    return Keep(handler_.OnEndObject());
  }
  bool start_array(size_t) { return Descend() && Keep(handler_.OnStartArray()); }
  bool end_array() {
    --depth_;
    return Keep(handler_.OnEndArray());
  }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) {
    return Keep(InvalidArgument("not JSON: ", LibraryMessage(error.what())));
  }

 private:
  bool Keep(absl::Status status) {
    status_ = std::move(status);
    return status_.ok();
  }
  bool Scalar(JsonScalar value) { return Keep(handler_.OnScalar(std::move(value))); }
  bool Descend() {
    if (++depth_ <= limits_.max_depth) return true;
    return Keep(InvalidArgument("nested deeper than ", limits_.max_depth, " levels"));
  }

  const JsonLimits& limits_;
  JsonHandler& handler_;
  absl::Status status_;
  int depth_ = 0;
  // A seeded hash: an attacker cannot choose keys that collide.
  std::vector<absl::flat_hash_set<std::string>> keys_;
};

class TreeBuilder final : public JsonHandler {
 public:
  nlohmann::json Take() { return std::move(root_); }

  absl::Status OnScalar(JsonScalar value) override {
    std::visit([this](auto&& scalar) { Add(std::forward<decltype(scalar)>(scalar)); },
               std::move(value));
    return absl::OkStatus();
  }
  absl::Status OnStartObject() override { return Open(nlohmann::json::object()); }
  absl::Status OnKey(std::string key) override {
    key_ = std::move(key);
    return absl::OkStatus();
  }
  absl::Status OnEndObject() override { return Close(); }
  absl::Status OnStartArray() override { return Open(nlohmann::json::array()); }
  absl::Status OnEndArray() override { return Close(); }

 private:
  nlohmann::json* Add(nlohmann::json value) {
    if (open_.empty()) return &(root_ = std::move(value));
    nlohmann::json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }
  absl::Status Open(nlohmann::json container) {
    open_.push_back(Add(std::move(container)));
    return absl::OkStatus();
  }
  absl::Status Close() {
    open_.pop_back();
    return absl::OkStatus();
  }

  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;  // a container does not move while a descendant is open
  std::string key_;
};

absl::Status Expected(std::string_view field, std::string_view expected,
                      const nlohmann::json& value) {
  return InvalidArgument(field, ": expected ", expected, ", got ", DescribeJson(value));
}

}  // namespace

absl::Status WalkJson(std::string_view text, const JsonLimits& limits, JsonHandler& handler) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    return ResourceExhausted("JSON text of ", text.size(), " bytes; ", limits.max_bytes,
                             " are allowed");
  }
  // The library takes a NUL for the end of the text and skips a byte order mark.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return InvalidArgument("not JSON: NUL byte at offset ", nul);
  }
  if (text.starts_with("\xEF\xBB\xBF")) {
    return absl::InvalidArgumentError("not JSON: begins with a byte order mark");
  }
  StrictSax sax(limits, handler);
  const bool done = nlohmann::json::sax_parse(text.begin(), text.end(), &sax);
  if (!done && sax.status().ok()) return absl::InternalError("the JSON parser gave no reason");
  return sax.status();
}

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const JsonLimits& limits) {
  TreeBuilder builder;
  DEEPPCR_RETURN_IF_ERROR(WalkJson(text, limits, builder));
  return builder.Take();
}

std::string DescribeJson(const nlohmann::json& value) {
  if (value.is_string()) return StrCat("string ", Quoted(value.get_ref<const std::string&>()));
  if (value.is_array()) return StrCat("an array of ", value.size(), " values");
  if (value.is_object()) return StrCat("an object of ", value.size(), " members");
  return value.dump();
}

absl::StatusOr<int64_t> JsonInteger(const nlohmann::json& value, std::string_view field,
                                    int64_t min, int64_t max) {
  // is_number_unsigned goes first: is_number_integer holds for unsigned values too, which may
  // exceed int64.
  const bool fits = value.is_number_unsigned() ? std::in_range<int64_t>(value.get<uint64_t>())
                                               : value.is_number_integer();
  const int64_t number = fits ? value.get<int64_t>() : 0;
  if (fits && number >= min && number <= max) return number;
  return Expected(field, StrCat("an integer in [", min, ", ", max, "]"), value);
}

absl::StatusOr<double> JsonNumber(const nlohmann::json& value, std::string_view field) {
  if (!value.is_number()) return Expected(field, "a number", value);
  return value.get<double>();
}

absl::StatusOr<bool> JsonBool(const nlohmann::json& value, std::string_view field) {
  if (!value.is_boolean()) return Expected(field, "true or false", value);
  return value.get<bool>();
}

absl::StatusOr<std::string> JsonString(const nlohmann::json& value, std::string_view field) {
  if (!value.is_string()) return Expected(field, "a string", value);
  return value.get<std::string>();
}

absl::StatusOr<const nlohmann::json*> JsonMember(const nlohmann::json& object,
                                                 std::string_view key) {
  if (!object.is_object()) return Expected("value", "an object", object);
  const auto member = object.find(key);
  if (member == object.end()) {
    return InvalidArgument(key, ": missing");
  }
  return &*member;
}

absl::Status CheckMembers(const nlohmann::json& object,
                          std::initializer_list<std::string_view> members) {
  if (!object.is_object()) return InvalidArgument("expected an object, got ", DescribeJson(object));
  for (const auto& [name, value] : object.items()) {
    if (std::find(members.begin(), members.end(), name) == members.end())
      return InvalidArgument(Quoted(name), ": unknown field");
  }
  return absl::OkStatus();
}

}  // namespace deeppcr
