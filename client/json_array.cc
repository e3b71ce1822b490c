// SPDX-License-Identifier: Apache-2.0
#include "client/json_array.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "client/number_text.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

// Collects the values while the text is read: no document of untrusted size is built.
class ArrayHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Refuse("null"); }
  bool boolean(bool) override { return Refuse("a boolean"); }
  bool string(string_t&) override { return Refuse("a string"); }
  bool binary(binary_t&) override { return Refuse("binary data"); }
  bool start_object(std::size_t) override { return Refuse("an object"); }
  bool key(string_t&) override { return Refuse("an object"); }
  bool end_object() override { return Refuse("an object"); }
  bool number_integer(number_integer_t value) override {
    return Number(static_cast<double>(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return Number(static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t&) override { return Number(value); }

  bool start_array(std::size_t) override {
    if (counts_.size() == kMaxArrayRank) {
      return Fail(StrCat("expected at most ", kMaxArrayRank, " levels of arrays"));
    }
    if (!counts_.empty()) ++counts_.back();
    if (leaf_depth_ != 0 && counts_.size() >= leaf_depth_) return Ragged();
    counts_.push_back(0);
    return true;
  }

  bool end_array() override {
    const size_t depth = counts_.size();
    if (extents_.size() < depth) extents_.resize(depth, -1);
    int64_t& extent = extents_[depth - 1];
    if (extent == -1) extent = counts_.back();
    if (extent != counts_.back()) return Ragged();
    counts_.pop_back();
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    const bool range = error.id == 406;
    return Fail(range ? "a number is out of range" : StrCat("malformed at byte ", position));
  }

  absl::StatusOr<Array> Finish() {
    if (!error_.empty()) return InvalidArgument("json: ", error_);
    // Without numbers leaf_depth_ stays 0: the extents of empty arrays fix the depth.
    const bool consistent = values_.empty() || leaf_depth_ == extents_.size();
    if (!consistent || std::count(extents_.begin(), extents_.end(), -1) > 0) {
      return InvalidArgument("json: arrays of different depth");
    }
    return Array{std::move(extents_), std::move(values_)};
  }

 private:
  bool Number(double value) {
    if (counts_.empty()) return Fail("expected an array of numbers, got a number");
    if (leaf_depth_ == 0) leaf_depth_ = counts_.size();
    if (counts_.size() != leaf_depth_) return Ragged();
    const float rounded = static_cast<float>(value);
    if (!std::isfinite(rounded)) {
      return Fail(StrCat("value ", values_.size(), ": ", value, " is beyond the range of float"));
    }
    ++counts_.back();
    values_.push_back(rounded);
    return true;
  }

  bool Refuse(const char* what) {
    return Fail(StrCat("expected nested arrays of numbers, got ", what));
  }
  bool Ragged() {
    return Fail(StrCat("arrays of different length or depth after ", values_.size(), " values"));
  }
  bool Fail(const std::string& message) {
    if (error_.empty()) error_ = message;
    return false;
  }

  std::vector<int64_t> counts_;   // entries so far of each open array
  std::vector<int64_t> extents_;  // one per level; -1 until the first array of the level closes
  std::vector<float> values_;
  size_t leaf_depth_ = 0;  // depth of the numbers; 0 before the first
  std::string error_;
};

void AppendLevel(const Array& array, size_t level, size_t* next, std::string* text) {
  if (level == array.shape.size()) {
    AppendShortest(array.values[(*next)++], text);
    return;
  }
  text->push_back('[');
  for (int64_t i = 0; i < array.shape[level]; ++i) {
    if (i > 0) text->append(level == 0 ? ",\n " : ", ");
    AppendLevel(array, level + 1, next, text);
  }
  text->push_back(']');
}

}  // namespace

absl::StatusOr<Array> ParseJsonArray(std::string_view text) {
  ArrayHandler handler;
  // Errors come through the handler; the library throws nothing on this path.
  nlohmann::json::sax_parse(text.begin(), text.end(), &handler);
  return handler.Finish();
}

absl::StatusOr<std::string> FormatJsonArray(const Array& array) {
  const auto bad = std::find_if(array.values.begin(), array.values.end(),
                                [](float value) { return !std::isfinite(value); });
  if (bad != array.values.end()) {
    return InvalidArgument("json cannot hold value ", bad - array.values.begin(), ", which is ",
                           *bad, "; write .npy or .csv");
  }
  std::string text;
  size_t next = 0;
  AppendLevel(array, 0, &next, &text);
  text.push_back('\n');
  return text;
}

}  // namespace deeppcr
