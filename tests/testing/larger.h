// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_LARGER_H_
#define DEEPPCR_TESTS_TESTING_LARGER_H_

#include <cmath>

namespace deeppcr::testing {

// The larger of two numbers, or NaN if one of them is: std::max forgets a NaN, and a test that
// looks for the largest error would pass with it.
inline double Larger(double a, double b) { return a >= b || std::isnan(a) ? a : b; }

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_LARGER_H_
