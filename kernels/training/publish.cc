// SPDX-License-Identifier: Apache-2.0
#include "kernels/training/publish.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/base/model_name.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/model.h"
#include "kernels/model/weights_writer.h"

namespace deeppcr::training {
namespace {

namespace fs = std::filesystem;

absl::Status SystemError(std::string_view action, const fs::path& path, int error) {
  return absl::UnavailableError(
      StrCat("cannot ", action, " ", path.string(), ": ", std::generic_category().message(error)));
}

absl::StatusOr<int64_t> NextVersion(const fs::path& model) {
  int64_t largest = 0;
  std::error_code ignored;
  for (fs::directory_iterator it(model, ignored), end; !ignored && it != end; it.increment(ignored))
    largest = std::max(largest, ParseVersion(it->path().filename().string()));
  if (largest < std::numeric_limits<int64_t>::max()) return largest + 1;
  return absl::FailedPreconditionError(StrCat(
      "version: ", model.string(), " has the largest there is, ", largest, ": name a free one"));
}

absl::StatusOr<int64_t> VersionOf(const Destination& destination) {
  if (destination.version > 0) return destination.version;
  return NextVersion(fs::path(destination.repository) / destination.model);
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
                        const Dataset& data, int64_t calibration_samples) {
  std::vector<WrittenTensor> tensors;
  for (const ParameterTensor& tensor : layout.tensors())
    tensors.push_back(WrittenTensor::OfFloats(tensor.name, tensor.shape,
                                              parameters.subspan(tensor.offset, tensor.size)));
  DEEPPCR_RETURN_IF_ERROR(WriteFileAtomically(folder + "/config.json", config_json));
  DEEPPCR_RETURN_IF_ERROR(
      WriteFileAtomically(folder + "/model.safetensors", SafetensorsFile(tensors)));
  const int64_t count = std::min(calibration_samples, data.num_samples);
  if (count == 0) return absl::OkStatus();
  const WrittenTensor inputs = WrittenTensor::OfFloats(
      "inputs", {count, data.input_dim}, std::span(data.inputs).first(count * data.input_dim));
  return WriteFileAtomically(folder + "/calibration.safetensors", SafetensorsFile({&inputs, 1}));
}

}  // namespace

absl::Status CheckDestination(const Destination& destination) {
  DEEPPCR_RETURN_IF_ERROR(CheckModelName(destination.model));
  if (destination.version < 0)
    return InvalidArgument("version: expected a positive integer, got ", destination.version);
  if (destination.calibration_samples < 0)
    return InvalidArgument("calibration: expected a number of inputs from 0, got ",
                           destination.calibration_samples);
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t version, VersionOf(destination));
  const fs::path folder =
      fs::path(destination.repository) / destination.model / std::to_string(version);
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
  DEEPPCR_RETURN_IF_ERROR(
      WriteFiles(pattern, config_json, layout, parameters, data, destination.calibration_samples));
  const ModelFilesReport report = CheckModelFiles(pattern, {});
  if (!report.problems.empty()) return Internal("published: ", report.problems.front());
  DEEPPCR_RETURN_IF_ERROR(folder.Open());
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t version, VersionOf(destination));
  const fs::path place = model / std::to_string(version);
  DEEPPCR_RETURN_IF_ERROR(folder.Rename(place));
  DEEPPCR_RETURN_IF_ERROR(SyncFolder(model));
  return place.string();
}

}  // namespace deeppcr::training
