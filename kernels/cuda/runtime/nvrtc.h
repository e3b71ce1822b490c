// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RUNTIME_NVRTC_H_
#define DEEPPCR_KERNELS_CUDA_RUNTIME_NVRTC_H_

// NVRTC, the CUDA Toolkit's compiler as a library, which is looked for when it is first wanted.
// Compiling needs no GPU. Thread-safe.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/cancel_token.h"

namespace deeppcr::cuda {

// Version of the library, e.g. "13.0". Errors: kUnimplemented where there is none of this build's
// toolkit, and what to install.
absl::StatusOr<std::string> NvrtcVersion();

// Options of every compilation, but for the device and the form.
inline constexpr char kCompileOptions[] = "-std=c++17 -fmad=false -default-device";

// Form of what is compiled.
enum class CodeForm : uint8_t {
  kCubin,  // the machine's code
  kPtx,    // before it is assembled
  kNone,   // none: the source is checked, in a tenth of the time
};

// Compiles a source, which may include the headers of kernels/cuda that kernels of programs take,
// for a compute capability such as 90, with the options that the kernels of the module were
// compiled with. Errors: those of NvrtcVersion; kCancelled as soon as the token, which may be null,
// has fired; kInternal with the compiler's words.
absl::StatusOr<std::string> CompileForDevice(const std::string& source, int capability,
                                             CodeForm form, const CancelToken* token);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_RUNTIME_NVRTC_H_
