// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_MODELS_REPOSITORY_H_
#define DEEPPCR_SERVER_MODELS_REPOSITORY_H_

// The model repository on disk: <repository>/<model>/<version>/<files>, or the folder of one model.
// Symbolic links within it are never followed.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/model_name.h"  // CheckModelName, ParseVersion

namespace deeppcr {

// The names in a directory, sorted; as many as could be read where `error` is set.
std::vector<std::string> EntriesOf(const std::filesystem::path& directory, std::error_code& error);

// Where models lie. A value; every method looks at the disk anew.
class Repository {
 public:
  using Path = std::filesystem::path;

  // The folder of models, each with its versions.
  Repository(Path folder) : folder_(std::move(folder)) {}     // NOLINT: a path is a repository
  Repository(const std::string& folder) : folder_(folder) {}  // NOLINT
  // The one model of this name. The folder holds its versions, or, with a config.json of its own,
  // is version 1, as what model hubs hand out; it may be reached by a link, and there hidden
  // entries and folders beside the files mean nothing, but for later versions (2 and above),
  // which are folders with a config.json of their own.
  static Repository OfModel(Path folder, std::string name);

  // The names in it that may be models, sorted; as many as could be read where `error` is set.
  std::vector<std::string> Entries(std::error_code& error) const;

  // The folder of a model, and of a version.
  Path FolderOf(const std::string& name) const;
  Path FolderOf(const std::string& name, int64_t version) const;
  // What is there under the name, links not followed, but for the folder of the one model.
  std::filesystem::file_status StatusOf(const std::string& name, std::error_code& error) const;

  // Every version of a model, ascending, at least one. Errors: kNotFound, kFailedPrecondition (a
  // symbolic link, or a directory that cannot be read).
  absl::StatusOr<std::vector<int64_t>> VersionsOf(const std::string& name) const;

  // The highest version of a model. Errors: as VersionsOf.
  absl::StatusOr<int64_t> LatestVersion(const std::string& name) const;

  // OK if the version is there and made of plain files. Errors: as LatestVersion.
  absl::Status CheckVersion(const std::string& name, int64_t version) const;

  // The folder, for messages to the operator.
  std::string text() const { return folder_.string(); }

 private:
  absl::Status CheckModel(const std::string& name) const;
  bool IsFlat() const;

  Path folder_;
  std::string only_;  // the name of the one model; empty: many
};

// Turns an error of reading a version into one for a client, which explains and retries by its
// code: kInvalidArgument if the contents are at fault, kFailedPrecondition if the machine or a
// limit is; our own bugs and cancellation stay. The path of the version becomes `shown`: clients
// are not to know where the repository lies.
absl::Status AsLoadError(const absl::Status& status, std::string_view directory,
                         std::string_view shown);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_MODELS_REPOSITORY_H_
