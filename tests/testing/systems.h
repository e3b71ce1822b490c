// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_SYSTEMS_H_
#define DEEPPCR_TESTS_TESTING_SYSTEMS_H_

// Seeded random systems, and the sizes that tend to break things.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/problem/spec.h"

namespace deeppcr::testing {

// Sizes below, at and above powers of two and vector widths.
inline constexpr std::array<int64_t, 7> kAwkwardSteps = {1, 2, 31, 32, 33, 65, 1000};
inline constexpr std::array<int64_t, 8> kAwkwardWidths = {1, 3, 4, 7, 16, 33, 65, 80};

struct StackOptions {
  int64_t num_steps = 1;
  int64_t state_dim = 1;
  bool residual = false;
  Activation activation = Activation::kTanh;
  double gain = 1.0;       // weights are normal with standard deviation gain / sqrt(D)
  double bias = 0.1;       // standard deviation of the biases
  int64_t input_dim = 0;   // 0: no input layer
  int64_t output_dim = 0;  // 0: no output layer
  uint64_t seed = 1;
};

// A dense stack with random weights. Owns what its spec points to; can be moved, never copied.
class RandomSystem {
 public:
  explicit RandomSystem(const StackOptions& shape);
  RandomSystem(RandomSystem&&) = default;
  RandomSystem(const RandomSystem&) = delete;

  const DenseStackSpec& spec() const { return spec_; }
  // Standard normal inputs [n, input_dim].
  std::vector<float> Inputs(int64_t n, uint64_t seed) const;

 private:
  std::vector<float> weights_, biases_, encode_weight_, encode_bias_, decode_weight_, decode_bias_;
  DenseStackSpec spec_;
};

// A description for test names and failure messages.
std::string Describe(const StackOptions& shape);

// The largest |a - b| / (|b| + floor) of all rows, with max norms over row_size values; infinite if
// a is NaN.
double RelativeError(const std::vector<float>& a, const std::vector<double>& b, int64_t row_size,
                     double floor);

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_SYSTEMS_H_
