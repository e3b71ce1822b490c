// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_CLASS_LABELS_H_
#define DEEPPCR_CLIENT_CLASS_LABELS_H_

// The requested classes of a diffusion model's samples: parsed from flags, formatted for files.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/array_file.h"

namespace deeppcr {

// A choice of classes: "3", "0,3,7" or "all".
struct ClassChoice {
  bool all = false;
  std::vector<int32_t> classes;  // empty if all
  bool empty() const { return !all && classes.empty(); }
};

// An empty text is an empty choice. Errors: kInvalidArgument for anything but the forms above.
absl::StatusOr<ClassChoice> ParseClassChoice(std::string_view text);

// The classes of `count` samples: the chosen classes in turn, by the number of the sample, so that
// splitting samples over requests changes no class. Empty for a model without classes.
// Errors: kInvalidArgument for classes that the model does not have, for an empty choice if the
// model has classes, and for any other choice if not; kInternal for a bad num_classes.
absl::StatusOr<std::vector<int32_t>> CycleClasses(const ClassChoice& choice, int64_t num_classes,
                                                  uint64_t first_sample, int64_t count);

// One label per sample: a .npy vector of 64-bit integers, lines of CSV, or a JSON array.
std::string FormatClassLabels(std::span<const int32_t> labels, ArrayFormat format);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_CLASS_LABELS_H_
