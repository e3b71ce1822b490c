// SPDX-License-Identifier: Apache-2.0
#include "kernels/training/dataset.h"

#include <numeric>
#include <string_view>
#include <utility>

#include "kernels/base/finite.h"
#include "kernels/base/sha256.h"
#include "kernels/base/strings.h"
#include "kernels/problem/philox.h"
#include "kernels/training/noise_streams.h"

namespace deeppcr::training {
namespace {

absl::Status CheckFinite(std::span<const float> values, int64_t row, std::string_view what,
                         std::string_view array) {
  const size_t bad = FirstNonFinite(values);
  if (bad == values.size()) return absl::OkStatus();
  const auto i = static_cast<int64_t>(bad);
  return InvalidArgument(what, ": ", array, ": sample ", i / row, ", element ", i % row,
                         ": expected a finite value, got ", values[bad]);
}

absl::Status CheckSize(size_t got, int64_t expected, std::string_view what,
                       std::string_view array) {
  if (std::cmp_equal(got, expected)) return absl::OkStatus();
  return InvalidArgument(what, ": ", array, ": expected ", expected, " values, got ", got);
}

absl::Status CheckLabels(const Dataset& data, int64_t output_dim, std::string_view what) {
  for (int64_t i = 0; i < data.num_samples; ++i) {
    if (data.labels[i] >= 0 && data.labels[i] < output_dim) continue;
    return InvalidArgument(what, ": labels: sample ", i, ": expected 0 .. ", output_dim - 1,
                           " (output_dim - 1), got ", data.labels[i]);
  }
  return absl::OkStatus();
}

template <class T>
std::string_view BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

Dataset Chosen(const Dataset& data, std::span<const int64_t> samples) {
  Dataset chosen = {.num_samples = std::ssize(samples),
                    .input_dim = data.input_dim,
                    .target_dim = data.target_dim};
  for (const int64_t i : samples) {
    const auto inputs = data.InputsOf(i);
    chosen.inputs.insert(chosen.inputs.end(), inputs.begin(), inputs.end());
    if (!data.labels.empty()) chosen.labels.push_back(data.labels[i]);
    const auto targets = data.TargetsOf(i);
    chosen.targets.insert(chosen.targets.end(), targets.begin(), targets.end());
  }
  return chosen;
}

}  // namespace

absl::Status CheckDataset(const Dataset& data, int64_t input_dim, int64_t output_dim,
                          std::string_view what) {
  const int64_t n = data.num_samples;
  if (n < 1) return InvalidArgument(what, ": expected at least one sample");
  if (data.input_dim != input_dim)
    return InvalidArgument(what, ": inputs: expected ", input_dim, " values a sample (input_dim)",
                           ", got ", data.input_dim);
  if (data.target_dim != 0 && data.target_dim != output_dim)
    return InvalidArgument(what, ": targets: expected ", output_dim,
                           " values a sample (output_dim), got ", data.target_dim);
  const bool labelled = data.target_dim == 0;
  absl::Status status = CheckSize(data.inputs.size(), n * input_dim, what, "inputs");
  status.Update(CheckSize(data.labels.size(), labelled ? n : 0, what, "labels"));
  status.Update(CheckSize(data.targets.size(), n * data.target_dim, what, "targets"));
  if (!status.ok()) return status;
  status.Update(CheckFinite(data.inputs, input_dim, what, "inputs"));
  status.Update(CheckFinite(data.targets, output_dim, what, "targets"));
  if (labelled) status.Update(CheckLabels(data, output_dim, what));
  return status;
}

absl::StatusOr<std::string> HashOf(const Dataset& data) {
  const std::vector<int64_t> sizes = {data.num_samples, data.input_dim, data.target_dim};
  std::string bytes(BytesOf(sizes));
  bytes += BytesOf(data.inputs);
  bytes += BytesOf(data.labels);
  bytes += BytesOf(data.targets);
  return Sha256Hex(bytes);
}

// Fisher and Yates. The remainder of 64 bits is off a uniform choice by 2^-64 of the places.
std::vector<int64_t> ShuffledOrder(int64_t n, uint64_t seed, uint32_t stream, uint64_t index) {
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = n - 1; i > 0; --i) {
    const PhiloxWords words = NoiseWords(seed, index, stream, static_cast<uint32_t>(i));
    const uint64_t wide = uint64_t{words[0]} << 32 | words[1];
    const auto place = static_cast<int64_t>(wide % static_cast<uint64_t>(i + 1));
    std::swap(order[i], order[place]);
  }
  return order;
}

absl::StatusOr<SplitDataset> Split(const Dataset& data, double validation_share, uint64_t seed) {
  if (!(validation_share > 0 && validation_share < 1))
    return InvalidArgument("validation: expected a share between 0 and 1, got ", validation_share);
  if (data.num_samples < 2)
    return InvalidArgument("validation: expected at least 2 samples to divide, got ",
                           data.num_samples);
  const auto wanted =
      static_cast<int64_t>(std::llround(validation_share * static_cast<double>(data.num_samples)));
  const int64_t held = std::clamp<int64_t>(wanted, 1, data.num_samples - 1);
  const std::vector<int64_t> order =
      ShuffledOrder(data.num_samples, seed, static_cast<uint32_t>(NoiseStream::kSplit), 0);
  const std::span<const int64_t> all(order);
  return SplitDataset{.training = Chosen(data, all.subspan(held)),
                      .validation = Chosen(data, all.first(held))};
}

}  // namespace deeppcr::training
