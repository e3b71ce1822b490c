// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_SIMT_PRODUCTS_ON_CPU_H_
#define DEEPPCR_TESTS_TESTING_SIMT_PRODUCTS_ON_CPU_H_

#include "kernels/cuda/runtime/gemm.h"

namespace deeppcr::testing::simt {

// Matrix products that stand in for cuBLAS.
void MultiplyOnCpu(const cuda::GemmArgs& args);
void MultiplyOnCpu(const cuda::LayerGemmArgs& args);

}  // namespace deeppcr::testing::simt

#endif  // DEEPPCR_TESTS_TESTING_SIMT_PRODUCTS_ON_CPU_H_
