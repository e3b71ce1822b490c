// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_MODELS_REPOSITORY_H_
#define DEEPPCR_SERVER_MODELS_REPOSITORY_H_

// The model repository on disk: <repository>/<model>/<version>/<files>. Symbolic links are never
// followed.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/model_name.h"  // CheckModelName, ParseVersion

namespace deeppcr {

// The names in a directory, sorted; as many as could be read where `error` is set.
std::vector<std::string> EntriesOf(const std::filesystem::path& directory, std::error_code& error);

// Every version of a model, ascending, at least one. Errors: kNotFound, kFailedPrecondition (a
// symbolic link, or a directory that cannot be read).
absl::StatusOr<std::vector<int64_t>> VersionsOf(const std::filesystem::path& repository,
                                                const std::string& name);

// The highest version of a model. Errors: as VersionsOf.
absl::StatusOr<int64_t> LatestVersion(const std::filesystem::path& repository,
                                      const std::string& name);

// OK if the version is there and made of plain files. Errors: as LatestVersion.
absl::Status CheckVersion(const std::filesystem::path& repository, const std::string& name,
                          int64_t version);

// Turns an error of reading a version into one for a client, which explains and retries by its
// code: kInvalidArgument if the contents are at fault, kFailedPrecondition if the machine or a
// limit is; our own bugs and cancellation stay. The path of the version becomes `shown`: clients
// are not to know where the repository lies.
absl::Status AsLoadError(const absl::Status& status, std::string_view directory,
                         std::string_view shown);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_MODELS_REPOSITORY_H_
