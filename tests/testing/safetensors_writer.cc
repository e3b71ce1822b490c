// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/safetensors_writer.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_join.h"
#include "kernels/base/file.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr::testing {

std::string SafetensorsBytes(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  bytes.append(header);
  bytes.append(data);
  return bytes;
}

std::string SerializeSafetensors(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> entries;
  std::string data;
  for (const NamedTensor& tensor : tensors) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.values.data()),
                tensor.values.size() * sizeof(float));
    entries.push_back(StrCat("\"", tensor.name, R"(":{"dtype":"F32","shape":[)",
                             absl::StrJoin(tensor.shape, ","), R"(],"data_offsets":[)", begin, ",",
                             data.size(), "]}"));
  }
  return SafetensorsBytes(StrCat("{", absl::StrJoin(entries, ","), "}"), data);
}

absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  return WriteFileAtomically(path, SerializeSafetensors(tensors));
}

absl::Status WriteModel(const std::string& directory, std::string_view config_json,
                        const std::vector<NamedTensor>& tensors) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return Internal("cannot make ", directory, ": ", error.message());
  DEEPPCR_RETURN_IF_ERROR(WriteFileAtomically(directory + "/config.json", config_json));
  return WriteSafetensors(directory + "/model.safetensors", tensors);
}

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "deeppcr_test.XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    std::perror("mkdtemp");
    std::abort();
  }
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryDirectory::File(std::string_view name) const {
  return StrCat(path_, "/", name);
}

}  // namespace deeppcr::testing
