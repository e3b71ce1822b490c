// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/timesteps.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/noise_schedule.h"

namespace deeppcr {
namespace {

std::vector<int64_t> LeadingTimesteps(const SchedulerConfig& config, int64_t count) {
  const int64_t stride = config.num_train_timesteps / count;
  std::vector<int64_t> timesteps;
  for (int64_t i = count - 1; i >= 0; --i) timesteps.push_back(i * stride + config.steps_offset);
  return timesteps;
}

std::vector<int64_t> LinspaceTimesteps(const SchedulerConfig& config, int64_t count) {
  const double last = static_cast<double>(config.num_train_timesteps - 1);
  std::vector<int64_t> timesteps;
  for (const double value : Linspace(0.0, last, count)) timesteps.push_back(RoundHalfToEven(value));
  std::reverse(timesteps.begin(), timesteps.end());
  return timesteps;
}

// Timesteps by the floating-point operations of numpy.arange(from, 0, -T / n), in the same order:
// where a value is a half up to rounding, the operations decide to which side the value goes.
std::vector<int64_t> TrailingTimesteps(const SchedulerConfig& config, int64_t from, int64_t count) {
  const double start = static_cast<double>(from);
  const double stride =
      static_cast<double>(config.num_train_timesteps) / static_cast<double>(count);
  const double delta = (start - stride) - start;
  const auto size = static_cast<int64_t>(std::ceil(start / stride));
  std::vector<int64_t> timesteps;
  for (int64_t i = 0; i < size; ++i) {
    timesteps.push_back(RoundHalfToEven(start + static_cast<double>(i) * delta) - 1);
  }
  return timesteps;
}

std::vector<int64_t> ListedTimesteps(const SchedulerConfig& config, int64_t count) {
  switch (config.timestep_spacing) {
    case TimestepSpacing::kLeading:
      return LeadingTimesteps(config, count);
    case TimestepSpacing::kLinspace:
      return LinspaceTimesteps(config, count);
    case TimestepSpacing::kTrailing:
      return TrailingTimesteps(config, config.num_train_timesteps, count);
  }
  return {};
}

absl::Status CheckInRange(const SchedulerConfig& config, const std::vector<int64_t>& timesteps) {
  const int64_t count = static_cast<int64_t>(timesteps.size());
  if (timesteps.front() >= config.num_train_timesteps) {
    return InvalidArgument(
        "steps_offset: expected timesteps below num_train_timesteps = ", config.num_train_timesteps,
        ", got ", timesteps.front(), " with ", count, " steps and offset ", config.steps_offset);
  }
  if (timesteps.back() >= 0) return absl::OkStatus();
  return InvalidArgument(
      "num_inference_steps: expected a number for which `trailing` ends at 0 or "
      "above, got ",
      count - 1, " of ", config.num_train_timesteps, ", for which diffusers makes ", count,
      " timesteps ending in ", timesteps.back());
}

}  // namespace

absl::Status CheckNumSteps(const SchedulerConfig& config, int64_t num_inference_steps) {
  if (num_inference_steps >= 1 && num_inference_steps <= config.num_train_timesteps)
    return absl::OkStatus();
  return InvalidArgument("num_inference_steps: expected an integer in [1, num_train_timesteps = ",
                         config.num_train_timesteps, "], got ", num_inference_steps);
}

absl::StatusOr<std::vector<int64_t>> Timesteps(const SchedulerConfig& config,
                                               int64_t num_inference_steps) {
  DEEPPCR_RETURN_IF_ERROR(CheckNumSteps(config, num_inference_steps));
  std::vector<int64_t> timesteps = ListedTimesteps(config, num_inference_steps);
  DEEPPCR_RETURN_IF_ERROR(CheckInRange(config, timesteps));
  return timesteps;
}

absl::StatusOr<std::vector<int64_t>> DpmTimesteps(const SchedulerConfig& config,
                                                  int64_t last_timestep,
                                                  int64_t num_inference_steps) {
  const int64_t n = num_inference_steps;
  std::vector<int64_t> timesteps;
  switch (config.timestep_spacing) {
    case TimestepSpacing::kLeading:
      for (int64_t i = n; i > 0; --i)
        timesteps.push_back(i * (last_timestep / (n + 1)) + config.steps_offset);
      break;
    case TimestepSpacing::kLinspace: {
      const auto values = Linspace(0.0, static_cast<double>(last_timestep - 1), n + 1);
      for (int64_t i = n; i > 0; --i)
        timesteps.push_back(RoundHalfToEven(values[static_cast<size_t>(i)]));
      break;
    }
    case TimestepSpacing::kTrailing:
      timesteps = TrailingTimesteps(config, last_timestep, n);
      break;
  }
  if (std::ssize(timesteps) < n) {
    return InvalidArgument("num_inference_steps: expected a number of which `trailing` makes as ",
                           "many timesteps below ", last_timestep, " (lambda_min_clipped), got ", n,
                           ", of which it makes ", timesteps.size());
  }
  DEEPPCR_RETURN_IF_ERROR(CheckInRange(config, timesteps));
  return timesteps;
}

absl::StatusOr<std::vector<int64_t>> LcmTimesteps(const SchedulerConfig& config,
                                                  int64_t num_inference_steps) {
  const int64_t original = config.original_inference_steps;
  if (num_inference_steps < 1 || num_inference_steps > original) {
    return InvalidArgument(
        "num_inference_steps: expected an integer in [1, original_inference_steps = ", original,
        "], got ", num_inference_steps);
  }
  const int64_t stride = config.num_train_timesteps / original;
  // numpy.linspace(0, original, n, endpoint=False), rounded down.
  const double step = static_cast<double>(original) / static_cast<double>(num_inference_steps);
  std::vector<int64_t> timesteps;
  for (int64_t i = 0; i < num_inference_steps; ++i) {
    const auto index = static_cast<int64_t>(std::floor(static_cast<double>(i) * step));
    timesteps.push_back((original - index) * stride - 1);
  }
  return timesteps;
}

}  // namespace deeppcr
