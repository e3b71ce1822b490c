// SPDX-License-Identifier: Apache-2.0
#include "server/models/repository_poller.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/base/memory_budget.h"
#include "kernels/base/strings.h"
#include "server/models/repository.h"

namespace deeppcr {
namespace {

namespace fs = std::filesystem;

// Looks that must miss a version before it is unloaded: a folder that is replaced is away for a
// moment.
constexpr int kLooksOfAbsence = 2;

// Looks until the first other try with a little more memory, and with each that fails twice as many
// up to the most.
constexpr int kPatience = 8, kMostPatience = 256;

// What tells that the files of a folder are others; empty while there is nothing to load.
std::string FilesOf(const fs::path& folder) {
  std::error_code error;
  std::string files;
  bool has_config = false;
  for (const std::string& name : EntriesOf(folder, error)) {
    struct stat status = {};
    if (lstat((folder / name).c_str(), &status) != 0) return {};
    // Beside the files of a hub's snapshot lie those of tools, which are no part of the model.
    if (name.front() == '.' || S_ISDIR(status.st_mode)) continue;
    files += StrCat(name, " ", status.st_ino, " ", status.st_size, " ", status.st_mtim.tv_sec, ".",
                    status.st_mtim.tv_nsec, "\n");
    has_config = has_config || name == "config.json";
  }
  return error || !has_config ? std::string() : files;
}

bool IsGone(const fs::path& path) {
  std::error_code error;
  return !fs::exists(fs::symlink_status(path, error)) &&
         (!error || error == std::errc::no_such_file_or_directory);
}

}  // namespace

void RepositoryPoller::Begin() {
  std::error_code error;
  for (const auto& [name, number] : Chosen(repository_.Entries(error))) {
    Seen& seen = seen_[{name, number}];
    seen.files = seen.loaded = FilesOf(repository_.FolderOf(name, number));
    seen.of_start = true;
  }
}

void RepositoryPoller::Poll() {
  std::error_code error;
  const std::vector<std::string> names = repository_.Entries(error);
  if (error || std::ranges::none_of(names, [&](const auto& name) { return IsModel(name); })) return;
  const std::set<Version> chosen = Chosen(names);
  // What is neither chosen nor listed is forgotten, and new if it comes again. A version that is
  // away for a look, as while its folder is replaced, is still listed.
  std::erase_if(seen_, [&](const auto& each) {
    return !chosen.contains(each.first) &&
           !store_.Describe(each.first.first, each.first.second).ok();
  });
  // Ascending: the highest comes last, and retires those that it supersedes.
  for (const Version& version : chosen) Follow(version);
  UnloadAbsent();
}

std::set<RepositoryPoller::Version> RepositoryPoller::Chosen(
    const std::vector<std::string>& names) const {
  std::set<Version> chosen;
  for (const std::string& name : names) {
    if (!IsModel(name)) continue;
    const auto on_disk = repository_.VersionsOf(name);
    if (!on_disk.ok()) continue;
    for (const int64_t version : versions_.For(name).Choose(*on_disk))
      chosen.emplace(name, version);
  }
  return chosen;
}

void RepositoryPoller::Follow(const Version& version) {
  const auto& [name, number] = version;
  std::string files = FilesOf(repository_.FolderOf(name, number));
  const auto [found, is_new] = seen_.try_emplace(version);
  Seen& seen = found->second;
  // What is loaded already is not loaded again for its own sake. What the start tried in vain may
  // have been half of a copy.
  if (is_new || std::exchange(seen.of_start, false)) {
    const auto status = store_.Describe(name, number);
    const bool is_loaded = status.ok() && status->model != nullptr;
    if (is_new && is_loaded) seen.loaded = files;
    if (!is_loaded) seen.loaded.clear();
  }
  const bool is_whole = !is_new && seen.files == files && !files.empty();
  seen.files = std::move(files);
  if (!is_whole || (seen.loaded == seen.files && !IsWorthAnotherTry(version, &seen))) return;
  seen.loaded = seen.files;
  // A failure is in the log.
  const int64_t missing = MissingBytes(store_.Load(name, number).status());
  if (missing == 0) {
    seen.refused.reset();
    return;
  }
  const int patience =
      seen.refused.has_value() ? std::min(2 * seen.refused->patience, kMostPatience) : kPatience;
  const int64_t available = store_.available_memory();
  seen.refused = Refusal{.available = available,
                         .wanted = available + missing,
                         .patience = patience,
                         .looks = patience};
}

// What others left no room for is tried again once they have given up as much as was missing; or
// anything, after a while: what a load takes depends on what there is, and what was missing was
// measured while others came and went.
bool RepositoryPoller::IsWorthAnotherTry(const Version& version, Seen* seen) const {
  if (!seen->refused.has_value()) return false;
  const auto status = store_.Describe(version.first, version.second);
  if (status.ok() && status->model != nullptr) {  // an operator was faster
    seen->refused.reset();
    return false;
  }
  const int64_t available = store_.available_memory();
  if (available >= seen->refused->wanted) return true;
  return available > seen->refused->available && --seen->refused->looks <= 0;
}

// True for folders that hold versions of a model: a repository that is not mounted may still hold
// lost+found and the like.
bool RepositoryPoller::IsModel(const std::string& name) const {
  std::error_code error;
  return name.front() != '.' && CheckModelName(name).ok() &&
         fs::is_directory(repository_.FolderOf(name), error);
}

void RepositoryPoller::UnloadAbsent() {
  // The list holds its models, for whose end an unload waits: it goes before the first one.
  std::vector<Version> gone;
  for (const ModelStatus& status : store_.List()) {
    const Version version(status.name, status.version);
    const fs::path path = status.version == 0 ? repository_.FolderOf(status.name)
                                              : repository_.FolderOf(status.name, status.version);
    if (!IsGone(path)) {
      absent_.erase(version);
    } else if (++absent_[version] >= kLooksOfAbsence) {
      absent_.erase(version);
      gone.push_back(version);
    }
  }
  for (const auto& [name, version] : gone) store_.Unload(name, version).IgnoreError();
}

}  // namespace deeppcr
