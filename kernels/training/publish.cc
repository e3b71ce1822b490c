// SPDX-License-Identifier: Apache-2.0
#include "kernels/training/publish.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "kernels/base/file.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/model.h"
#include "kernels/model/weights_writer.h"

namespace deeppcr::training {
namespace {

namespace fs = std::filesystem;

// Inputs that an initial guess is fitted on at a load.
constexpr int64_t kCalibrationSamples = 600;

bool IsNameCharacter(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '.' ||
         c == '_' || c == '-';
}

absl::Status SystemError(std::string_view action, const fs::path& path, int error) {
  return absl::UnavailableError(
      StrCat("cannot ", action, " ", path.string(), ": ", std::generic_category().message(error)));
}

int64_t LargestVersion(const fs::path& model) {
  int64_t largest = 0;
  std::error_code ignored;
  for (fs::directory_iterator it(model, ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    int64_t version = 0;
    if (absl::SimpleAtoi(it->path().filename().string(), &version))
      largest = std::max(largest, version);
  }
  return largest;
}

// A folder beside the versions, of a name that no server takes for one; removed unless it has got
// another name.
class NewFolder {
 public:
  explicit NewFolder(fs::path path) : path_(std::move(path)) {}
  ~NewFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  // mkdtemp lets nobody else in.
  absl::Status Open() const {
    std::error_code error;
    fs::permissions(path_, fs::perms(0755), error);
    return error ? SystemError("set the mode of", path_, error.value()) : absl::OkStatus();
  }
  absl::Status Rename(const fs::path& to) {
    if (std::rename(path_.c_str(), to.c_str()) == 0) {
      path_.clear();
      return absl::OkStatus();
    }
    if (errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR)
      return absl::AlreadyExistsError(StrCat(to.string(), " is there already"));
    return SystemError("make", to, errno);
  }

 private:
  fs::path path_;
};

absl::Status SyncFolder(const fs::path& folder) {
  const int handle = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (handle < 0) return SystemError("open", folder, errno);
  // EINVAL: this file system cannot sync folders.
  const int error = ::fsync(handle) != 0 && errno != EINVAL ? errno : 0;
  ::close(handle);
  return error == 0 ? absl::OkStatus() : SystemError("sync", folder, error);
}

absl::Status WriteFiles(const std::string& folder, const std::string& config_json,
                        const ParameterLayout& layout, std::span<const float> parameters,
                        const Dataset& data) {
  std::vector<WrittenTensor> tensors;
  for (const ParameterTensor& tensor : layout.tensors())
    tensors.push_back(WrittenTensor::OfFloats(tensor.name, tensor.shape,
                                              parameters.subspan(tensor.offset, tensor.size)));
  DEEPPCR_RETURN_IF_ERROR(WriteFileAtomically(folder + "/config.json", config_json));
  DEEPPCR_RETURN_IF_ERROR(
      WriteFileAtomically(folder + "/model.safetensors", SafetensorsFile(tensors)));
  const int64_t count = std::min(kCalibrationSamples, data.num_samples);
  const WrittenTensor inputs = WrittenTensor::OfFloats(
      "inputs", {count, data.input_dim}, std::span(data.inputs).first(count * data.input_dim));
  return WriteFileAtomically(folder + "/calibration.safetensors", SafetensorsFile({&inputs, 1}));
}

}  // namespace

absl::Status CheckDestination(const Destination& destination) {
  const std::string& name = destination.model;
  if (name.empty() || name.size() > 128 || name == "." || name == ".." ||
      !std::ranges::all_of(name, IsNameCharacter))
    return InvalidArgument("model: expected 1 to 128 of A-Z a-z 0-9 . _ -, and not . or .., got ",
                           Quoted(name));
  if (destination.version < 0)
    return InvalidArgument("version: expected a positive integer, got ", destination.version);
  if (destination.version == 0) return absl::OkStatus();
  const fs::path folder =
      fs::path(destination.repository) / name / std::to_string(destination.version);
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(folder, ignored))) return absl::OkStatus();
  return absl::AlreadyExistsError(StrCat(folder.string(), " is there already"));
}

absl::StatusOr<std::string> Publish(const Destination& destination, const std::string& config_json,
                                    const ParameterLayout& layout,
                                    std::span<const float> parameters, const Dataset& data) {
  DEEPPCR_RETURN_IF_ERROR(CheckDestination(destination));
  const fs::path model = fs::path(destination.repository) / destination.model;
  std::error_code error;
  fs::create_directories(model, error);
  if (error) return SystemError("make", model, error.value());
  std::string pattern = (model / ".new-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) return SystemError("make a folder in", model, errno);
  NewFolder folder(pattern);
  DEEPPCR_RETURN_IF_ERROR(WriteFiles(pattern, config_json, layout, parameters, data));
  const ModelFilesReport report = CheckModelFiles(pattern, {});
  if (!report.problems.empty()) return Internal("published: ", report.problems.front());
  DEEPPCR_RETURN_IF_ERROR(folder.Open());
  const int64_t version = destination.version > 0 ? destination.version : LargestVersion(model) + 1;
  const fs::path place = model / std::to_string(version);
  DEEPPCR_RETURN_IF_ERROR(folder.Rename(place));
  DEEPPCR_RETURN_IF_ERROR(SyncFolder(model));
  return place.string();
}

}  // namespace deeppcr::training
