// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_WEIGHTS_WRITER_H_
#define DEEPPCR_KERNELS_MODEL_WEIGHTS_WRITER_H_

// Writes what kernels/model/weights.h reads.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/model/weights.h"

namespace deeppcr {

struct WrittenTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // as many bytes as shape and dtype take

  static WrittenTensor OfFloats(std::string name, std::vector<int64_t> shape,
                                std::span<const float> values) {
    return {std::move(name), Dtype::kF32, std::move(shape), std::as_bytes(values)};
  }
};

// The bytes of a safetensors file with these tensors, in their order; names differ.
std::string SafetensorsFile(std::span<const WrittenTensor> tensors);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_WEIGHTS_WRITER_H_
