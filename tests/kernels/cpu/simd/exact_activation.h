// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_CPU_SIMD_EXACT_ACTIVATION_H_
#define DEEPPCR_TESTS_KERNELS_CPU_SIMD_EXACT_ACTIVATION_H_

// The activations in double by the vector functions of the C library: a thousand times finer than a
// float, and fast enough for all 2^32 floats. They need AVX2.

#include <cstdint>

#include "kernels/problem/activation.h"

namespace deeppcr::testing {

// y[i] = act(x[i]) for finite x[i].
void ExactActivation(Activation activation, const float* x, double* y, int64_t count);

// The largest distance to exact[i], in units in the last place of its float, for values from the
// least normal float on and for smaller ones. NaN if a y[i] is NaN.
struct LargestErrors {
  double normal, denormal;
};
// `count` must be a multiple of 4.
LargestErrors ErrorsOf(const float* y, const double* exact, int64_t count);

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_KERNELS_CPU_SIMD_EXACT_ACTIVATION_H_
