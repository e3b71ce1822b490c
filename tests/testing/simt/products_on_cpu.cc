// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/simt/products_on_cpu.h"

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

}  // namespace

void MultiplyOnCpu(const cuda::GemmArgs& args) {
  for (int32_t j = 0; j < args.count; ++j)
    Multiply(args.right + j * args.stride, args.left + j * args.stride, args.width,
             args.product + j * args.product_stride);
}

}  // namespace deeppcr::testing::simt
