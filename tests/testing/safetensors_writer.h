// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_SAFETENSORS_WRITER_H_
#define DEEPPCR_TESTS_TESTING_SAFETENSORS_WRITER_H_

// Writes models for tests.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace deeppcr::testing {

struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;  // row-major
};

// A safetensors file from the text of its header and the bytes of its data, valid or not.
std::string SafetensorsBytes(std::string_view header, std::string_view data);

// A safetensors file of F32 tensors, in the order given. Names need no JSON escapes.
std::string SerializeSafetensors(const std::vector<NamedTensor>& tensors);

absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors);

// Writes <directory>/config.json and model.safetensors, making the directory and its parents.
absl::Status WriteModel(const std::string& directory, std::string_view config_json,
                        const std::vector<NamedTensor>& tensors);

// A new empty directory in the system's directory for temporary files, removed with its contents.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  // <path>/<name>
  std::string File(std::string_view name) const;

 private:
  std::string path_;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_SAFETENSORS_WRITER_H_
