// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_NEVER_FITS_H_
#define DEEPPCR_KERNELS_BASE_NEVER_FITS_H_

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "kernels/base/strings.h"

namespace deeppcr {

inline constexpr char kNeverFitsUrl[] = "deeppcr/never_fits";

// kResourceExhausted that no waiting helps, from the pieces of its message: what is asked for is
// more than a limit allows, whatever else is in use. Whoever tries again later should know.
template <typename... Args>
absl::Status NeverFits(const Args&... args) {
  absl::Status status = absl::ResourceExhaustedError(StrCat(args...));
  status.SetPayload(kNeverFitsUrl, absl::Cord());
  return status;
}

inline bool IsNeverFits(const absl::Status& status) {
  return status.GetPayload(kNeverFitsUrl).has_value();
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_NEVER_FITS_H_
