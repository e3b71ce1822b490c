// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/time_embedding.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

// Timesteps that go through the network together: the weights are read once for all of them, and
// the sums of a row are independent.
constexpr size_t kColumns = 8;
using Columns = std::vector<std::array<double, kColumns>>;  // one row per value

double Silu(double x) { return x / (1.0 + std::exp(-x)); }

Columns Apply(const DenseSpec& layer, const Columns& in) {
  Columns out(layer.bias.size());
  for (size_t row = 0; row < out.size(); ++row) {
    std::array<double, kColumns> sum;
    sum.fill(static_cast<double>(layer.bias[row]));
    const auto row_weight = layer.weight.subspan(row * in.size(), in.size());
    for (size_t col = 0; col < in.size(); ++col) {
      const auto value = static_cast<double>(row_weight[col]);
      for (size_t k = 0; k < kColumns; ++k) sum[k] += value * in[col][k];
    }
    out[row] = sum;
  }
  return out;
}

// A block that is not full repeats its last timestep.
Columns Sinusoids(std::span<const ReverseStep> block, int64_t embedding_dim) {
  Columns in(static_cast<size_t>(embedding_dim));
  for (size_t k = 0; k < kColumns; ++k) {
    const double timestep = block[std::min(k, block.size() - 1)].timestep;
    const std::vector<double> embedding = SinusoidalEmbedding(timestep, embedding_dim);
    for (size_t i = 0; i < in.size(); ++i) in[i][k] = embedding[i];
  }
  return in;
}

absl::Status CheckFinite(std::span<const double> values, double timestep) {
  constexpr double kMax = std::numeric_limits<float>::max();
  for (const double value : values) {
    if (std::abs(value) <= kMax) continue;
    return InvalidArgument(
        "tensors time_embed.mlp.{0,2}.{weight,bias}: expected an embedding that "
        "is finite as float32, got ",
        value, " at timestep ", timestep);
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<double> EmbeddingFrequencies(int64_t embedding_dim) {
  const auto half = static_cast<size_t>(embedding_dim / 2);
  std::vector<double> frequencies(half);
  for (size_t j = 0; j < half; ++j) {
    const double exponent = static_cast<double>(j) / static_cast<double>(half);
    frequencies[j] = std::exp(-std::log(10000.0) * exponent);
  }
  return frequencies;
}

std::vector<double> SinusoidalEmbedding(double timestep, int64_t embedding_dim) {
  const std::vector<double> frequencies = EmbeddingFrequencies(embedding_dim);
  const size_t half = frequencies.size();
  std::vector<double> embedding(2 * half);
  for (size_t j = 0; j < half; ++j) {
    const double angle = timestep * frequencies[j];
    embedding[j] = std::cos(angle);
    embedding[half + j] = std::sin(angle);
  }
  return embedding;
}

absl::StatusOr<std::vector<double>> EmbedTimesteps(const TimeMlp& mlp,
                                                   std::span<const ReverseStep> steps,
                                                   const CancelToken* token) {
  const auto H = static_cast<size_t>(mlp.second.rows);
  std::vector<double> embeddings(steps.size() * H);
  for (size_t first = 0; first < steps.size(); first += kColumns) {
    if (Fired(token)) return absl::CancelledError("stopped while timesteps were embedded");
    const auto block = steps.subspan(first, std::min(kColumns, steps.size() - first));
    Columns hidden = Apply(mlp.first, Sinusoids(block, mlp.first.cols));
    for (auto& row : hidden) std::transform(row.begin(), row.end(), row.begin(), Silu);
    const Columns out = Apply(mlp.second, hidden);
    for (size_t k = 0; k < block.size(); ++k) {
      const std::span<double> row = std::span<double>(embeddings).subspan((first + k) * H, H);
      for (size_t i = 0; i < H; ++i) row[i] = out[i][k];
      if (absl::Status status = CheckFinite(row, block[k].timestep); !status.ok()) return status;
    }
  }
  return embeddings;
}

}  // namespace deeppcr
