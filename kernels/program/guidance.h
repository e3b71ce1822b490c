// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_GUIDANCE_H_
#define DEEPPCR_KERNELS_PROGRAM_GUIDANCE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/program/builder.h"
#include "kernels/program/program.h"

namespace deeppcr::program {

// The step of a reverse process with classifier-free guidance (Ho and Salimans 2022, arXiv
// 2207.12598) of scale w, which is 1 without:
//
//   m = m_null + w (m_condition - m_null)
//
// A learned variance and the scale of the noise are those of the condition, as MAR has it. Both
// evaluations are one: what differs between them has two halves, condition first, so that a
// linear layer reads its weights once for both; what does not is computed once. The program's
// condition becomes
//
//   [condition, null condition, w]  where it is a vector of C elements: 2 C + 1
//   [w]                             beside a class, whose null class is `null_class`
//
// Tangents, cotangents and rounding rules are those of the instructions, by w too. Errors:
// kInvalidArgument where the prediction does not depend on the condition; those of the builder.
// Thread-safe.
absl::StatusOr<Program> WithGuidance(const Program& program, int64_t null_class,
                                     const ProgramLimits& limits = {});

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_GUIDANCE_H_
