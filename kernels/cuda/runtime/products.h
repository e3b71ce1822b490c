// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RUNTIME_PRODUCTS_H_
#define DEEPPCR_KERNELS_CUDA_RUNTIME_PRODUCTS_H_

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/runtime/gemm.h"

namespace deeppcr::cuda {

// Products of matrices on a stream, by cuBLAS in a workspace of ours. The library is looked for
// only when a model needs it: a server whose models do not need cuBLAS runs on machines without it.
class Products {
 public:
  // Stream and workspace must outlive the result. Errors: kUnimplemented without the library,
  // saying what to install; kResourceExhausted; kUnavailable where the device has failed.
  static absl::StatusOr<std::unique_ptr<Products>> New(cudaStream_t stream, void* workspace,
                                                       int64_t bytes);
  virtual ~Products() = default;
  // Errors: kUnavailable.
  virtual absl::Status Multiply(const GemmArgs& args) = 0;
  virtual absl::Status Multiply(const LayerGemmArgs& args) = 0;
};

// Version of the cuBLAS that would be used, e.g. "13.1.0"; "none" where there is no cuBLAS.
std::string ProductsVersion();

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_RUNTIME_PRODUCTS_H_
