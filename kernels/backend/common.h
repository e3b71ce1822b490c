// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BACKEND_COMMON_H_
#define DEEPPCR_KERNELS_BACKEND_COMMON_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/base/strings.h"

namespace deeppcr {

// What backends do alike.

// kResourceExhausted if a packed model of so many bytes is not allowed.
inline absl::Status CheckPackedBytes(int64_t bytes, const PackingLimits& limits) {
  if (bytes <= limits.max_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      StrCat("packed, the model takes at least ", bytes, " bytes; ", limits.max_bytes,
             " are left of those allowed (raise max_model_bytes, or name fewer "
             "num_inference_steps)"));
}

// A NaN is none.
inline double LargestAbsolute(std::span<const float> x) {
  double largest = 0;
  for (const float value : x) largest = std::max(largest, double{std::fabs(value)});
  return largest;
}

// SolveSpace::AmplifyError, given the largest row sum of the absolute Jacobian of the outputs.
inline double AmplifiedError(double relative_error, std::span<const float> state, double floor,
                             double amplification, std::span<const float> outputs) {
  if (relative_error == 0) return 0;
  const double error = relative_error * (LargestAbsolute(state) + floor) * amplification;
  // Where the outputs do not depend on the state, they may all be zero.
  if (error == 0) return 0;
  const double largest = LargestAbsolute(outputs);
  return std::isfinite(largest) ? error / largest : std::numeric_limits<double>::infinity();
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BACKEND_COMMON_H_
