// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_SHA256_H_
#define DEEPPCR_KERNELS_BASE_SHA256_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace deeppcr {

// SHA-256 (FIPS 180-4) of the bytes, as 64 lower-case hexadecimal digits. Thread-safe.
// Errors: kInternal if the crypto library has no SHA-256.
absl::StatusOr<std::string> Sha256Hex(std::string_view bytes);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_SHA256_H_
