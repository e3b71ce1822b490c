// SPDX-License-Identifier: Apache-2.0
#include "kernels/solver/report.h"

#include <string>

#include "kernels/base/strings.h"
#include "kernels/solver/options.h"

namespace deeppcr {
namespace {

std::string UpdateText(const SampleReport& report) {
  const std::string update =
      report.update.has_value() ? StrCat("last update ", *report.update) : "no update";
  return report.rounding_estimate.has_value()
             ? StrCat(update, ", rounding ", *report.rounding_estimate)
             : update;
}

}  // namespace

absl::Status JudgeReports(std::span<const SampleReport> reports, const SolveOptions& options) {
  for (size_t i = 0; i < reports.size(); ++i) {
    const SampleReport& report = reports[i];
    if (report.termination == Termination::kCancelled) {
      return absl::CancelledError("cancelled while it was computed");
    }
    if (report.termination == Termination::kDeadline) {
      return absl::DeadlineExceededError("the deadline passed while it was computed");
    }
    // The request's option counts: the sequential solver's resolved options do not hold it.
    if (report.converged || options.on_no_convergence != OnNoConvergence::kError) continue;
    return absl::AbortedError(StrCat("sample ", i, " did not converge: ", report.solver,
                                     " ended with ", ToString(report.termination), " after ",
                                     report.iterations, " iterations, ", UpdateText(report),
                                     ", rtol ", options.rtol, " (on_no_convergence is error)"));
  }
  return absl::OkStatus();
}

}  // namespace deeppcr
