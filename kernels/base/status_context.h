// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_STATUS_CONTEXT_H_
#define DEEPPCR_KERNELS_BASE_STATUS_CONTEXT_H_

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "kernels/base/strings.h"

namespace deeppcr {

inline void CopyPayloads(const absl::Status& from, absl::Status* to) {
  from.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { to->SetPayload(url, payload); });
}

// The error with another message; what else it carries stays.
inline absl::Status Rephrased(const absl::Status& status, std::string_view message) {
  absl::Status rephrased(status.code(), ToAbsl(message));
  CopyPayloads(status, &rephrased);
  return rephrased;
}

// Puts "<context>: ", e.g. the name of the file, before the message of an error. OK stays OK.
inline absl::Status WithContext(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return Rephrased(status, StrCat(context, ": ", status.message()));
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_STATUS_CONTEXT_H_
