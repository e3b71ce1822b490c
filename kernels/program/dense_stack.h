// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_DENSE_STACK_H_
#define DEEPPCR_KERNELS_PROGRAM_DENSE_STACK_H_

// The named stacks, mlp and resnet, as programs, and programs that are named stacks.

#include <optional>

#include "absl/status/statusor.h"
#include "kernels/problem/spec.h"
#include "kernels/program/program.h"

namespace deeppcr::program {

// act(A z + b), or z + scale act(A z + b), with a matrix and a bias of each layer.
struct DenseStackForm {
  bool residual = false;
  float scale = 1;
  Activation activation = Activation::kIdentity;
  ValueId matrix = kNoValue, bias = kNoValue;  // bias: kNoValue for zero
  bool transposed = false;                     // the matrix is [in, out]
};

// The form of a block, whatever its exporter called its parts, if it is this one. The program has
// been optimised.
std::optional<DenseStackForm> DenseStackFormOf(const Program& program);

// The step of a named stack. Errors: those of ProgramBuilder.
absl::StatusOr<Program> ProgramOfStack(const DenseStackSpec& spec);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_DENSE_STACK_H_
