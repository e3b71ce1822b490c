// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_CLASS_LABELS_H_
#define DEEPPCR_CLIENT_CLASS_LABELS_H_

// The classes that samples of a diffusion model are asked for, from a command line to a file.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/array_file.h"

namespace deeppcr {

// "3", "0,3,7" or "all".
struct ClassChoice {
  bool all = false;
  std::vector<int32_t> classes;  // unless all
  bool empty() const { return !all && classes.empty(); }
};

// An empty text is an empty choice. Errors: kInvalidArgument for anything but the forms above.
absl::StatusOr<ClassChoice> ParseClassChoice(std::string_view text);

// The classes of `count` samples: the choice in turn, by the number of the sample, so that no split
// changes it. Empty for an empty choice of a model without classes.
// Errors: kInvalidArgument for a choice that the model does not know, where one is missing, and
// where the model has no classes.
absl::StatusOr<std::vector<int32_t>> CycleClasses(const ClassChoice& choice, int64_t num_classes,
                                                  uint64_t first_sample, int64_t count);

// One label per sample: .npy of 64-bit integers, CSV and JSON lines.
std::string FormatClassLabels(std::span<const int32_t> labels, ArrayFormat format);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_CLASS_LABELS_H_
