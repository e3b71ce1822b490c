// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_MODEL_NAME_H_
#define DEEPPCR_KERNELS_BASE_MODEL_NAME_H_

// What may stand in <repository>/<model>/<version>: one rule for those who read a repository and
// those who write one.

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace deeppcr {

// OK for a name that may stand in a path: [A-Za-z0-9._-]{1,128}, neither "." nor "..".
// Errors: kInvalidArgument.
absl::Status CheckModelName(std::string_view name);

// A positive decimal integer without leading zeros; 0 for anything else.
int64_t ParseVersion(std::string_view text);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_MODEL_NAME_H_
