// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_FINGERPRINT_H_
#define DEEPPCR_KERNELS_PROGRAM_FINGERPRINT_H_

#include <string>

#include "absl/status/statusor.h"
#include "kernels/program/program.h"

namespace deeppcr::program {

// SHA-256 in lower-case hex of everything that a program computes with; names do not count.
absl::StatusOr<std::string> Fingerprint(const Program& program);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_FINGERPRINT_H_
