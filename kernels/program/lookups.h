// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_LOOKUPS_H_
#define DEEPPCR_KERNELS_PROGRAM_LOOKUPS_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/base/cancel_token.h"
#include "kernels/program/program.h"

namespace deeppcr::program {

// Integers up to here are exact in float32, in which the indices of lookups are computed that
// depend on a condition.
inline constexpr int64_t kMaxFloatIndex = int64_t{1} << 24;

// Checks that every lookup of a program finds a row, and the same one in double, in which tables of
// the time are made, as in float32, in which a condition's are and an exporter's framework
// computes: for every class in [0, num_classes), at every time. Where trying all takes too long,
// some are tried, the first and the last among them. Lookups by a condition's vector cannot be
// tried. Errors: kInvalidArgument naming class, time and table; kUnimplemented for classes and
// tables beyond kMaxFloatIndex; kCancelled.
absl::Status CheckLookups(const Program& program, int64_t num_classes,
                          std::span<const double> times, const CancelToken* token);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_LOOKUPS_H_
