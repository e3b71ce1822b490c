// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_FUZZ_REPOSITORY_ORACLE_H_
#define DEEPPCR_TESTS_FUZZ_REPOSITORY_ORACLE_H_

// The expected reading of a repository on disk, worked out by plain system calls and without code
// of the server.

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/base/strings.h"
#include "tests/fuzz/fuzz_target.h"

namespace deeppcr::fuzz {

using absl::StatusCode;

enum class Kind : uint8_t { kNothing, kDirectory, kFile, kOther, kUnknown };

// The kind of a path; a link is kOther.
inline Kind KindOf(const std::string& path) {
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT || errno == ENOTDIR ? Kind::kNothing : Kind::kUnknown;
  }
  if (S_ISDIR(info.st_mode)) return Kind::kDirectory;
  return S_ISREG(info.st_mode) ? Kind::kFile : Kind::kOther;
}

// The entries of a directory; nothing if the directory cannot be read.
inline std::optional<std::set<std::string>> EntriesIn(const std::string& directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(directory.c_str()), ::closedir);
  if (stream == nullptr) return std::nullopt;
  std::set<std::string> names;
  while (const dirent* entry = ::readdir(stream.get())) names.insert(entry->d_name);
  names.erase(".");
  names.erase("..");
  return names;
}

inline bool IsName(std::string_view name) {
  constexpr std::string_view kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !name.empty() && name.size() <= 128 && name != "." && name != ".." &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

// The version that the text names; 0 if it names none.
inline int64_t VersionOf(std::string_view text) {
  constexpr std::string_view kLargest = "9223372036854775807";
  if (text.empty() || text.front() == '0') return 0;
  if (text.find_first_not_of("0123456789") != std::string_view::npos) return 0;
  if (text.size() > kLargest.size() || (text.size() == kLargest.size() && text > kLargest)) {
    return 0;
  }
  int64_t version = 0;
  for (const char c : text) version = 10 * version + (c - '0');
  return version;
}

// A version to load, or the code of why there is none.
struct Choice {
  StatusCode code = StatusCode::kOk;
  int64_t version = 0;
};

// The highest version of a model. An entry that is no plain file counts: it is refused by name
// later.
inline Choice HighestIn(const std::string& model) {
  const Kind kind = KindOf(model);
  if (kind == Kind::kNothing) return {StatusCode::kNotFound};
  if (kind != Kind::kDirectory) return {StatusCode::kFailedPrecondition};
  const auto entries = EntriesIn(model);
  if (!entries.has_value()) return {StatusCode::kFailedPrecondition};
  int64_t highest = 0;
  for (const std::string& entry : *entries) {
    if (KindOf(model + "/" + entry) == Kind::kFile) continue;
    highest = std::max(highest, VersionOf(entry));
  }
  return {highest > 0 ? StatusCode::kOk : StatusCode::kNotFound, highest};
}

// OK if directories lead to the version, and the version holds plain files only.
inline StatusCode CodeOfVersion(const std::string& model, int64_t version) {
  const std::string directory = StrCat(model, "/", version);
  for (const std::string& path : {model, directory}) {
    if (KindOf(path) == Kind::kNothing) return StatusCode::kNotFound;
    if (KindOf(path) != Kind::kDirectory) return StatusCode::kFailedPrecondition;
  }
  const auto entries = EntriesIn(directory);
  if (!entries.has_value()) return StatusCode::kFailedPrecondition;
  const bool plain = std::all_of(entries->begin(), entries->end(), [&](const std::string& entry) {
    return KindOf(directory + "/" + entry) == Kind::kFile;
  });
  return plain ? StatusCode::kOk : StatusCode::kFailedPrecondition;
}

// The code that clients get for an error in reading a version.
inline StatusCode ToldOf(StatusCode code) {
  Require(code != StatusCode::kInternal, "no contents of a version are a bug of ours");
  if (code == StatusCode::kOk) return code;
  const bool contents = code == StatusCode::kNotFound || code == StatusCode::kInvalidArgument;
  return contents ? StatusCode::kInvalidArgument : StatusCode::kFailedPrecondition;
}

}  // namespace deeppcr::fuzz

#endif  // DEEPPCR_TESTS_FUZZ_REPOSITORY_ORACLE_H_
