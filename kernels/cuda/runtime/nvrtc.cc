// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/nvrtc.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/cuda/runtime/embedded_headers.h"

namespace deeppcr::cuda {
namespace {

// Functions of NVRTC that we call.
struct Library {
  decltype(&nvrtcVersion) version = nullptr;
  decltype(&nvrtcGetErrorString) error_text = nullptr;
  decltype(&nvrtcCreateProgram) create = nullptr;
  decltype(&nvrtcDestroyProgram) destroy = nullptr;
  decltype(&nvrtcCompileProgram) compile = nullptr;
  decltype(&nvrtcGetProgramLogSize) log_size = nullptr;
  decltype(&nvrtcGetProgramLog) log = nullptr;
  decltype(&nvrtcGetCUBINSize) cubin_size = nullptr;
  decltype(&nvrtcGetCUBIN) cubin = nullptr;
  decltype(&nvrtcGetPTXSize) ptx_size = nullptr;
  decltype(&nvrtcGetPTX) ptx = nullptr;
  // Since 12.8; null: nothing interrupts a compilation.
  nvrtcResult (*set_flow_callback)(nvrtcProgram, int (*)(void*, void*), void*) = nullptr;
};

template <class Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

absl::StatusOr<Library> Open() {
  const std::string file = StrCat("libnvrtc.so.", CUDART_VERSION / 1000);
  // Where the toolkit is, but not among the linker's folders.
  const std::string in_toolkit = StrCat("/usr/local/cuda/lib64/", file);
  void* opened = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) opened = dlopen(in_toolkit.c_str(), RTLD_NOW | RTLD_LOCAL);
  Library library;
  if (opened != nullptr && Find(opened, "nvrtcVersion", &library.version) &&
      Find(opened, "nvrtcGetErrorString", &library.error_text) &&
      Find(opened, "nvrtcCreateProgram", &library.create) &&
      Find(opened, "nvrtcDestroyProgram", &library.destroy) &&
      Find(opened, "nvrtcCompileProgram", &library.compile) &&
      Find(opened, "nvrtcGetProgramLogSize", &library.log_size) &&
      Find(opened, "nvrtcGetProgramLog", &library.log) &&
      Find(opened, "nvrtcGetCUBINSize", &library.cubin_size) &&
      Find(opened, "nvrtcGetCUBIN", &library.cubin) &&
      Find(opened, "nvrtcGetPTXSize", &library.ptx_size) &&
      Find(opened, "nvrtcGetPTX", &library.ptx)) {
    Find(opened, "nvrtcSetFlowCallback", &library.set_flow_callback);
    return library;
  }
  const char* const why = dlerror();
  return absl::UnimplementedError(StrCat("step programs are interpreted on this GPU: ",
                                         std::string_view(why == nullptr ? file.c_str() : why),
                                         "; with libnvrtc of the CUDA toolkit they are compiled"));
}

// Library that is opened once and never closed.
const absl::StatusOr<Library>& TheLibrary() {
  static const auto* library = new absl::StatusOr<Library>(Open());
  return *library;
}

// A program of the library, with our headers.
class Program {
 public:
  explicit Program(const Library& library) : library_(library) {}
  ~Program() {
    if (program_ != nullptr) library_.destroy(&program_);
  }
  Program(const Program&) = delete;

  absl::Status Create(const std::string& source) {
    std::vector<const char*> texts, names;
    for (const EmbeddedHeader& header : EmbeddedHeaders()) {
      names.push_back(header.name);
      texts.push_back(header.text);
    }
    return StatusOf(library_.create(&program_, source.c_str(), "program.cu",
                                    static_cast<int>(names.size()), texts.data(), names.data()));
  }
  absl::Status Compile(int capability, CodeForm form, const CancelToken* token) {
    const std::string arch =
        StrCat(form == CodeForm::kCubin ? "-arch=sm_" : "-arch=compute_", capability);
    if (token != nullptr && library_.set_flow_callback != nullptr)
      DEEPPCR_RETURN_IF_ERROR(StatusOf(
          library_.set_flow_callback(program_, &StopsFor, const_cast<CancelToken*>(token))));
    // As in kernels/cuda/CMakeLists.txt: only fmaf fuses.
    const std::vector<std::string> common = absl::StrSplit(kCompileOptions, ' ');
    std::vector<const char*> options = {arch.c_str()};
    for (const std::string& option : common) options.push_back(option.c_str());
    if (form == CodeForm::kNone) options.push_back("-fdevice-syntax-only");
    const nvrtcResult result =
        library_.compile(program_, static_cast<int>(options.size()), options.data());
    if (Fired(token)) return absl::CancelledError("stopped while the step was compiled");
    if (result == NVRTC_SUCCESS) return absl::OkStatus();
    return absl::InternalError(
        StrCat("NVRTC: ", std::string_view(library_.error_text(result)), ": ", Log()));
  }
  absl::StatusOr<std::string> Code(CodeForm form) const {
    if (form == CodeForm::kNone) return std::string();
    const bool cubin = form == CodeForm::kCubin;
    size_t size = 0;
    DEEPPCR_RETURN_IF_ERROR(
        StatusOf((cubin ? library_.cubin_size : library_.ptx_size)(program_, &size)));
    std::string code(size, '\0');
    DEEPPCR_RETURN_IF_ERROR(
        StatusOf((cubin ? library_.cubin : library_.ptx)(program_, code.data())));
    return code;
  }

 private:
  static int StopsFor(void* token, void*) {
    return Fired(static_cast<const CancelToken*>(token)) ? 1 : 0;
  }
  absl::Status StatusOf(nvrtcResult result) const {
    if (result == NVRTC_SUCCESS) return absl::OkStatus();
    return absl::InternalError(StrCat("NVRTC: ", std::string_view(library_.error_text(result))));
  }
  // The first words of the compiler's log.
  std::string Log() const {
    constexpr size_t kMostBytes = 1000;
    size_t size = 0;
    if (library_.log_size(program_, &size) != NVRTC_SUCCESS || size == 0) return {};
    std::string log(size, '\0');
    if (library_.log(program_, log.data()) != NVRTC_SUCCESS) return {};
    log.resize(std::min(kMostBytes, log.find('\0')));
    return log;
  }

  const Library& library_;
  nvrtcProgram program_ = nullptr;
};

}  // namespace

absl::StatusOr<std::string> NvrtcVersion() {
  DEEPPCR_RETURN_IF_ERROR(TheLibrary().status());
  int major = 0, minor = 0;
  if (TheLibrary()->version(&major, &minor) != NVRTC_SUCCESS)
    return absl::UnimplementedError("NVRTC does not say its version");
  return StrCat(major, ".", minor);
}

absl::StatusOr<std::string> CompileForDevice(const std::string& source, int capability,
                                             CodeForm form, const CancelToken* token) {
  DEEPPCR_RETURN_IF_ERROR(TheLibrary().status());
  if (Fired(token)) return absl::CancelledError("stopped before the step was compiled");
  Program program(*TheLibrary());
  DEEPPCR_RETURN_IF_ERROR(program.Create(source));
  DEEPPCR_RETURN_IF_ERROR(program.Compile(capability, form, token));
  return program.Code(form);
}

}  // namespace deeppcr::cuda
