// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_COMMANDS_TRAIN_DATA_H_
#define DEEPPCR_CLIENT_COMMANDS_TRAIN_DATA_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/array.h"
#include "kernels/training/dataset.h"
#include "kernels/training/loss.h"

namespace deeppcr {

// Where samples come from: an .npz file with the arrays `inputs` and `labels` or `targets`, or a
// file of each.
struct DataFlags {
  std::string data;
  std::string inputs, targets;
  std::string validation_data;
  std::string validation_inputs, validation_targets;
  double validation_share = 0;
  void Add(CLI::App* app);
};

struct TrainingData {
  training::Dataset training;
  std::optional<training::Dataset> validation;
};

// Reads the data and divides it, if flags say so, by the seed. Errors: as ReadArray and ParseNpz;
// kInvalidArgument naming the flag, file and array, what was expected, what came.
absl::StatusOr<TrainingData> LoadData(const DataFlags& flags, training::LossKind loss,
                                      int64_t input_dim, int64_t output_dim, uint64_t seed);

// Samples of two arrays: labels are whole numbers, one a sample. `what` names the data in errors.
absl::StatusOr<training::Dataset> MakeDataset(Array inputs, Array answers, training::LossKind loss,
                                              const std::string& what);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_COMMANDS_TRAIN_DATA_H_
