// SPDX-License-Identifier: Apache-2.0
#include "client/class_labels.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/npy.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

// More classes than any model has; bounds the memory that "all" takes.
constexpr int64_t kMaxClasses = 1 << 20;

absl::Status CheckClasses(const ClassChoice& choice, int64_t num_classes) {
  if (num_classes == 0) {
    if (choice.empty()) return absl::OkStatus();
    return InvalidArgument("class: this model has no classes to choose from");
  }
  if (num_classes < 0 || num_classes > kMaxClasses) {
    return Internal("bad reply: num_classes: expected at most ", kMaxClasses, ", got ",
                    num_classes);
  }
  if (choice.empty()) {
    return InvalidArgument("class: this model draws samples of a class; choose from 0 to ",
                           num_classes - 1,
                           " with --class 0, --class 0,1 (in turn) or --class all");
  }
  for (const int32_t label : choice.classes) {
    if (label < num_classes) continue;
    return InvalidArgument("class: expected 0 to ", num_classes - 1, " for this model, got ",
                           label);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ClassChoice> ParseClassChoice(std::string_view text) {
  ClassChoice choice;
  if (text.empty()) return choice;
  if (text == "all") {
    choice.all = true;
    return choice;
  }
  const std::string owned(text);
  for (const absl::string_view part : absl::StrSplit(owned, ',')) {
    int32_t label = 0;
    if (!absl::SimpleAtoi(part, &label) || label < 0) {
      return InvalidArgument(
          "class: expected numbers of at least 0 such as 3 or 0,3,7, or all, got '", owned, "'");
    }
    choice.classes.push_back(label);
  }
  return choice;
}

absl::StatusOr<std::vector<int32_t>> CycleClasses(const ClassChoice& choice, int64_t num_classes,
                                                  uint64_t first_sample, int64_t count) {
  DEEPPCR_RETURN_IF_ERROR(CheckClasses(choice, num_classes));
  std::vector<int32_t> cycle = choice.classes;
  if (choice.all) {
    cycle.resize(static_cast<size_t>(num_classes));
    std::iota(cycle.begin(), cycle.end(), 0);
  }
  std::vector<int32_t> labels(cycle.empty() ? 0 : static_cast<size_t>(count));
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = cycle[(first_sample + i) % cycle.size()];
  return labels;
}

std::string FormatClassLabels(std::span<const int32_t> labels, ArrayFormat format) {
  switch (format) {
    case ArrayFormat::kNpy:
      return FormatNpy(std::vector<int64_t>(labels.begin(), labels.end()));
    case ArrayFormat::kCsv:
      return StrCat(absl::StrJoin(labels, "\n"), "\n");
    case ArrayFormat::kJson:
      return StrCat("[", absl::StrJoin(labels, ", "), "]\n");
  }
  return "";
}

}  // namespace deeppcr
