// SPDX-License-Identifier: Apache-2.0
// Stands in for NVRTC where fake_runtime.cc stands in for the CUDA runtime.
#include <atomic>

#include "kernels/cuda/runtime/embedded_headers.h"
#include "kernels/cuda/runtime/nvrtc.h"
#include "tests/testing/simt/fake_runtime.h"

namespace deeppcr::cuda {
namespace {

std::atomic<bool> found = false;

}  // namespace

absl::StatusOr<std::string> NvrtcVersion() {
  if (!found) return absl::UnimplementedError("there is no NVRTC");
  return std::string("13.0");
}

absl::StatusOr<std::string> CompileForDevice(const std::string&, int, CodeForm,
                                             const CancelToken* token) {
  if (Fired(token)) return absl::CancelledError("stopped");
  return std::string(testing::simt::kFakeCode);
}

std::span<const EmbeddedHeader> EmbeddedHeaders() { return {}; }

}  // namespace deeppcr::cuda

namespace deeppcr::testing::simt {

void FindNvrtc(bool found) { cuda::found = found; }

}  // namespace deeppcr::testing::simt
