// SPDX-License-Identifier: Apache-2.0
// Stands in for cuBLAS where fake_runtime.cc stands in for the CUDA runtime.
#include "kernels/cuda/runtime/products.h"
#include "tests/testing/simt/products_on_cpu.h"

namespace deeppcr::cuda {
namespace {

class FakeProducts final : public Products {
 public:
  absl::Status Multiply(const GemmArgs& args) override {
    testing::simt::MultiplyOnCpu(args);
    return absl::OkStatus();
  }
  absl::Status Multiply(const LayerGemmArgs& args) override {
    testing::simt::MultiplyOnCpu(args);
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Products>> Products::New(cudaStream_t, void*, int64_t) {
  return std::unique_ptr<Products>(std::make_unique<FakeProducts>());
}

std::string ProductsVersion() { return "fake"; }

}  // namespace deeppcr::cuda
