// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_SIMT_TF32_PRODUCTS_H_
#define DEEPPCR_TESTS_TESTING_SIMT_TF32_PRODUCTS_H_

#include "kernels/cuda/gemm.h"

namespace deeppcr::testing::simt {

// What tensor cores make of it, as far as that is specified: inputs rounded to TF32, sums in
// float32 in some order.
void MultiplyInTf32(const cuda::GemmArgs& args);

}  // namespace deeppcr::testing::simt

#endif  // DEEPPCR_TESTS_TESTING_SIMT_TF32_PRODUCTS_H_
