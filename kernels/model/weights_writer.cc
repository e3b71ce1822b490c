// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/weights_writer.h"

#include <nlohmann/json.hpp>

namespace deeppcr {

std::string SafetensorsFile(std::span<const WrittenTensor> tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  size_t end = 0;
  for (const WrittenTensor& tensor : tensors) {
    const size_t begin = end;
    end += tensor.data.size();
    header[tensor.name] = {{"dtype", std::string(DtypeName(tensor.dtype))},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  // Data that begins at a multiple of 8 bytes can be mapped.
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  bytes.reserve(sizeof(length) + text.size() + end);
  bytes += text;
  for (const WrittenTensor& tensor : tensors)
    bytes.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  return bytes;
}

}  // namespace deeppcr
