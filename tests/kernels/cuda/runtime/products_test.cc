// SPDX-License-Identifier: Apache-2.0
// The matrix products that the backend needs, compared with loops: on the SIMT executor, or by
// cuBLAS on a GPU (tests/gpu). A solve would hide a wrong product, as it would only take more
// passes.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cuda/runtime/device_buffer.h"
#include "kernels/cuda/runtime/gemm.h"
#include "kernels/cuda/workspace.h"
#include "tests/testing/gpu_under_test.h"

namespace deeppcr {
namespace {

using cuda::DeviceBuffer;
using cuda::MemoryKind;

class ProductsTest : public ::testing::Test {
 protected:
  ProductsTest() : device_(testing::NewDeviceUnderTest()), stream_(*device_->NewStream()) {
    workspace_ =
        *DeviceBuffer<std::byte>::New(*device_, MemoryKind::kDevice, cuda::kLayerProductBytes);
    EXPECT_EQ(stream_->PrepareProducts(workspace_.data(), workspace_.size()), absl::OkStatus());
  }

  std::vector<float> Draw(int64_t count) {
    std::vector<float> values(count);
    for (float& x : values) x = normal_(random_);
    return values;
  }
  DeviceBuffer<float> OnDevice(const std::vector<float>& values) {
    return *DeviceBuffer<float>::Of(*device_, values);
  }
  std::vector<float> OnHost(const DeviceBuffer<float>& values) {
    std::vector<float> host(values.size());
    stream_->CopyToHost(host.data(), values.data(), host.size() * sizeof(float));
    stream_->Wait([] {});
    EXPECT_EQ(stream_->status(), absl::OkStatus());
    return host;
  }

  std::unique_ptr<cuda::Device> device_;
  DeviceBuffer<std::byte> workspace_;
  std::unique_ptr<cuda::Stream> stream_;
  std::mt19937 random_{7};
  std::normal_distribution<float> normal_;
};

// The sum of a_k b_k, and the sum of |a_k b_k|.
struct Sum {
  double value = 0, size = 0;
  void Add(double a, double b) {
    value += a * b;
    size += std::fabs(a * b);
  }
};

// The products are in float32; in TF32 they would be off by 1,000 times as much.
TEST_F(ProductsTest, OfTheMatricesOfATree) {
  constexpr int32_t kWidth = 48, kCount = 3;
  constexpr int64_t kFloats = kWidth * kWidth, kStride = 2 * kFloats, kProductStride = kFloats + 16;
  const std::vector<float> right = Draw(kCount * kStride), left = Draw(kCount * kStride);
  const DeviceBuffer<float> right_there = OnDevice(right), left_there = OnDevice(left);
  const DeviceBuffer<float> products = OnDevice(Draw(kCount * kProductStride));
  stream_->Launch(cuda::GemmArgs{kWidth, kCount, right_there.data(), left_there.data(), kStride,
                                 products.data(), kProductStride});
  const std::vector<float> got = OnHost(products);
  for (int64_t j = 0; j < kCount; ++j) {
    for (int64_t r = 0; r < kWidth; ++r) {
      for (int64_t c = 0; c < kWidth; ++c) {
        Sum want;
        for (int64_t k = 0; k < kWidth; ++k)
          want.Add(right[j * kStride + r * kWidth + k], left[j * kStride + k * kWidth + c]);
        ASSERT_NEAR(got[j * kProductStride + r * kWidth + c], want.value, 1e-6 * want.size)
            << j << " " << r << " " << c;
      }
    }
  }
}

// The shapes are those of the input layer, of the output layer, and of the layers between. TF32
// rounds each factor by 2^-11 or, if it truncates, by 2^-10.
TEST_F(ProductsTest, OfALayerWithTangents) {
  for (const auto& [rows, outputs, inputs] :
       {std::array{37, 256, 16}, std::array{37, 16, 256}, std::array{300, 256, 272}}) {
    const std::vector<float> vectors = Draw(int64_t{rows} * inputs);
    const std::vector<float> weights = Draw(int64_t{outputs} * inputs);
    const DeviceBuffer<float> vectors_there = OnDevice(vectors), weights_there = OnDevice(weights);
    const DeviceBuffer<float> products = OnDevice(Draw(int64_t{rows} * outputs));
    stream_->Launch(cuda::LayerGemmArgs{rows, outputs, inputs, vectors_there.data(),
                                        weights_there.data(), products.data()});
    const std::vector<float> got = OnHost(products);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < outputs; ++i) {
        Sum want;
        for (int64_t k = 0; k < inputs; ++k)
          want.Add(weights[i * inputs + k], vectors[r * inputs + k]);
        ASSERT_NEAR(got[r * outputs + i], want.value, 2e-3 * want.size) << r << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace deeppcr
