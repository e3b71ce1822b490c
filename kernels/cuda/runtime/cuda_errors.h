// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RUNTIME_CUDA_ERRORS_H_
#define DEEPPCR_KERNELS_CUDA_RUNTIME_CUDA_ERRORS_H_

// Errors of a GPU as statuses.

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"
#include "kernels/base/strings.h"

namespace deeppcr::cuda {

inline absl::Status Failed(absl::StatusCode code, std::string_view what, cudaError_t error) {
  return {code, ToAbsl(StrCat("CUDA: ", what, ": ", cudaGetErrorString(error)))};
}

inline absl::Status Lost() {
  return absl::UnavailableError("CUDA: the device is lost: work on it did not end");
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_RUNTIME_CUDA_ERRORS_H_
