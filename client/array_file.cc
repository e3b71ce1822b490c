// SPDX-License-Identifier: Apache-2.0
#include "client/array_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/match.h"
#include "client/csv.h"
#include "client/json_array.h"
#include "client/npy.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

namespace fs = std::filesystem;

// Closes a file, but never a standard stream.
struct CloseFile {
  void operator()(std::FILE* file) const {
    if (file != stdin && file != stdout) std::fclose(file);
  }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

absl::Status SystemError(const char* action, const std::string& path, int error) {
  const absl::StatusCode code =
      error == ENOENT ? absl::StatusCode::kNotFound : absl::StatusCode::kUnknown;
  return absl::Status(code, StrCat("cannot ", action, " ", path, ": ", std::strerror(error)));
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  File file(path == "-" ? stdin : std::fopen(path.c_str(), "rb"));
  if (file == nullptr) return SystemError("open", path, errno);
  std::string bytes;
  char block[1 << 16];
  size_t got = 0;
  while ((got = std::fread(block, 1, sizeof(block), file.get())) > 0) {
    if (bytes.size() + got > static_cast<size_t>(kMaxArrayBytes)) {
      return InvalidArgument(path, ": more than the ", kMaxArrayBytes, " bytes allowed");
    }
    bytes.append(block, got);
  }
  if (std::ferror(file.get())) return SystemError("read", path, errno);
  return bytes;
}

absl::Status WriteTo(std::FILE* file, const std::string& path, std::string_view bytes) {
  const size_t put = std::fwrite(bytes.data(), 1, bytes.size(), file);
  if (put != bytes.size() || std::fflush(file) != 0) return SystemError("write", path, errno);
  return absl::OkStatus();
}

// Writes the file `name`; error messages call it `path`.
absl::Status WriteNew(const std::string& name, const std::string& path, std::string_view bytes) {
  File file(std::fopen(name.c_str(), "wb"));
  if (file == nullptr) return SystemError("open", path, errno);
  absl::Status status = WriteTo(file.get(), path, bytes);
  if (std::fclose(file.release()) != 0) status.Update(SystemError("write", path, errno));
  return status;
}

// Checks that the folder of `path` takes new files: WriteFile first writes a temporary file there.
absl::Status CheckFolder(const std::string& path) {
  std::error_code unknown;
  const std::string folder = fs::weakly_canonical(path, unknown).parent_path().string();
  if (::access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return SystemError("write", path, errno);
}

absl::StatusOr<Array> Parse(ArrayFormat format, const std::string& bytes) {
  switch (format) {
    case ArrayFormat::kNpy:
      return ParseNpy(bytes);
    case ArrayFormat::kCsv:
      return ParseCsv(bytes);
    case ArrayFormat::kJson:
      return ParseJsonArray(bytes);
  }
  return Internal("unknown array format");
}

absl::StatusOr<std::string> Format(ArrayFormat format, const Array& array) {
  switch (format) {
    case ArrayFormat::kNpy:
      return FormatNpy(array);
    case ArrayFormat::kCsv:
      return FormatCsv(array);
    case ArrayFormat::kJson:
      return FormatJsonArray(array);
  }
  return Internal("unknown array format");
}

}  // namespace

absl::StatusOr<ArrayFormat> ParseArrayFormat(std::string_view name) {
  if (name == "npy") return ArrayFormat::kNpy;
  if (name == "csv") return ArrayFormat::kCsv;
  if (name == "json") return ArrayFormat::kJson;
  return InvalidArgument("format: expected npy, csv or json, got '", name, "'");
}

absl::StatusOr<ArrayFormat> ChooseArrayFormat(const std::string& path, const std::string& format) {
  if (absl::EndsWithIgnoreCase(path, ".npy")) return ArrayFormat::kNpy;
  if (absl::EndsWithIgnoreCase(path, ".csv")) return ArrayFormat::kCsv;
  if (absl::EndsWithIgnoreCase(path, ".json")) return ArrayFormat::kJson;
  if (!format.empty()) return ParseArrayFormat(format);
  if (path == "-") return ArrayFormat::kCsv;
  return InvalidArgument(
      path, ": expected a name that ends in .npy, .csv or .json, or --format to say which");
}

absl::StatusOr<Array> ReadArray(const std::string& path, const std::string& format) {
  DEEPPCR_ASSIGN_OR_RETURN(const ArrayFormat chosen, ChooseArrayFormat(path, format));
  DEEPPCR_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  absl::StatusOr<Array> array = Parse(chosen, bytes);
  if (array.ok()) return array;
  return WithContext(array.status(), path);
}

absl::Status WriteArray(const Array& array, const std::string& path, const std::string& format) {
  DEEPPCR_ASSIGN_OR_RETURN(const ArrayFormat chosen, ChooseArrayFormat(path, format));
  const absl::StatusOr<std::string> bytes = Format(chosen, array);
  if (!bytes.ok()) return WithContext(bytes.status(), path);
  return WriteFile(path, *bytes);
}

absl::Status CheckHolds(const std::string& path, const std::string& format, int rank) {
  DEEPPCR_ASSIGN_OR_RETURN(const ArrayFormat chosen, ChooseArrayFormat(path, format));
  if (chosen != ArrayFormat::kCsv || rank <= 2) return absl::OkStatus();
  return InvalidArgument(path, ": csv holds rows of numbers, not an array of ", rank,
                         " axes; expected a name that ends in .npy or .json");
}

absl::Status WriteFile(const std::string& path, std::string_view bytes) {
  if (path == "-") return WriteTo(stdout, path, bytes);
  std::error_code unknown;
  const fs::path target = fs::weakly_canonical(path, unknown);  // follows links, so that they stay
  const fs::file_status found = fs::status(path, unknown);
  if (fs::exists(found) && !fs::is_regular_file(found)) return WriteNew(path, path, bytes);
  const std::string part = StrCat(target.string(), ".", ::getpid(), ".part");
  absl::Status status = WriteNew(part, path, bytes);
  if (status.ok() && std::rename(part.c_str(), target.c_str()) != 0) {
    status = SystemError("write", path, errno);
  }
  if (!status.ok()) ::unlink(part.c_str());
  return status;
}

absl::Status CheckWritable(const std::string& path) {
  if (path == "-") return absl::OkStatus();
  const int file = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (file >= 0) {
    std::error_code unknown;
    const bool replaced = fs::is_regular_file(path, unknown);
    ::close(file);
    return replaced ? CheckFolder(path) : absl::OkStatus();
  }
  if (errno == ENXIO) return absl::OkStatus();  // a pipe that nobody reads yet
  if (errno != ENOENT) return SystemError("write", path, errno);
  return CheckFolder(path);
}

}  // namespace deeppcr
