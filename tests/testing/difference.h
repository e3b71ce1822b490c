// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_DIFFERENCE_H_
#define DEEPPCR_TESTS_TESTING_DIFFERENCE_H_

#include <cmath>
#include <limits>
#include <vector>

#include "tests/testing/larger.h"

namespace deeppcr::testing {

// The largest |a - b| by the largest |b|: NaN, which no comparison passes with, where an element is
// NaN, all of b are zero, or the sizes differ.
inline double Difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::quiet_NaN();
  double difference = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = Larger(difference, std::fabs(double{a[i]} - double{b[i]}));
    largest = Larger(largest, std::fabs(double{b[i]}));
  }
  return difference / largest;
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_DIFFERENCE_H_
