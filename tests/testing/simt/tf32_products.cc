// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/simt/tf32_products.h"

#include <bit>
#include <cmath>

namespace deeppcr::testing::simt {
namespace {

// To the nearest with 10 bits behind the point, to even ones halfway.
float ToTf32(float x) {
  if (!std::isfinite(x)) return x;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0xFFFU + ((bits >> 13) & 1U)) & ~0x1FFFU);
}

void Multiply(const float* right, const float* left, int width, float* product) {
  for (int i = 0; i < width; ++i) {
    for (int j = 0; j < width; ++j) {
      float sum = 0;
      for (int k = 0; k < width; ++k)
        sum += ToTf32(right[i * width + k]) * ToTf32(left[k * width + j]);
      product[i * width + j] = sum;
    }
  }
}

}  // namespace

void MultiplyInTf32(const cuda::GemmArgs& args) {
  for (int32_t j = 0; j < args.count; ++j)
    Multiply(args.right + j * args.stride, args.left + j * args.stride, args.width,
             args.product + j * args.product_stride);
}

}  // namespace deeppcr::testing::simt
