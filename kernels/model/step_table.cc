// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/step_table.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/reverse_process.h"
#include "kernels/model/weights.h"

namespace deeppcr {
namespace {

struct TableColumn {
  std::string_view name;
  double ReverseStep::*member;
};

constexpr std::array<TableColumn, 7> kTableColumns = {{
    {"x0_z", &ReverseStep::x0_z},
    {"x0_m", &ReverseStep::x0_m},
    {"z_z", &ReverseStep::z_z},
    {"z_m", &ReverseStep::z_m},
    {"z_x0", &ReverseStep::z_x0},
    {"sigma", &ReverseStep::sigma},
    {"time", &ReverseStep::timestep},
}};
// Columns that may be left out, and are 0 then.
constexpr std::array<TableColumn, 4> kMemoryColumns = {{
    {"z_c", &ReverseStep::z_c},
    {"c_z", &ReverseStep::c_z},
    {"c_m", &ReverseStep::c_m},
    {"c_x0", &ReverseStep::c_x0},
}};
constexpr std::string_view kClipRange = "clip_range", kInitialScale = "initial_scale";

std::string AllNames() {
  const auto name = [](const TableColumn& column) { return column.name; };
  return StrCat(StrJoin(kTableColumns, ", ", name), ", ", StrJoin(kMemoryColumns, ", ", name), ", ",
                kClipRange, ", ", kInitialScale);
}

bool Names(std::span<const TableColumn> columns, std::string_view name) {
  return std::ranges::find(columns, name, &TableColumn::name) != columns.end();
}

absl::Status CheckNames(const Tensors& tensors) {
  for (const TensorEntry& entry : tensors.entries()) {
    if (entry.name == kClipRange || entry.name == kInitialScale ||
        Names(kTableColumns, entry.name) || Names(kMemoryColumns, entry.name))
      continue;
    return InvalidArgument("unknown tensor ", Quoted(entry.name), "; the tensors are ", AllNames());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> Values(const TensorEntry& entry) {
  std::vector<double> values(static_cast<size_t>(NumElements(entry)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (entry.dtype == Dtype::kF64) {
      std::memcpy(&values[i], entry.data.data() + i * sizeof(double), sizeof(double));
    } else if (entry.dtype == Dtype::kF32) {
      float value;
      std::memcpy(&value, entry.data.data() + i * sizeof(float), sizeof(float));
      values[i] = value;
    } else {
      return InvalidArgument("tensor ", Quoted(entry.name), ": expected dtype F64 or F32, got ",
                             DtypeName(entry.dtype));
    }
  }
  return values;
}

absl::Status ReadTableColumn(const Tensors& tensors, const TableColumn& column,
                             std::vector<ReverseStep>& steps) {
  const TensorEntry* entry = tensors.Find(column.name);
  if (entry == nullptr)
    return InvalidArgument("tensor ", Quoted(column.name), " of shape [L] is missing");
  const std::vector<int64_t>& shape = entry->shape;
  if (shape.size() != 1 || shape[0] < 1 || shape[0] > kMaxTableSteps)
    return InvalidArgument("tensor ", Quoted(column.name), ": expected shape [1 .. ",
                           kMaxTableSteps, "], got ", ShapeString(shape));
  if (steps.empty()) steps.resize(static_cast<size_t>(shape[0]));
  if (std::ssize(steps) != shape[0])
    return InvalidArgument("tensor ", Quoted(column.name), ": expected shape [", steps.size(),
                           "] as that of ", kTableColumns.front().name, ", got ",
                           ShapeString(shape));
  DEEPPCR_ASSIGN_OR_RETURN(const std::vector<double> values, Values(*entry));
  for (size_t i = 0; i < steps.size(); ++i) steps[i].*column.member = values[i];
  return absl::OkStatus();
}

// The number of a tensor that may be left out, above 0 and finite as float32.
absl::StatusOr<double> OptionalNumber(const Tensors& tensors, std::string_view name,
                                      double otherwise) {
  const TensorEntry* entry = tensors.Find(name);
  if (entry == nullptr) return otherwise;
  if (NumElements(*entry) != 1 || entry->shape.size() > 1)
    return InvalidArgument("tensor ", Quoted(name), ": expected shape [] or [1], got ",
                           ShapeString(entry->shape));
  DEEPPCR_ASSIGN_OR_RETURN(const std::vector<double> values, Values(*entry));
  const double value = values[0];
  if (value <= std::numeric_limits<float>::max() && static_cast<float>(value) > 0.0F) return value;
  return InvalidArgument("tensor ", Quoted(name),
                         ": expected a number above 0 and finite as float32, got ", value);
}

}  // namespace

absl::StatusOr<StepTables> ParseStepTable(std::string_view bytes) {
  DEEPPCR_ASSIGN_OR_RETURN(const Tensors tensors, ParseSafetensors(bytes));
  DEEPPCR_RETURN_IF_ERROR(CheckNames(tensors));
  StepTables table;
  for (const TableColumn& column : kTableColumns)
    DEEPPCR_RETURN_IF_ERROR(ReadTableColumn(tensors, column, table.steps));
  for (const TableColumn& column : kMemoryColumns) {
    if (tensors.Find(column.name) != nullptr)
      DEEPPCR_RETURN_IF_ERROR(ReadTableColumn(tensors, column, table.steps));
  }
  // A memory that no step reads is none.
  table.form.carries =
      std::ranges::any_of(table.steps, [](const ReverseStep& step) { return step.z_c != 0.0; });
  for (size_t i = 0; i + 1 < table.steps.size(); ++i)
    table.steps[i].prev_timestep = table.steps[i + 1].timestep;
  DEEPPCR_ASSIGN_OR_RETURN(
      table.clip_range,
      OptionalNumber(tensors, kClipRange, std::numeric_limits<double>::infinity()));
  DEEPPCR_ASSIGN_OR_RETURN(const double scale, OptionalNumber(tensors, kInitialScale, 1.0));
  table.initial_scale = static_cast<float>(scale);
  DEEPPCR_RETURN_IF_ERROR(CheckSteps(table.steps, scale));
  return table;
}

absl::Status CheckStepTable(const StepTables& table, const ModelConfig& config) {
  const std::vector<int64_t> lengths = {std::ssize(table.steps)};
  if (config.num_inference_steps != lengths)
    return InvalidArgument("num_inference_steps: expected ", lengths[0],
                           ", the rows of the table, and nothing else");
  const auto refuse = [](std::string_view key) {
    return InvalidArgument(key, ": expected no such key, as the table says all of the steps");
  };
  if (config.eta != 0.0) return refuse("eta");
  if (config.mu.has_value()) return refuse("mu");
  if (config.use_clipped_model_output) return refuse("use_clipped_model_output");
  if (config.diffusers_compatible) return refuse("diffusers_compatible");
  return absl::OkStatus();
}

}  // namespace deeppcr
