// SPDX-License-Identifier: Apache-2.0
#include "client/csv.h"

#include "absl/strings/escaping.h"
#include "client/number_text.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

absl::Status Error(int64_t line, const std::string& message) {
  return InvalidArgument("csv: line ", line, ": ", message);
}

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// Removes the part up to the separator, and the separator, from `text`.
std::string_view TakeUntil(char separator, std::string_view* text) {
  const size_t end = text->find(separator);
  const std::string_view part = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  return part;
}

absl::Status ParseRow(std::string_view text, int64_t line, std::vector<float>* values) {
  int64_t column = 0;
  bool more = true;
  while (more) {
    ++column;
    more = text.find(',') != std::string_view::npos;
    const std::string_view field = Trim(TakeUntil(',', &text));
    float value = 0;
    if (!ParseFiniteFloat(field, &value)) {
      return Error(line, StrCat("column ", column, ": expected a finite number, got '",
                                absl::CHexEscape(std::string(field.substr(0, 40))), "'"));
    }
    values->push_back(value);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Array> ParseCsv(std::string_view text) {
  Array array{{0, 0}, {}};
  int64_t line = 0;
  while (!text.empty()) {
    ++line;
    const std::string_view row = Trim(TakeUntil('\n', &text));
    if (row.empty() || row.front() == '#') continue;
    const size_t before = array.values.size();
    DEEPPCR_RETURN_IF_ERROR(ParseRow(row, line, &array.values));
    const int64_t columns = static_cast<int64_t>(array.values.size() - before);
    if (array.shape[0] == 0) array.shape[1] = columns;
    if (columns != array.shape[1]) {
      return Error(
          line, StrCat("expected ", array.shape[1], " columns as in the first row, got ", columns));
    }
    ++array.shape[0];
  }
  if (array.shape[0] == 0) return InvalidArgument("csv: expected rows of numbers, got none");
  return array;
}

absl::StatusOr<std::string> FormatCsv(const Array& array) {
  if (array.shape.size() != 1 && array.shape.size() != 2) {
    return InvalidArgument("csv holds rows of numbers, not an array of shape ",
                           ShapeToString(array.shape), "; write .npy or .json");
  }
  const size_t columns = static_cast<size_t>(array.shape.back());
  std::string text;
  for (size_t i = 0; i < array.values.size(); ++i) {
    AppendShortest(array.values[i], &text);
    text.push_back((i + 1) % columns == 0 ? '\n' : ',');
  }
  return text;
}

}  // namespace deeppcr
