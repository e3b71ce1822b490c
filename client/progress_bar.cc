// SPDX-License-Identifier: Apache-2.0
#include "client/progress_bar.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/table.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

std::string SolveText(const v1::GenerateProgress& solve) {
  if (solve.solver().empty()) return "";
  const std::string solver = StrCat(", ", Printable(solve.solver()));
  if (solve.steps() > 0) {
    return StrCat(solver, " step ", solve.steps(), " of ", solve.num_steps());
  }
  std::string text = StrCat(solver, " iteration ", solve.iterations());
  if (solve.has_error_estimate()) {
    absl::StrAppend(&text, ", error estimate ", FormatError(solve.error_estimate()));
  }
  return text;
}

}  // namespace

// Counts the steps of the sample under way, but not its iterations: their total is not known.
double FinishedPart(const GenerationProgress& progress) {
  const v1::GenerateProgress& solve = progress.solve;
  const double part = solve.num_steps() > 0 ? static_cast<double>(solve.steps()) /
                                                  static_cast<double>(solve.num_steps())
                                            : 0;
  const double here = static_cast<double>(solve.sample()) + std::clamp(part, 0.0, 1.0);
  const double samples = static_cast<double>(progress.done) +
                         std::clamp(here, 0.0, static_cast<double>(progress.in_request));
  const double all = static_cast<double>(std::max<int64_t>(progress.num_samples, 1));
  return std::clamp(samples / all, 0.0, 1.0);
}

std::string ProgressBarText(const GenerationProgress& progress, double finished, size_t width) {
  const std::string text =
      absl::StrFormat("%s %d of %d samples%s", BarText(finished), progress.done,
                      progress.num_samples, SolveText(progress.solve));
  return text.substr(0, width);
}

void ProgressBar::Show(const GenerationProgress& progress) {
  if (!line_.Due()) return;
  finished_ = std::max(finished_, FinishedPart(progress));
  line_.Draw(ProgressBarText(progress, finished_, StatusLine::Width()));
}

}  // namespace deeppcr
