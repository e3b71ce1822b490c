// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_TABLE_H_
#define DEEPPCR_CLIENT_TABLE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace deeppcr {

// Lines of text in aligned columns, two blanks apart, without colour codes.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kRight;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Missing cells are empty; cells beyond the last column follow the line as free text (a note).
  // Cells are made Printable.
  void AddRow(std::vector<std::string> cells);

  // Title line, a rule, one line per row; no blanks at line ends.
  std::string Format() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// A server's text for a terminal: control bytes, which could move its cursor or retitle its window,
// become \xNN.
std::string Printable(const std::string& text);

// Three significant digits with the unit that suits: "950 ns", "12.3 us", "4.56 ms", "1.23 s". "-"
// for 0 and below.
std::string FormatSeconds(double seconds);

// "512 B", "1.50 KiB", "12.0 MiB".
std::string FormatBytes(int64_t bytes);

// "231x", "2.31x", "0.23x"; "2.3e-03x" below 0.01, "-" for 0 and below.
std::string FormatRatio(double ratio);

// "1.2e-05"; "0" for zero.
std::string FormatError(double error);

// FormatError of the estimate; "-" if there is none.
std::string FormatEstimate(std::optional<double> estimate);

// "4", "4 +2 warm +1 chord".
std::string IterationsText(double iterations, int64_t warm_sweeps, int64_t chord_corrections);

// "newton 3, sequential 1", with names made Printable.
std::string CountsText(const std::map<std::string, int64_t>& counts);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_TABLE_H_
