// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_KNOWN_ELEMENTS_H_
#define DEEPPCR_KERNELS_PROGRAM_KNOWN_ELEMENTS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/program/builder.h"
#include "kernels/program/program.h"

namespace deeppcr::program {

// The step of a reverse process with elements of the state that are known beforehand, as planners
// hold the ends of a trajectory (Janner et al. 2022, Diffuser, arXiv 2205.09991): the network sees
// their values, and they have them after every step. The condition's vector gets 2 D elements
// behind those that it has:
//
//   [.., mask (not 0: known), values]
//
// A memory behind z stays as it is. unread: elements that stand before these in a condition that
// the program does not read.
//
// Errors: those of the builder. Thread-safe.
absl::StatusOr<Program> WithKnownElements(const Program& program, int64_t unread = 0,
                                          const ProgramLimits& limits = {});

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_KNOWN_ELEMENTS_H_
