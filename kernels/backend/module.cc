// SPDX-License-Identifier: Apache-2.0
#include "kernels/backend/module.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

const char kHere = 0;  // an address in this object

std::vector<std::filesystem::path> SearchDirectories() {
  std::vector<std::filesystem::path> directories;
  if (const char* forced = std::getenv("DEEPPCR_MODULE_DIR"); forced != nullptr)
    directories.emplace_back(forced);
  // The object that holds this code: libdeeppcr, or a program.
  if (Dl_info here; ::dladdr(&kHere, &here) != 0 && here.dli_fname[0] == '/')
    directories.push_back(std::filesystem::path(here.dli_fname).parent_path());
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    directories.push_back(self.parent_path());
    directories.push_back(self.parent_path().parent_path() / "lib");
    // The build tree, where programs and the module lie in different folders.
    directories.push_back(self.parent_path().parent_path() / "kernels");
  }
  return directories;
}

absl::Status Unavailable(const std::string& text) { return absl::UnavailableError(text); }

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> LoadBackendModule(const char* name) {
  const std::string file = StrCat("lib", name, ".so");
  for (const std::filesystem::path& directory : SearchDirectories()) {
    const std::filesystem::path path = directory / file;
    if (::access(path.c_str(), R_OK) != 0) continue;
    void* object = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (object == nullptr) return Unavailable(StrCat(file, ": ", ::dlerror()));
    const auto entry =
        reinterpret_cast<BackendModuleFunction>(::dlsym(object, kBackendModuleSymbol));
    if (entry == nullptr) return Unavailable(StrCat(file, ": has no ", kBackendModuleSymbol));
    const BackendModule* module = entry();
    if (module->version != kBackendModuleVersion)
      return Unavailable(StrCat(file, ": built for module version ", module->version, ", expected ",
                                kBackendModuleVersion));
    return module->create();
  }
  return Unavailable(StrCat(file, " is not installed beside this program"));
}

}  // namespace deeppcr
