// SPDX-License-Identifier: Apache-2.0
#include "client/solver_options.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/descriptor.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;

constexpr SolverOptionText kTexts[] = {
    {"solver", "sequential, newton, quasi_newton, picard, jacobi or auto (default auto)"},
    {"rtol", "relative tolerance on the states (default 1e-4)"},
    {"atol", "absolute tolerance on the states (default 1e-6)"},
    {"max_iterations", "iterations before giving up (default: at most 32)"},
    {"shooting_interval", "steps per shooting interval (default: from the plan)"},
    {"warm_sweeps", "Picard sweeps before the first Newton iteration (default: from the plan)"},
    {"initial_guess", "constant, calibrated, coarse or previous (default: from the plan)"},
    {"jacobian_refresh", "every_iteration or while_contracting (default: from the plan)"},
    {"on_no_convergence", "fallback, return or error (default fallback)"},
};

absl::Status Expected(std::string_view name, const std::string& expected, std::string_view value) {
  return InvalidArgument(name, ": expected ", expected, ", got '", value, "'");
}

// The short name of an enum value: "constant" for INITIAL_GUESS_CONSTANT, without the prefix that
// all names of the enum share.
std::string ShortName(const EnumDescriptor* type, int index) {
  const std::string first = type->value(0)->name();
  const size_t prefix = first.size() - std::string_view("UNSPECIFIED").size();
  return absl::AsciiStrToLower(type->value(index)->name().substr(prefix));
}

absl::Status SetEnum(const FieldDescriptor* field, std::string_view value,
                     v1::SolverOptions* options) {
  const EnumDescriptor* type = field->enum_type();
  std::vector<std::string> names;
  for (int i = 1; i < type->value_count(); ++i) {
    names.push_back(ShortName(type, i));
    if (names.back() != value) continue;
    options->GetReflection()->SetEnum(options, field, type->value(i));
    return absl::OkStatus();
  }
  return Expected(field->name(), absl::StrJoin(names, ", "), value);
}

absl::Status SetNumber(const FieldDescriptor* field, std::string_view value,
                       v1::SolverOptions* options) {
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
    double number = 0;
    if (!absl::SimpleAtod(ToAbsl(value), &number))
      return Expected(field->name(), "a number", value);
    options->GetReflection()->SetDouble(options, field, number);
    return absl::OkStatus();
  }
  int32_t number = 0;
  if (!absl::SimpleAtoi(ToAbsl(value), &number)) {
    return Expected(field->name(), "a whole number", value);
  }
  options->GetReflection()->SetInt32(options, field, number);
  return absl::OkStatus();
}

}  // namespace

std::span<const SolverOptionText> SolverOptionTexts() { return kTexts; }

absl::Status SetSolverOption(std::string_view name, std::string_view value,
                             v1::SolverOptions* options) {
  const auto* const text =
      std::find_if(std::begin(kTexts), std::end(kTexts),
                   [&](const SolverOptionText& row) { return row.name == name; });
  if (text == std::end(kTexts)) {
    const std::string names = absl::StrJoin(
        kTexts, ", ", [](std::string* out, const SolverOptionText& row) { out->append(row.name); });
    return Expected("option", StrCat("one of ", names), name);
  }
  const FieldDescriptor* field = options->GetDescriptor()->FindFieldByName(text->name);
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) return SetEnum(field, value, options);
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) return SetNumber(field, value, options);
  if (value.empty()) return Expected(name, "a name", value);
  options->GetReflection()->SetString(options, field, std::string(value));
  return absl::OkStatus();
}

absl::Status StartFromPrevious(v1::SolverOptions* options) {
  const v1::InitialGuess asked = options->initial_guess();
  if (asked != v1::INITIAL_GUESS_UNSPECIFIED && asked != v1::INITIAL_GUESS_PREVIOUS) {
    return InvalidArgument("initial_guess: expected previous, or nothing, beside --previous");
  }
  options->set_initial_guess(v1::INITIAL_GUESS_PREVIOUS);
  return absl::OkStatus();
}

absl::StatusOr<v1::SolverOptions> ParseSolverRow(std::string_view text,
                                                 const v1::SolverOptions& base) {
  v1::SolverOptions options = base;
  const std::vector<std::string> parts = absl::StrSplit(ToAbsl(text), ',');
  DEEPPCR_RETURN_IF_ERROR(SetSolverOption("solver", parts[0], &options));
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::pair<std::string, std::string> entry =
        absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
    DEEPPCR_RETURN_IF_ERROR(SetSolverOption(entry.first, entry.second, &options));
  }
  return options;
}

}  // namespace deeppcr
