// SPDX-License-Identifier: Apache-2.0
#include "client/table.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

// Three significant digits without an exponent, for 1 <= value < 1000 (999.6 shows as 1000); two
// decimals below 1.
std::string ThreeDigits(double value) {
  if (value >= 99.95) return absl::StrFormat("%.0f", value);
  if (value >= 9.995) return absl::StrFormat("%.1f", value);
  return absl::StrFormat("%.2f", value);
}

// The number of columns on a terminal: UTF-8 continuation bytes take none.
size_t DisplayWidth(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

void AppendCell(const std::string& cell, size_t width, Table::Align align, std::string* line) {
  const std::string padding(width - std::min(width, DisplayWidth(cell)), ' ');
  if (!line->empty()) line->append("  ");
  if (align == Table::Align::kRight) line->append(padding);
  line->append(cell);
  if (align == Table::Align::kLeft) line->append(padding);
}

void AppendLine(std::string line, std::string* text) {
  line.erase(line.find_last_not_of(' ') + 1);
  absl::StrAppend(text, line, "\n");
}

}  // namespace

std::string Printable(const std::string& text) {
  std::string printable;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // Terminals obey C1 controls both as single bytes, which never begin a character in UTF-8, and
    // as the two bytes c2 80 to c2 9f.
    const bool continues = i > 0 && static_cast<unsigned char>(text[i - 1]) >= 0x80 &&
                           static_cast<unsigned char>(text[i - 1]) != 0xc2;
    const bool c1 = byte >= 0x80 && byte < 0xa0 && !continues;
    if (byte < 0x20 || byte == 0x7f || c1) {
      absl::StrAppendFormat(&printable, "\\x%02x", byte);
    } else {
      printable.push_back(text[i]);
    }
  }
  return printable;
}

void Table::AddRow(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::Format() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(DisplayWidth(column.title));
  for (const std::vector<std::string>& row : rows_) {
    for (size_t i = 0; i < std::min(row.size(), widths.size()); ++i) {
      widths[i] = std::max(widths[i], DisplayWidth(row[i]));
    }
  }
  std::string title;
  std::string rule;
  for (size_t i = 0; i < columns_.size(); ++i) {
    AppendCell(columns_[i].title, widths[i], columns_[i].align, &title);
    AppendCell(std::string(widths[i], '-'), widths[i], Align::kLeft, &rule);
  }
  std::string text;
  AppendLine(title, &text);
  AppendLine(rule, &text);
  for (const std::vector<std::string>& row : rows_) {
    std::string line;
    for (size_t i = 0; i < std::max(row.size(), columns_.size()); ++i) {
      const bool inside = i < columns_.size();
      AppendCell(i < row.size() ? row[i] : "", inside ? widths[i] : 0,
                 inside ? columns_[i].align : Align::kLeft, &line);
    }
    AppendLine(line, &text);
  }
  return text;
}

std::string FormatSeconds(double seconds) {
  if (!(seconds > 0)) return "-";
  if (seconds < 999.5e-9) return ThreeDigits(seconds * 1e9) + " ns";
  if (seconds < 999.5e-6) return ThreeDigits(seconds * 1e6) + " us";
  if (seconds < 999.5e-3) return ThreeDigits(seconds * 1e3) + " ms";
  return ThreeDigits(seconds) + " s";
}

std::string FormatBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return StrCat(ThreeDigits(value), " ", kUnits[unit]);
}

std::string FormatRatio(double ratio) {
  if (!(ratio > 0)) return "-";
  return ratio < 0.01 ? absl::StrFormat("%.1ex", ratio) : ThreeDigits(ratio) + "x";
}

std::string FormatError(double error) { return error == 0 ? "0" : absl::StrFormat("%.1e", error); }

std::string FormatEstimate(std::optional<double> estimate) {
  return estimate.has_value() ? FormatError(*estimate) : "-";
}

std::string IterationsText(double iterations, int64_t warm_sweeps, int64_t chord_corrections) {
  std::string text = absl::StrFormat("%.0f", iterations);
  if (warm_sweeps > 0) absl::StrAppend(&text, " +", warm_sweeps, " warm");
  if (chord_corrections > 0) absl::StrAppend(&text, " +", chord_corrections, " chord");
  return text;
}

std::string CountsText(const std::map<std::string, int64_t>& counts) {
  return absl::StrJoin(counts, ", ",
                       [](std::string* out, const std::pair<const std::string, int64_t>& entry) {
                         absl::StrAppend(out, Printable(entry.first), " ", entry.second);
                       });
}

}  // namespace deeppcr
