// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_CPU_KERNELS_FIXTURE_H_
#define DEEPPCR_TESTS_KERNELS_CPU_KERNELS_FIXTURE_H_

// Tests of the kernels of every instruction set of this machine at every kind of width.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cpu/packed_dense.h"
#include "tests/testing/larger.h"
#include "tests/testing/packed_layers.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {

using Matrices = IntervalBuffers::Matrices;
using Vector = std::vector<double>;

inline constexpr double kUnit = 0x1p-24;

inline bool SameBits(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(float)) == 0;
}

inline Vector Doubles(const float* x, int64_t count) { return {x, x + count}; }

// C = A B of row-major [D, D] matrices.
inline Vector Product(const Vector& a, const Vector& b, int64_t dim) {
  Vector c(dim * dim);
  for (int64_t i = 0; i < dim; ++i)
    for (int64_t k = 0; k < dim; ++k)
      for (int64_t j = 0; j < dim; ++j) c[i * dim + j] += a[i * dim + k] * b[k * dim + j];
  return c;
}

inline double Largest(const Vector& a) {
  double largest = 0;
  for (const double x : a) largest = Larger(largest, std::fabs(x));
  return largest;
}

// Steps that are known at compile time (residual and relu), and others.
struct StepKind {
  bool residual;
  Activation activation;
};
inline constexpr StepKind kStepKinds[] = {{true, Activation::kRelu},
                                          {false, Activation::kRelu},
                                          {true, Activation::kSilu},
                                          {false, Activation::kGelu}};

class CpuKernelsTest : public ::testing::TestWithParam<std::tuple<size_t, int64_t>> {
 protected:
  CpuKernelsTest()
      : dim_(std::get<1>(GetParam())),
        width_(cpu::PaddedWidth(dim_)),
        kernels_(KernelSets()[std::get<0>(GetParam())].kernels(width_)) {}

  RandomSystem NewSystem(int64_t steps, bool residual, Activation activation) const {
    return RandomSystem({.num_steps = steps,
                         .state_dim = dim_,
                         .residual = residual,
                         .activation = activation,
                         .seed = static_cast<uint64_t>(dim_ + steps)});
  }

  // Fills the first D lanes of each row of W with standard normal values.
  void FillRows(float* to, int64_t rows) {
    std::normal_distribution<float> normal;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < dim_; ++i) to[r * width_ + i] = normal(generator_);
  }
  AlignedBuffer<float> RandomRows(int64_t rows) {
    AlignedBuffer<float> buffer(rows * width_);
    FillRows(buffer.data(), rows);
    return buffer;
  }

  // Expects every lane beyond D to be a zero of either sign.
  void ExpectPaddingZero(const float* rows, int64_t count, const char* what) const {
    for (int64_t r = 0; r < count; ++r)
      for (int64_t i = dim_; i < width_; ++i)
        ASSERT_EQ(rows[r * width_ + i], 0.0F) << what << " row " << r << " lane " << i;
  }

  // Fills states y_0..y_P of all intervals, and their probes.
  void FillStates(IntervalBuffers& buffers, bool probes) {
    for (int64_t p = 0; p <= buffers.num_intervals(); ++p) {
      FillRows(buffers.State(p), 1);
      if (probes) FillRows(buffers.State(p, 1), cpu::kColumns - 1);
    }
  }

  // The row-major D x D matrix in packed columns.
  Vector Unpack(const float* columns) const {
    Vector matrix(dim_ * dim_);
    for (int64_t k = 0; k < dim_; ++k)
      for (int64_t i = 0; i < dim_; ++i) matrix[i * dim_ + k] = columns[k * width_ + i];
    return matrix;
  }

  const int64_t dim_, width_;
  const cpu::Kernels kernels_;
  std::mt19937 generator_{7};
};

inline std::string KernelsCaseName(
    const ::testing::TestParamInfo<CpuKernelsTest::ParamType>& test) {
  return KernelSets()[std::get<0>(test.param)].name + "_D" +
         std::to_string(std::get<1>(test.param));
}

// Instruction sets and state dimensions: at, below and above every width.
inline auto KernelsCases() {
  return ::testing::Combine(::testing::Range(size_t{0}, KernelSets().size()),
                            ::testing::Values(1, 3, 4, 5, 8, 16, 17, 31, 32, 33, 64, 65, 80));
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_KERNELS_CPU_KERNELS_FIXTURE_H_
