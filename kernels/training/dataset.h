// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_TRAINING_DATASET_H_
#define DEEPPCR_KERNELS_TRAINING_DATASET_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace deeppcr::training {

// Samples with what a model should answer: labels or targets, never both.
struct Dataset {
  int64_t num_samples = 0;
  int64_t input_dim = 0;
  int64_t target_dim = 0;       // 0 where there are labels
  std::vector<float> inputs;    // [n, input_dim], finite
  std::vector<int32_t> labels;  // [n]
  std::vector<float> targets;   // [n, target_dim], finite

  std::span<const float> InputsOf(int64_t i) const {
    return std::span(inputs).subspan(i * input_dim, input_dim);
  }
  std::span<const float> TargetsOf(int64_t i) const {
    return std::span(targets).subspan(i * target_dim, target_dim);
  }
};

// Checks that the data is complete and finite and fits a model: with cross_entropy labels in [0,
// output_dim), else targets of output_dim values. `what` names the data. Errors: kInvalidArgument
// naming sample, what was expected, what came.
absl::Status CheckDataset(const Dataset& data, int64_t input_dim, int64_t output_dim,
                          std::string_view what);

// SHA-256 over sizes and values: a run that goes on must see the same data.
absl::StatusOr<std::string> HashOf(const Dataset& data);

// 0 .. n - 1 in an order that is a function of (seed, stream, index) alone.
std::vector<int64_t> ShuffledOrder(int64_t n, uint64_t seed, uint32_t stream, uint64_t index);

// Cuts a share off the data, drawn by the seed: at least one sample goes to either part.
struct SplitDataset {
  Dataset training, validation;
};
// Errors: kInvalidArgument unless 0 < share < 1 and there are two samples.
absl::StatusOr<SplitDataset> Split(const Dataset& data, double validation_share, uint64_t seed);

}  // namespace deeppcr::training

#endif  // DEEPPCR_KERNELS_TRAINING_DATASET_H_
