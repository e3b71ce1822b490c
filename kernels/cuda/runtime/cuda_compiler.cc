// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/cuda_compiler.h"

#include <cuda_runtime_api.h>

#include <string_view>
#include <utility>

#include "kernels/base/sha256.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/cuda/runtime/cuda_errors.h"
#include "kernels/cuda/runtime/embedded_headers.h"
#include "kernels/cuda/runtime/nvrtc.h"

namespace deeppcr::cuda {

#if CUDART_VERSION >= 12080  // first with cudaLibraryLoadData

namespace {

// Kernels of a program, loaded into the runtime.
class LoadedCode final : public DeviceCode {
 public:
  // `lost`: the device's, which outlives the code.
  LoadedCode(cudaLibrary_t library, const std::atomic<bool>& lost)
      : library_(library), lost_(lost) {}
  ~LoadedCode() override {
    if (!lost_) cudaLibraryUnload(library_);  // it would wait for what still runs
  }

  // Finds the kernels, and lets them use what the interpreter's may (PrepareKernels).
  cudaError_t Prepare(int shared_bytes) {
    cudaError_t error = cudaSuccess;
    // `optional`: a program may have no coarse guess or no wide layer, or a device no clusters.
    const auto find = [&](const char* name, bool cluster, bool optional, const void** handle) {
      cudaKernel_t kernel = nullptr;
      if (error != cudaSuccess) return;
      if (const cudaError_t found = cudaLibraryGetKernel(&kernel, library_, name);
          found != cudaSuccess) {
        if (!optional) error = found;
        cudaGetLastError();
        return;
      }
      *handle = kernel;
      error =
          cudaFuncSetAttribute(*handle, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
      if (error == cudaSuccess && cluster)
        error = cudaFuncSetAttribute(*handle, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    };
    find("sequential", false, false, &kernels_.sequential);
    find("cluster_sequential", true, true, &kernels_.cluster_sequential);
    find("grid_sequential", false, true, &kernels_.grid_sequential);
    find("propagation", false, false, &kernels_.propagation);
    find("expansion", false, false, &kernels_.expansion);
    find("coarse", false, true, &kernels_.coarse);
    find("cluster_coarse", true, true, &kernels_.cluster_coarse);
    return error;
  }
  const ProgramKernels& kernels() const override { return kernels_; }

 private:
  const cudaLibrary_t library_;
  const std::atomic<bool>& lost_;
  ProgramKernels kernels_ = {};
};

// NVRTC, for one device.
class CudaCompiler final : public DeviceCompiler {
 public:
  // Errors: kUnimplemented where there is no NVRTC.
  static absl::StatusOr<std::unique_ptr<DeviceCompiler>> New(int device, const DeviceInfo& info,
                                                             const std::atomic<bool>& lost) {
    DEEPPCR_ASSIGN_OR_RETURN(const std::string version, NvrtcVersion());
    DEEPPCR_ASSIGN_OR_RETURN(const std::string digest, DigestOfHeaders());
    const int capability = 10 * info.major + info.minor;
    return std::unique_ptr<DeviceCompiler>(
        new CudaCompiler(device, capability, info.shared_bytes, lost,
                         StrCat("nvrtc ", version, " sm_", capability, " ", digest.substr(0, 12))));
  }

  std::string_view name() const override { return name_; }
  absl::StatusOr<std::string> Compile(const std::string& source,
                                      const CancelToken* token) override {
    return CompileForDevice(source, capability_, CodeForm::kCubin, token);
  }
  absl::StatusOr<std::shared_ptr<const DeviceCode>> Load(const std::string& code) override {
    if (lost_) return Lost();
    cudaLibrary_t library = nullptr;
    cudaError_t error = cudaSetDevice(device_);
    if (error == cudaSuccess)
      error = cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (error == cudaSuccess) {
      auto loaded = std::make_shared<LoadedCode>(library, lost_);
      error = loaded->Prepare(static_cast<int>(shared_bytes_));
      if (error == cudaSuccess) return loaded;
    }
    cudaGetLastError();
    return Failed(absl::StatusCode::kUnavailable, "loading a compiled step", error);
  }

 private:
  CudaCompiler(int device, int capability, size_t shared_bytes, const std::atomic<bool>& lost,
               std::string name)
      : device_(device),
        capability_(capability),
        shared_bytes_(shared_bytes),
        lost_(lost),
        name_(std::move(name)) {}

  static absl::StatusOr<std::string> DigestOfHeaders() {
    std::string all = kCompileOptions;
    for (const EmbeddedHeader& header : EmbeddedHeaders())
      all.append(header.name).append(1, '\0').append(header.text);
    return Sha256Hex(all);
  }

  const int device_, capability_;
  const size_t shared_bytes_;
  const std::atomic<bool>& lost_;
  const std::string name_;
};

}  // namespace

#endif

absl::StatusOr<std::unique_ptr<DeviceCompiler>> NewCudaCompiler(
    [[maybe_unused]] int device, [[maybe_unused]] const DeviceInfo& info,
    [[maybe_unused]] const std::atomic<bool>& lost) {
#if CUDART_VERSION >= 12080
  return CudaCompiler::New(device, info, lost);
#else
  return absl::UnimplementedError(
      "step programs are interpreted on this GPU: this build's CUDA toolkit is older than 12.8");
#endif
}

std::string OtherNvrtc() {
  const absl::StatusOr<std::string> version = NvrtcVersion();
  const std::string ours = StrCat(CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10);
  return version.ok() && *version != ours ? StrCat(" nvrtc=", *version) : "";
}

}  // namespace deeppcr::cuda
