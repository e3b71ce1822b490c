// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_ELEMENTWISE_H_
#define DEEPPCR_KERNELS_PROGRAM_ELEMENTWISE_H_

// The elementwise operations in double, one row each. Thread-safe.

#include "kernels/program/op.h"

namespace deeppcr::program {

struct ElementwiseRow {
  Op op;
  // Result of operands a[0..]; as IEEE arithmetic has it for infinities and NaN.
  double (*value)(const double* a);
  // Partial derivatives s[0..] by the operands. At a kink that of PyTorch: 0 at relu's and abs's, a
  // half each where two are equal.
  void (*slopes)(const double* a, double* s);
};

// The row of an elementwise operation. Static storage.
const ElementwiseRow& ElementwiseRowOf(Op op);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_ELEMENTWISE_H_
