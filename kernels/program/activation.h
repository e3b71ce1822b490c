// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_ACTIVATION_H_
#define DEEPPCR_KERNELS_PROGRAM_ACTIVATION_H_

// The activations of named models as operations.

#include <optional>

#include "absl/status/statusor.h"
#include "kernels/problem/activation.h"
#include "kernels/program/builder.h"

namespace deeppcr::program {

// The activation that an operation is, if it is one.
std::optional<Activation> ActivationOf(Op op);

// Writes act(x). Errors: those of ProgramBuilder.
absl::StatusOr<ValueId> AddActivation(ProgramBuilder& builder, Activation activation, ValueId x);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_ACTIVATION_H_
