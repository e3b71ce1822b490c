// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_FINITE_H_
#define DEEPPCR_KERNELS_BASE_FINITE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace deeppcr {

// True if no value is a NaN or an infinity.
inline bool AllFinite(std::span<const float> values) {
  bool finite = true;
  // Without an early exit the loop vectorises.
  for (const float value : values) finite &= std::isfinite(value);
  return finite;
}

// Index of the first NaN or infinity; values.size() if there is none.
inline size_t FirstNonFinite(std::span<const float> values) {
  if (AllFinite(values)) return values.size();
  const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  return static_cast<size_t>(bad - values.begin());
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_FINITE_H_
