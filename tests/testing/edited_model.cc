// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/edited_model.h"

#include <onnx/onnx.pb.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>

#include "kernels/model/weights.h"

namespace deeppcr::testing {
namespace {

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Replace(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Calls `edit` with the numbers of a tensor, as float32, and puts back what it leaves; false: there
// is no such tensor.
using Edit = std::function<void(std::vector<float>& values)>;

template <class Number>
void EditBytes(char* bytes, size_t size, const Edit& edit) {
  std::vector<Number> numbers(size / sizeof(Number));
  std::memcpy(numbers.data(), bytes, size);
  std::vector<float> values(numbers.begin(), numbers.end());
  edit(values);
  if (values.size() != numbers.size()) std::abort();
  numbers.assign(values.begin(), values.end());
  std::memcpy(bytes, numbers.data(), size);
}

bool EditSafetensors(std::string& bytes, const std::string& name, const Edit& edit) {
  if (bytes.empty()) return false;
  const auto tensors = ParseSafetensors(bytes);
  const TensorEntry* const entry = tensors.value().Find(name);
  if (entry == nullptr) return false;
  const auto offset = reinterpret_cast<const char*>(entry->data.data()) - bytes.data();
  EditBytes<float>(bytes.data() + offset, entry->data.size(), edit);
  return true;
}

bool EditOnnx(std::string& bytes, const std::string& name, const Edit& edit) {
  onnx::ModelProto model;
  if (bytes.empty() || !model.ParseFromString(bytes)) return false;
  for (onnx::TensorProto& tensor : *model.mutable_graph()->mutable_initializer()) {
    if (tensor.name() != name) continue;
    std::string& raw = *tensor.mutable_raw_data();
    if (tensor.data_type() == onnx::TensorProto::DOUBLE) {
      EditBytes<double>(raw.data(), raw.size(), edit);
    } else {
      EditBytes<float>(raw.data(), raw.size(), edit);
    }
    bytes = model.SerializeAsString();
    return true;
  }
  return false;
}

void EditTensor(const std::string& directory, const std::string& name, bool write,
                const Edit& edit) {
  for (const char* file : {"model.safetensors", "denoiser.onnx", "block.onnx"}) {
    const std::string path = directory + "/" + file;
    std::string bytes = Contents(path);
    const bool found = std::string_view(file).ends_with(".onnx")
                           ? EditOnnx(bytes, name, edit)
                           : EditSafetensors(bytes, name, edit);
    if (!found) continue;
    if (write) Replace(path, bytes);
    return;
  }
  std::cerr << directory << ": no tensor " << name << "\n";
  std::abort();
}

}  // namespace

EditedModel::EditedModel(const std::string& from, const std::string& to) : directory_(to) {
  std::filesystem::create_directories(to);
  for (const auto& entry : std::filesystem::directory_iterator(from))
    Replace(to + "/" + entry.path().filename().string(), Contents(entry.path().string()));
}

std::vector<float> EditedModel::Read(const std::string& tensor) const {
  std::vector<float> read;
  EditTensor(directory_, tensor, false, [&](std::vector<float>& values) { read = values; });
  return read;
}

void EditedModel::Write(const std::string& tensor, const std::vector<float>& values) const {
  EditTensor(directory_, tensor, true, [&](std::vector<float>& to) { to = values; });
}

}  // namespace deeppcr::testing
