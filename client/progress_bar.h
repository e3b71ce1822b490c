// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_PROGRESS_BAR_H_
#define DEEPPCR_CLIENT_PROGRESS_BAR_H_

#include <cstddef>
#include <string>

#include "client/batched_generate.h"
#include "client/status_line.h"

namespace deeppcr {

// The finished part of a generation, in [0, 1], by its latest progress: samples are solved roughly
// in order.
double FinishedPart(const GenerationProgress& progress);

// A line of at most `width` characters: a bar filled up to `finished`, the samples received, and
// the iterations and error estimate, or the steps, of the sample under way.
std::string ProgressBarText(const GenerationProgress& progress, double finished, size_t width);

// Shows ProgressBarText on standard error, which is a terminal, in one line that is rewritten, and
// erased in the end.
class ProgressBar {
 public:
  // Draws ten times a second at most. The bar only grows, even if progress arrives out of order.
  void Show(const GenerationProgress& progress);

 private:
  StatusLine line_;
  double finished_ = 0;
};

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_PROGRESS_BAR_H_
