// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/denoiser_tensors.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

using Config = ModelConfig;
using Storage = DiffusionStorage;

constexpr TensorExtent kD = {"D", &Config::state_dim};
constexpr TensorExtent kOutput = {"D", &Config::state_dim, 1, /*with_variance=*/true};
constexpr TensorExtent kE = {"E", &Config::time_embedding_dim};
constexpr TensorExtent kH = {"H", &Config::hidden_dim};
constexpr TensorExtent k2H = {"H", &Config::hidden_dim, 2};
constexpr TensorExtent k3H = {"H", &Config::hidden_dim, 3};
constexpr TensorExtent kClasses = {"num_classes", &Config::num_classes};
constexpr TensorExtent kCondition = {"conditioning_dim", &Config::conditioning_dim};
constexpr TensorExtent kVector = {"", nullptr};

constexpr std::string_view kBlock = "<i>";

bool Always(const Config&) { return true; }
bool IsResidual(const Config& config) { return config.denoiser == DenoiserKind::kResidualMlp; }
bool IsAdaLn(const Config& config) { return config.denoiser == DenoiserKind::kAdaLnMlp; }
bool HasClasses(const Config& config) { return config.num_classes > 0; }
bool HasCondition(const Config& config) { return config.conditioning_dim > 0; }

constexpr std::array<TensorRow, 13> kRows = {{
    {"input_proj", kH, kD, true, "always", Always, &Storage::input, ""},
    {"time_embed.mlp.0", kH, kE, true, "always", Always, &Storage::time_first,
     "of cos, then sin of t 10000^(-j / (E/2)), j < E/2"},
    {"time_embed.mlp.2", kH, kH, true, "always", Always, &Storage::time_second, "silu before it"},
    {"class_embed", kClasses, kH, false, "`num_classes` > 0", HasClasses, &Storage::class_embedding,
     ""},
    {"cond_embed", kH, kCondition, true, "`conditioning_dim` > 0", HasCondition,
     &Storage::condition, ""},
    {"res_blocks.<i>.linear", kH, kH, true, "`residual_mlp`", IsResidual, &Storage::first, ""},
    {"res_blocks.<i>.modulation", kH, kH, true, "`residual_mlp`", IsResidual, &Storage::modulation,
     ""},
    {"res_blocks.<i>.in_ln", kH, kVector, true, "`adaln_mlp`", IsAdaLn, &Storage::norm,
     "layer norm"},
    {"res_blocks.<i>.mlp.0", kH, kH, true, "`adaln_mlp`", IsAdaLn, &Storage::first, ""},
    {"res_blocks.<i>.mlp.2", kH, kH, true, "`adaln_mlp`", IsAdaLn, &Storage::second, ""},
    {"res_blocks.<i>.adaLN_modulation.1", k3H, kH, true, "`adaln_mlp`", IsAdaLn,
     &Storage::modulation, "shift, scale, gate"},
    {"final_layer.adaLN_modulation.1", k2H, kH, true, "`adaln_mlp`", IsAdaLn, &Storage::modulation,
     "shift, scale"},
    {"final_layer.linear", kOutput, kH, true, "always", Always, &Storage::output,
     "with a learned variance [2D, H]: m, v"},
}};

int64_t ValueOf(const TensorExtent& extent, const ModelConfig& config) {
  const int64_t heads = extent.with_variance && config.learned_variance ? 2 : 1;
  return heads * extent.factor * config.*extent.key;
}

TensorReader::Shape WeightShape(const TensorRow& row, const ModelConfig& config) {
  if (row.cols.key == nullptr) return {ValueOf(row.rows, config)};
  return {ValueOf(row.rows, config), ValueOf(row.cols, config)};
}

bool IsPerBlock(const TensorRow& row) { return row.name.find(kBlock) != std::string_view::npos; }

int64_t CountOf(const TensorRow& row, const ModelConfig& config) {
  if (!row.present(config)) return 0;
  return IsPerBlock(row) ? config.num_blocks : 1;
}

// The name with another text in place of <i>.
std::string NameOfBlock(const TensorRow& row, std::string_view block) {
  std::string name(row.name);
  if (IsPerBlock(row)) name.replace(name.find(kBlock), kBlock.size(), block);
  return name;
}

