// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/solve_call.h"

#include <array>
#include <string>

#include "kernels/base/status_context.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

// Limits on requests that a handler computes itself: about as long as it takes to wake up another
// thread, and too short to be felt by the other handlers.
constexpr double kShortSeconds = 50e-6;
constexpr int64_t kShortBytes = int64_t{16} << 10;  // the codec's work takes time too

// The reasons why samples fell back: "max_iterations 2, non_finite 1".
std::string FallbackReasons(std::span<const SampleReport> reports) {
  std::array<int64_t, kTerminations.size()> counts{};
  for (const SampleReport& report : reports) {
    if (report.fallback) ++counts[static_cast<size_t>(report.attempt.termination)];
  }
  std::string text;
  for (const Termination reason : kTerminations) {
    const int64_t count = counts[static_cast<size_t>(reason)];
    if (count > 0) text += StrCat(text.empty() ? "" : ", ", ToString(reason), " ", count);
  }
  return text;
}

}  // namespace

absl::Status InField(std::string_view field, const absl::Status& status) {
  return Rephrased(status, StrCat(field, ".", ToStd(status.message())));
}

bool IsShort(const Plan& plan, const ResolvedOptions& options, int64_t samples, int64_t bytes) {
  const double seconds = plan.Lookup(samples).sequential_seconds;
  return options.solver == "sequential" && seconds > 0 && seconds <= kShortSeconds &&
         bytes <= kShortBytes;
}

double ExpectedSeconds(const Plan& plan, const ResolvedOptions& options, int64_t samples) {
  const PlanEntry& full = plan.entries.back();
  const bool by_sequential = options.solver == "sequential" || full.parallel_seconds == 0;
  const double seconds = by_sequential ? full.sequential_seconds : full.parallel_seconds;
  return seconds / static_cast<double>(full.max_samples) * static_cast<double>(samples);
}

void ObserveReports(std::span<const SampleReport> reports, const ServedModel& model,
                    std::string_view solver, absl::FunctionRef<std::string_view()> request_id,
                    const SolverSeries& series, Logger& logger) {
  int64_t fallbacks = 0, unconverged = 0;
  for (const SampleReport& report : reports) {
    ObserveFinite(*series.iterations, report.iterations);
    ObserveFinite(*series.dependent_stages, static_cast<double>(report.dependent_stages));
    if (report.error_estimate.has_value())
      ObserveFinite(*series.error_estimate, *report.error_estimate);
    unconverged += report.converged ? 0 : 1;
    if (!report.fallback) continue;
    ++fallbacks;
    model.metrics->fallbacks[static_cast<size_t>(report.attempt.termination)]->Increment();
  }
  if (fallbacks == 0) return;
  const std::string reasons = FallbackReasons(reports);
  logger.LogLimited(LogLevel::kInfo, "fallback",
                    {{"model", model.name},
                     {"version", model.version},
                     {"solver", solver},
                     {"samples", fallbacks},
                     {"reasons", reasons},
                     {"unconverged", unconverged},
                     {"request_id", request_id()}});
}

}  // namespace deeppcr
