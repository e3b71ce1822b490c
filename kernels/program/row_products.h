// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_ROW_PRODUCTS_H_
#define DEEPPCR_KERNELS_PROGRAM_ROW_PRODUCTS_H_

// Products of several rows of doubles with one matrix. Every element is summed in one order, which
// depends neither on the number of rows nor on the instruction set.

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/base/cancel_token.h"

namespace deeppcr::program {

// Looks at a token once in a while: products of matrices take seconds.
class Pause {
 public:
  explicit Pause(const CancelToken* token) : token_(token) {}
  // True if the token has fired; `products` more are done by then.
  bool Stop(int64_t products) {
    done_ += products;
    if (done_ < kProducts) return false;
    done_ = 0;
    return Fired(token_);
  }

 private:
  static constexpr int64_t kProducts = int64_t{1} << 20;  // a few hundred microseconds
  const CancelToken* token_;
  int64_t done_ = 0;
};

// y[r, i] += sum_k a[i, k] x[r, k]: a [m, n], x [rows, n], y [rows, m]. False once the token has
// fired, with y of no use.
template <class Number>
bool AddDots(const Number* a, int64_t m, int64_t n, const double* x, int64_t rows, double* y,
             Pause& pause) {
  constexpr int kSums = 4, kRows = 4;
  using Sums = std::array<double, kSums>;
  for (int64_t i = 0; i < m; ++i) {
    if (pause.Stop(n * rows)) return false;
    const Number* const line = a + i * n;
    for (int64_t first = 0; first < rows; first += kRows) {
      const int64_t count = std::min<int64_t>(kRows, rows - first);
      // Rows that are not there repeat the last one.
      std::array<const double*, kRows> in;
      for (int r = 0; r < kRows; ++r) in[r] = x + (first + std::min<int64_t>(r, count - 1)) * n;
      std::array<Sums, kRows> sums = {};
      int64_t k = 0;
      for (; k + kSums <= n; k += kSums) {
        Sums weights;
        for (int s = 0; s < kSums; ++s) weights[s] = line[k + s];
        for (int r = 0; r < kRows; ++r)
          for (int s = 0; s < kSums; ++s) sums[r][s] += weights[s] * in[r][k + s];
      }
      for (; k < n; ++k)
        for (int r = 0; r < kRows; ++r) sums[r][0] += double{line[k]} * in[r][k];
      for (int64_t r = 0; r < count; ++r)
        y[(first + r) * m + i] += (sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]);
    }
  }
  return true;
}

// y[r, k] += sum_i a[i, k] x[r, i]: a [m, n], x [rows, m], y [rows, n]. False as above.
template <class Number>
bool AddCombinations(const Number* a, int64_t m, int64_t n, const double* x, int64_t rows,
                     double* y, Pause& pause) {
  constexpr int64_t kLines = 4;
  for (int64_t i = 0; i < m; i += kLines) {
    const int64_t lines = std::min(kLines, m - i);
    if (pause.Stop(lines * n * rows)) return false;
    const Number* const line = a + i * n;
    for (int64_t r = 0; r < rows; ++r) {
      const double* const factors = x + r * m + i;
      double* const to = y + r * n;
      if (lines == kLines) {
        for (int64_t k = 0; k < n; ++k)
          to[k] += (factors[0] * line[k] + factors[1] * line[n + k]) +
                   (factors[2] * line[2 * n + k] + factors[3] * line[3 * n + k]);
        continue;
      }
      for (int64_t l = 0; l < lines; ++l)
        for (int64_t k = 0; k < n; ++k) to[k] += factors[l] * line[l * n + k];
    }
  }
  return true;
}

// c[e] += sum_r p[r, i] q[r, k] for the elements e = i n + k of [begin, end): p [rows, m], q [rows,
// n]. `c` begins with element `begin`; each sum is added to it once, and rounded then.
template <class Number>
void AddOuterProducts(const double* p, int64_t m, const double* q, int64_t n, int64_t rows,
                      int64_t begin, int64_t end, Number* c) {
  constexpr int64_t kTogether = 64;
  for (int64_t e = begin; e < end;) {
    const int64_t i = e / n, k = e % n;
    const int64_t count = std::min({kTogether, n - k, end - e});
    std::array<double, kTogether> sums = {};
    for (int64_t r = 0; r < rows; ++r) {
      const double factor = p[r * m + i];
      const double* const from = q + r * n + k;
      for (int64_t j = 0; j < count; ++j) sums[j] += factor * from[j];
    }
    Number* const to = c + (e - begin);
    for (int64_t j = 0; j < count; ++j) to[j] = static_cast<Number>(double{to[j]} + sums[j]);
    e += count;
  }
}

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_ROW_PRODUCTS_H_
