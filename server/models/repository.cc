// SPDX-License-Identifier: Apache-2.0
#include "server/models/repository.h"

#include <algorithm>

#include "absl/strings/str_replace.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

namespace fs = std::filesystem;

absl::Status CannotRead(std::string_view what, const std::error_code& error) {
  return absl::FailedPreconditionError(StrCat(what, " cannot be read: ", error.message()));
}

// `error`: of reading the status.
absl::Status CheckIs(const fs::file_status& status, const std::error_code& error,
                     fs::file_type expected, std::string_view what) {
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

// A directory reached by a link may be replaced by, or lead to, anything: refuse instead of
// following.
absl::Status CheckPlain(const fs::path& path, fs::file_type expected, std::string_view what) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  return CheckIs(status, error, expected, what);
}

bool IsFolder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(fs::symlink_status(path, ignored));
}

bool HoldsConfig(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(folder / "config.json", ignored));
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

Repository Repository::OfModel(Path folder, std::string name) {
  Repository repository(std::move(folder));
  repository.only_ = std::move(name);
  return repository;
}

std::vector<std::string> Repository::Entries(std::error_code& error) const {
  if (only_.empty()) return EntriesOf(folder_, error);
  error.clear();
  return {only_};
}

fs::path Repository::FolderOf(const std::string& name) const {
  // A name that is not served is nowhere.
  return only_.empty() || name != only_ ? folder_ / name : folder_;
}

fs::path Repository::FolderOf(const std::string& name, int64_t version) const {
  return IsFlat() && name == only_ && version == 1 ? folder_ : FolderOf(name) / StrCat(version);
}

fs::file_status Repository::StatusOf(const std::string& name, std::error_code& error) const {
  return only_.empty() ? fs::symlink_status(FolderOf(name), error)
                       : fs::status(FolderOf(name), error);
}

// True if the folder of the one model is its version 1.
bool Repository::IsFlat() const { return !only_.empty() && HoldsConfig(folder_); }

absl::Status Repository::CheckModel(const std::string& name) const {
  const std::string what = StrCat("model '", name, "'");
  if (!only_.empty() && name != only_) return absl::NotFoundError(StrCat(what, " is not there"));
  std::error_code error;
  const fs::file_status status = StatusOf(name, error);
  return CheckIs(status, error, fs::file_type::directory, what);
}

absl::StatusOr<std::vector<int64_t>> Repository::VersionsOf(const std::string& name) const {
  DEEPPCR_RETURN_IF_ERROR(CheckModel(name));
  const bool is_flat = IsFlat();
  const std::string what = StrCat("model '", name, "'");
  const fs::path directory = FolderOf(name);
  std::error_code error;
  std::vector<int64_t> versions;
  for (const std::string& entry : EntriesOf(directory, error)) {
    const int64_t version = ParseVersion(entry);
    if (version <= 0 || !MayBeVersion(directory / entry)) continue;
    // Version 1 is the folder itself, whatever one of that name holds.
    if (is_flat && (version == 1 || !HoldsConfig(directory / entry))) continue;
    versions.push_back(version);
  }
  if (error) return CannotRead(what, error);
  if (is_flat) versions.push_back(1);
  std::sort(versions.begin(), versions.end());
  if (!versions.empty()) return versions;
  return absl::NotFoundError(StrCat(what, " has no version in the repository: ",
                                    "expected a directory named by a positive integer"));
}

absl::StatusOr<int64_t> Repository::LatestVersion(const std::string& name) const {
  DEEPPCR_ASSIGN_OR_RETURN(const std::vector<int64_t> versions, VersionsOf(name));
  return versions.back();
}

absl::Status Repository::CheckVersion(const std::string& name, int64_t version) const {
  DEEPPCR_RETURN_IF_ERROR(CheckModel(name));
  const fs::path directory = FolderOf(name, version);
  const std::string what = StrCat("model '", name, "' version ", version);
  const bool is_flat = !only_.empty() && directory == folder_;
  if (!is_flat) DEEPPCR_RETURN_IF_ERROR(CheckPlain(directory, fs::file_type::directory, what));
  std::error_code error;
  for (const std::string& entry : EntriesOf(directory, error)) {
    const fs::path path = directory / entry;
    if (is_flat && (entry.front() == '.' || IsFolder(path))) continue;
    DEEPPCR_RETURN_IF_ERROR(
        CheckPlain(path, fs::file_type::regular, StrCat(what, ": ", Quoted(entry))));
  }
  return error ? CannotRead(what, error) : absl::OkStatus();
}

absl::Status AsLoadError(const absl::Status& status, std::string_view directory,
                         std::string_view shown) {
  if (status.ok()) return status;
  absl::Status error(LoadErrorCode(status.code()),
                     absl::StrReplaceAll(status.message(), {{ToAbsl(directory), ToAbsl(shown)}}));
  CopyPayloads(status, &error);
  return error;
}

}  // namespace deeppcr
