// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BACKEND_MODULE_H_
#define DEEPPCR_KERNELS_BACKEND_MODULE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"

namespace deeppcr {

// A backend in a shared object of its own, loaded at run time, so that one server binary starts on
// hosts without the libraries that the backend needs. The object exports a function of this type
// under this name; the caller checks the version before it calls `create`.
struct BackendModule {
  int version;  // kBackendModuleVersion that the module was built with
  absl::StatusOr<std::unique_ptr<Backend>> (*create)();
};
using BackendModuleFunction = const BackendModule* (*)();

inline constexpr int kBackendModuleVersion = 3;
inline constexpr char kBackendModuleSymbol[] = "deeppcr_backend_module";

// Loads lib<name>.so from DEEPPCR_MODULE_DIR, from the directory of libdeeppcr where that is what
// runs here, from the directory of this program, or from ../lib beside it, and creates its backend.
// The object stays loaded. Errors: kUnavailable: not found, its libraries missing, of another
// version, or no device that it can use.
absl::StatusOr<std::unique_ptr<Backend>> LoadBackendModule(const char* name);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BACKEND_MODULE_H_
