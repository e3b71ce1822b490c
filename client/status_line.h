// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_STATUS_LINE_H_
#define DEEPPCR_CLIENT_STATUS_LINE_H_

#include <chrono>
#include <cstddef>
#include <string>

namespace deeppcr {

// "[######......]", filled up to `finished` in [0, 1].
std::string BarText(double finished);

// A line on standard error, which is a terminal, that is rewritten and erased in the end.
class StatusLine {
 public:
  StatusLine() = default;
  ~StatusLine() { Clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // True ten times a second at most.
  bool Due();
  // Characters that a line may have.
  static size_t Width();
  void Draw(const std::string& text);
  void Clear();

 private:
  std::chrono::steady_clock::time_point next_ = {};
  size_t drawn_ = 0;
};

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_STATUS_LINE_H_