std::string TextOf(const TensorExtent& extent) {
  return extent.factor == 1 ? std::string(extent.symbol) : StrCat(extent.factor, extent.symbol);
}

// Reserves the storage of the rows of blocks for all of its rows. The config alone must not decide
// how much is allocated.
void Reserve(const TensorReader& reader, const ModelConfig& config,
             LayerStorage DiffusionStorage::*member, DiffusionStorage& storage) {
  int64_t elements = 0;
  for (const TensorRow& row : kRows) {
    if (row.storage != member || row.cols.key == nullptr) continue;
    elements += CountOf(row, config) * ValueOf(row.rows, config) * ValueOf(row.cols, config);
  }
  (storage.*member).weight.reserve(static_cast<size_t>(std::min(elements, reader.TotalElements())));
}

absl::Status ReadLayer(TensorReader& reader, const ModelConfig& config, const TensorRow& row,
                       std::string_view name, LayerStorage& layer) {
  DEEPPCR_RETURN_IF_ERROR(
      reader.Append(StrCat(name, ".weight"), WeightShape(row, config), layer.weight));
  if (!row.has_bias) return absl::OkStatus();
  return reader.Append(StrCat(name, ".bias"), {ValueOf(row.rows, config)}, layer.bias);
}

}  // namespace

std::span<const TensorRow> DenoiserTensors() { return kRows; }

std::vector<DenoiserTensor> DenoiserTensorsIn(const ModelConfig& config,
                                              const DiffusionStorage& storage) {
  std::vector<DenoiserTensor> tensors;
  // Where the next tensor of a member begins, in the order in which they were read.
  std::map<const std::vector<float>*, size_t> ends;
  const auto take = [&](std::string name, const TensorReader::Shape& shape,
                        const std::vector<float>& from) {
    size_t elements = 1;
    for (const int64_t extent : shape) elements *= static_cast<size_t>(extent);
    size_t& end = ends[&from];
    tensors.push_back({std::move(name), shape, std::span(from).subspan(end, elements)});
    end += elements;
  };
  for (const TensorRow& row : kRows) {
    for (int64_t block = 0; block < CountOf(row, config); ++block) {
      const std::string name = NameOfBlock(row, StrCat(block));
      const LayerStorage& layer = storage.*row.storage;
      take(name + ".weight", WeightShape(row, config), layer.weight);
      if (row.has_bias) take(name + ".bias", {ValueOf(row.rows, config)}, layer.bias);
    }
  }
  return tensors;
}

std::string ShapeText(const TensorRow& row) {
  if (row.cols.key == nullptr) return StrCat("[", TextOf(row.rows), "]");
  return StrCat("[", TextOf(row.rows), ", ", TextOf(row.cols), "]");
}

std::vector<LayersExtent> DenoiserLayers(const ModelConfig& config) {
  std::vector<LayersExtent> all;
  for (const TensorRow& row : kRows) {
    const int64_t cols = row.cols.key == nullptr ? 1 : ValueOf(row.cols, config);
    all.push_back({CountOf(row, config), ValueOf(row.rows, config), cols + row.has_bias});
  }
  return all;
}

std::string DenoiserTensorNames(const ModelConfig& config) {
  const std::string blocks = StrCat("<0 .. ", config.num_blocks - 1, ">");
  std::string names;
  for (const TensorRow& row : kRows) {
    if (row.present(config))
      names += StrCat(NameOfBlock(row, blocks), row.has_bias ? ".{weight,bias}, " : ".weight, ");
  }
  return StrCat(names, "decoder.<0 .. ", config.decoder_widths.size(), ">.{weight,bias}");
}

absl::Status ReadDenoiserTensors(TensorReader& reader, const ModelConfig& config,
                                 DiffusionStorage& storage) {
  for (const TensorRow& row : kRows) {
    if (IsPerBlock(row)) Reserve(reader, config, row.storage, storage);
    for (int64_t block = 0; block < CountOf(row, config); ++block) {
      DEEPPCR_RETURN_IF_ERROR(
          ReadLayer(reader, config, row, NameOfBlock(row, StrCat(block)), storage.*row.storage));
    }
  }
  return absl::OkStatus();
}

}  // namespace deeppcr
