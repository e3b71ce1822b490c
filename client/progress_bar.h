// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_PROGRESS_BAR_H_
#define DEEPPCR_CLIENT_PROGRESS_BAR_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "client/batched_generate.h"

namespace deeppcr {

// How much of a generation is done, in [0, 1], as far as its latest word tells: samples are solved
// roughly in order.
double FinishedPart(const GenerationProgress& progress);

// In at most `width` characters: a bar filled up to `finished`, the samples that are here, and the
// iterations and error estimate, or the steps, of the sample under way.
std::string ProgressBarText(const GenerationProgress& progress, double finished, size_t width);

// Shows that text on standard error, which is a terminal, in one line that renews itself and is
// gone in the end.
class ProgressBar {
 public:
  ProgressBar() = default;
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Draws ten times a second at most. The bar only grows, whatever threads say out of turn.
  void Show(const GenerationProgress& progress);

 private:
  void Draw(const std::string& text);

  std::chrono::steady_clock::time_point next_ = {};
  double finished_ = 0;
  size_t drawn_ = 0;
};

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_PROGRESS_BAR_H_
