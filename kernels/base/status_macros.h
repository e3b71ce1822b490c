// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_STATUS_MACROS_H_
#define DEEPPCR_KERNELS_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Early returns for absl::Status and absl::StatusOr; a language feature would need exceptions.
#define DEEPPCR_RETURN_IF_ERROR(expression)                                 \
  do {                                                                      \
    if (absl::Status deeppcr_failed = (expression); !deeppcr_failed.ok()) { \
      return deeppcr_failed;                                                \
    }                                                                       \
  } while (false)

#define DEEPPCR_CONCAT_INNER_(a, b) a##b
#define DEEPPCR_CONCAT_(a, b) DEEPPCR_CONCAT_INNER_(a, b)

#define DEEPPCR_ASSIGN_OR_RETURN(declaration, expression) \
  DEEPPCR_ASSIGN_OR_RETURN_(DEEPPCR_CONCAT_(deeppcr_or_, __LINE__), declaration, expression)

#define DEEPPCR_ASSIGN_OR_RETURN_(temporary, declaration, expression) \
  auto temporary = (expression);                                      \
  if (!temporary.ok()) return std::move(temporary).status();          \
  declaration = *std::move(temporary)

#endif  // DEEPPCR_KERNELS_BASE_STATUS_MACROS_H_
