// SPDX-License-Identifier: Apache-2.0
#include "server/models/repository.h"

#include <algorithm>

#include "absl/strings/str_replace.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

namespace fs = std::filesystem;

absl::Status CannotRead(std::string_view what, const std::error_code& error) {
  return absl::FailedPreconditionError(StrCat(what, " cannot be read: ", error.message()));
}

// A directory reached by a link may be replaced by, or lead to, anything: refuse instead of
// following.
absl::Status CheckPlain(const fs::path& path, fs::file_type expected, std::string_view what) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::none) return CannotRead(what, error);
  if (!fs::exists(status)) return absl::NotFoundError(StrCat(what, " is not there"));
  if (fs::is_symlink(status)) {
    return absl::FailedPreconditionError(StrCat(what, " is a symbolic link"));
  }
  if (status.type() != expected) {
    return absl::FailedPreconditionError(StrCat(
        what, " is not a ", expected == fs::file_type::directory ? "directory" : "regular file"));
  }
  return absl::OkStatus();
}

// An entry that is not a plain file may be a version: a link to one is refused by name later on.
bool MayBeVersion(const fs::path& path) {
  std::error_code ignored;
  return !fs::is_regular_file(fs::symlink_status(path, ignored));
}

absl::StatusCode LoadErrorCode(absl::StatusCode code) {
  switch (code) {
    // The version is there; a file that it lacks is a fault of its contents.
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kInvalidArgument:
      return absl::StatusCode::kInvalidArgument;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kCancelled:
      return code;
    default:
      return absl::StatusCode::kFailedPrecondition;
  }
}

}  // namespace

std::vector<std::string> EntriesOf(const fs::path& directory, std::error_code& error) {
  std::vector<std::string> names;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::vector<int64_t>> VersionsOf(const fs::path& repository,
                                                const std::string& name) {
  const fs::path directory = repository / name;
  const std::string what = StrCat("model '", name, "'");
  DEEPPCR_RETURN_IF_ERROR(CheckPlain(directory, fs::file_type::directory, what));
  std::error_code error;
  std::vector<int64_t> versions;
  for (const std::string& entry : EntriesOf(directory, error)) {
    const int64_t version = ParseVersion(entry);
    if (version > 0 && MayBeVersion(directory / entry)) versions.push_back(version);
  }
  if (error) return CannotRead(what, error);
  std::sort(versions.begin(), versions.end());
  if (!versions.empty()) return versions;
  return absl::NotFoundError(StrCat(what, " has no version in the repository: ",
                                    "expected a directory named by a positive integer"));
}

absl::StatusOr<int64_t> LatestVersion(const fs::path& repository, const std::string& name) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::vector<int64_t> versions, VersionsOf(repository, name));
  return versions.back();
}

absl::Status CheckVersion(const fs::path& repository, const std::string& name, int64_t version) {
  const fs::path model = repository / name;
  const std::string what = StrCat("model '", name, "'");
  DEEPPCR_RETURN_IF_ERROR(CheckPlain(model, fs::file_type::directory, what));
  const fs::path directory = model / StrCat(version);
  const std::string version_what = StrCat(what, " version ", version);
  DEEPPCR_RETURN_IF_ERROR(CheckPlain(directory, fs::file_type::directory, version_what));
  std::error_code error;
  for (const std::string& entry : EntriesOf(directory, error)) {
    DEEPPCR_RETURN_IF_ERROR(CheckPlain(directory / entry, fs::file_type::regular,
                                       StrCat(version_what, ": ", Quoted(entry))));
  }
  return error ? CannotRead(version_what, error) : absl::OkStatus();
}

absl::Status AsLoadError(const absl::Status& status, std::string_view directory,
                         std::string_view shown) {
  if (status.ok()) return status;
  return absl::Status(LoadErrorCode(status.code()),
                      absl::StrReplaceAll(status.message(), {{ToAbsl(directory), ToAbsl(shown)}}));
}

}  // namespace deeppcr
