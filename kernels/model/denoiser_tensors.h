// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_DENOISER_TENSORS_H_
#define DEEPPCR_KERNELS_MODEL_DENOISER_TENSORS_H_

// The tensors of a diffusion model in model.safetensors, one row per layer, in PyTorch's names and
// layout ([out, in]). Loader, limit of parameters, the message about an unexpected tensor and the
// table of server/README.md follow from the rows. The layers of the decoder are no rows, as
// config.json gives their number and widths. The names are those after config.json's tensor_prefix.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/model/model.h"
#include "kernels/model/tensor_reader.h"

namespace deeppcr {

// `factor` times a key of config.json.
struct TensorExtent {
  std::string_view symbol;
  int64_t ModelConfig::*key;
  int64_t factor = 1;
  bool with_variance = false;  // twice that where the variance is learned
};

// `count` layers of `rows` outputs with `cols` parameters each, the bias included.
struct LayersExtent {
  int64_t count;
  int64_t rows;
  int64_t cols;
};

struct TensorRow {
  std::string_view name;  // prefix of .weight and .bias; <i> stands for every block
  TensorExtent rows;
  TensorExtent cols;  // key null: the weight is as long as the bias
  bool has_bias = true;
  std::string_view when;  // in words
  bool (*present)(const ModelConfig& config);
  LayerStorage DiffusionStorage::*storage;  // rows that share one follow one another in it
  std::string_view meaning;                 // in words; empty if the name says all
};

// Every row, in the order of the documentation and of storage. Static storage.
std::span<const TensorRow> DenoiserTensors();

// A tensor of a denoiser that has been read: its numbers are the storage's.
struct DenoiserTensor {
  std::string name;  // without config.json's tensor_prefix
  std::vector<int64_t> shape;
  std::span<const float> numbers;
};

// The tensors of a model of this config, in the order of the storage of each row.
std::vector<DenoiserTensor> DenoiserTensorsIn(const ModelConfig& config,
                                              const DiffusionStorage& storage);

// "[3H, H]": shape of the weight.
std::string ShapeText(const TensorRow& row);

// Sizes of the rows' layers in a model of this config; a count of 0 where it has none.
std::vector<LayersExtent> DenoiserLayers(const ModelConfig& config);

// Names of the tensors that a model of this config may have, for messages.
std::string DenoiserTensorNames(const ModelConfig& config);

// Appends every tensor of the rows to its storage. Errors: those of TensorReader::Append.
absl::Status ReadDenoiserTensors(TensorReader& reader, const ModelConfig& config,
                                 DiffusionStorage& storage);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_DENOISER_TENSORS_H_
