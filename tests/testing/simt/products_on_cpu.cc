// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/simt/products_on_cpu.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace deeppcr::testing::simt {
namespace {

void Multiply(const float* right, const float* left, int width, float* product) {
  for (int i = 0; i < width; ++i) {
    for (int j = 0; j < width; ++j) {
      float sum = 0;
      for (int k = 0; k < width; ++k) sum += right[i * width + k] * left[k * width + j];
      product[i * width + j] = sum;
    }
  }
}

// Rounds to the nearest TF32 number, ties away from zero.
float ToTf32(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::isfinite(x) ? std::bit_cast<float>((bits + 0x1000U) & ~uint32_t{0x1FFF}) : x;
}
}  // namespace

void MultiplyOnCpu(const cuda::GemmArgs& args) {
  for (int32_t j = 0; j < args.count; ++j)
    Multiply(args.right + j * args.stride, args.left + j * args.stride, args.width,
             args.product + j * args.product_stride);
}

// Sums all outputs of a row at a time, as they do not depend on one another.
void MultiplyOnCpu(const cuda::LayerGemmArgs& args) {
  const int64_t inputs = args.inputs, outputs = args.outputs;
  std::vector<float> columns(inputs * outputs);
  for (int64_t i = 0; i < outputs; ++i) {
    for (int64_t k = 0; k < inputs; ++k)
      columns[k * outputs + i] = ToTf32(args.weights[i * inputs + k]);
  }
  std::fill_n(args.products, args.rows * outputs, 0.0F);
  for (int64_t r = 0; r < args.rows; ++r) {
    float* const sums = args.products + r * outputs;
    for (int64_t k = 0; k < inputs; ++k) {
      const float x = ToTf32(args.vectors[r * inputs + k]);
      for (int64_t i = 0; i < outputs; ++i) sums[i] += columns[k * outputs + i] * x;
    }
  }
}

}  // namespace deeppcr::testing::simt
