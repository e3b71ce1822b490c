// SPDX-License-Identifier: Apache-2.0
// Takes the place of cuBLAS where fake_runtime.cc takes that of the runtime.
#include "kernels/cuda/products.h"
#include "tests/testing/simt/tf32_products.h"

namespace deeppcr::cuda {
namespace {

class FakeProducts final : public Products {
 public:
  absl::Status Multiply(const GemmArgs& args) override {
    testing::simt::MultiplyInTf32(args);
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Products>> Products::New(cudaStream_t) {
  return std::unique_ptr<Products>(std::make_unique<FakeProducts>());
}

}  // namespace deeppcr::cuda
