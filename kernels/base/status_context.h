// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_STATUS_CONTEXT_H_
#define DEEPPCR_KERNELS_BASE_STATUS_CONTEXT_H_

#include <string_view>

#include "absl/status/status.h"
#include "kernels/base/strings.h"

namespace deeppcr {

// Puts "<context>: ", e.g. the name of the file, before the message of an error. OK stays OK.
inline absl::Status WithContext(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), StrCat(context, ": ", status.message()));
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_STATUS_CONTEXT_H_
