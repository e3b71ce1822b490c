// SPDX-License-Identifier: Apache-2.0
#include "server/codec/v2/parameters.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "server/codec/tensor_codec.h"

namespace deeppcr {
namespace {

using Value = inference::InferParameter;

std::string KindOf(const Value& value) {
  switch (value.parameter_choice_case()) {
    case Value::kBoolParam:
      return value.bool_param() ? "true" : "false";
    case Value::kInt64Param:
      return StrCat(value.int64_param());
    case Value::kStringParam:
      return Quoted(value.string_param());
    case Value::kDoubleParam:
      return StrCat(value.double_param());
    case Value::kUint64Param:
      return StrCat(value.uint64_param());
    default:
      return "no value";
  }
}

absl::StatusOr<double> Number(std::string_view field, const Value& value) {
  switch (value.parameter_choice_case()) {
    case Value::kDoubleParam:
      return value.double_param();
    case Value::kInt64Param:
      return static_cast<double>(value.int64_param());
    case Value::kUint64Param:
      return static_cast<double>(value.uint64_param());
    default:
      return Mismatch(field, "a number", KindOf(value));
  }
}

absl::StatusOr<uint64_t> Unsigned(std::string_view field, const Value& value) {
  if (value.parameter_choice_case() == Value::kUint64Param) return value.uint64_param();
  if (value.parameter_choice_case() == Value::kInt64Param && value.int64_param() >= 0)
    return static_cast<uint64_t>(value.int64_param());
  return Mismatch(field, "an integer that is not negative", KindOf(value));
}

absl::StatusOr<int32_t> Integer(std::string_view field, const Value& value) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (value.parameter_choice_case() == Value::kInt64Param && value.int64_param() >= -kMost &&
      value.int64_param() <= kMost)
    return static_cast<int32_t>(value.int64_param());
  if (value.parameter_choice_case() == Value::kUint64Param && value.uint64_param() <= kMost)
    return static_cast<int32_t>(value.uint64_param());
  return Mismatch(field, "an integer of 32 bits", KindOf(value));
}

absl::StatusOr<std::string> Text(std::string_view field, const Value& value) {
  if (value.parameter_choice_case() == Value::kStringParam) return value.string_param();
  return Mismatch(field, "a string", KindOf(value));
}

absl::StatusOr<bool> Truth(std::string_view field, const Value& value) {
  if (value.parameter_choice_case() == Value::kBoolParam) return value.bool_param();
  return Mismatch(field, "true or false", KindOf(value));
}

// The enumerator PREFIX_NAME of a string "name".
template <typename Enum>
absl::StatusOr<Enum> Enumerator(std::string_view field, const Value& value,
                                std::string_view prefix) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::string name, Text(field, value));
  const google::protobuf::EnumDescriptor* type = google::protobuf::GetEnumDescriptor<Enum>();
  std::vector<std::string> names;
  for (int i = 1; i < type->value_count(); ++i) {  // skips UNSPECIFIED
    names.push_back(absl::AsciiStrToLower(type->value(i)->name().substr(prefix.size())));
    if (names.back() == name) return static_cast<Enum>(type->value(i)->number());
  }
  return Mismatch(field, StrCat("one of ", absl::StrJoin(names, ", ")), KindOf(value));
}

// Stores the value that was read, or returns its error.
template <typename T, typename Store>
absl::Status Keep(const absl::StatusOr<T>& read, const Store& store) {
  if (read.ok()) store(*read);
  return read.status();
}

template <typename Target>
struct Parameter {
  std::string_view name;
  absl::Status (*set)(std::string_view field, const Value& value, Target& to);
};
using Field = std::string_view;
using Options = v1::SolverOptions;
using Generation = v1::GenerationInput;

constexpr Parameter<Options> kOptions[] = {
    {"solver",
     [](Field f, const Value& v, Options& to) {
       return Keep(Text(f, v), [&](const auto& x) { to.set_solver(x); });
     }},
    {"rtol", [](Field f, const Value& v,
                Options& to) { return Keep(Number(f, v), [&](double x) { to.set_rtol(x); }); }},
    {"atol", [](Field f, const Value& v,
                Options& to) { return Keep(Number(f, v), [&](double x) { to.set_atol(x); }); }},
    {"max_iterations",
     [](Field f, const Value& v, Options& to) {
       return Keep(Integer(f, v), [&](int32_t x) { to.set_max_iterations(x); });
     }},
    {"shooting_interval",
     [](Field f, const Value& v, Options& to) {
       return Keep(Integer(f, v), [&](int32_t x) { to.set_shooting_interval(x); });
     }},
    {"warm_sweeps",
     [](Field f, const Value& v, Options& to) {
       return Keep(Integer(f, v), [&](int32_t x) { to.set_warm_sweeps(x); });
     }},
    {"initial_guess",
     [](Field f, const Value& v, Options& to) {
       return Keep(Enumerator<v1::InitialGuess>(f, v, "INITIAL_GUESS_"),
                   [&](v1::InitialGuess x) { to.set_initial_guess(x); });
     }},
    {"jacobian_refresh",
     [](Field f, const Value& v, Options& to) {
       return Keep(Enumerator<v1::JacobianRefresh>(f, v, "JACOBIAN_REFRESH_"),
                   [&](v1::JacobianRefresh x) { to.set_jacobian_refresh(x); });
     }},
    {"on_no_convergence",
     [](Field f, const Value& v, Options& to) {
       return Keep(Enumerator<v1::OnNoConvergence>(f, v, "ON_NO_CONVERGENCE_"),
                   [&](v1::OnNoConvergence x) { to.set_on_no_convergence(x); });
     }},
    {"keep_trajectory",
     [](Field f, const Value& v, Options& to) {
       return Keep(Truth(f, v), [&](bool x) { to.set_keep_trajectory(x); });
     }},
};

constexpr Parameter<Generation> kGeneration[] = {
    {"num_samples",
     [](Field f, const Value& v, Generation& to) {
       return Keep(Integer(f, v), [&](int32_t x) { to.set_num_samples(x); });
     }},
    {"seed",
     [](Field f, const Value& v, Generation& to) {
       return Keep(Unsigned(f, v), [&](uint64_t x) { to.set_seed(x); });
     }},
    {"first_sample",
     [](Field f, const Value& v, Generation& to) {
       return Keep(Unsigned(f, v), [&](uint64_t x) { to.set_first_sample(x); });
     }},
    {"num_inference_steps",
     [](Field f, const Value& v, Generation& to) {
       return Keep(Integer(f, v), [&](int32_t x) { to.set_num_inference_steps(x); });
     }},
    {"class_label",
     [](Field f, const Value& v, Generation& to) {
       return Keep(Integer(f, v), [&](int32_t x) { to.add_class_labels(x); });
     }},
    {"guidance_scale",
     [](Field f, const Value& v, Generation& to) {
       return Keep(Number(f, v), [&](double x) { to.set_guidance_scale(x); });
     }},
    {"temperature",
     [](Field f, const Value& v, Generation& to) {
       return Keep(Number(f, v), [&](double x) { to.set_temperature(x); });
     }},
    {"initial_temperature",
     [](Field f, const Value& v, Generation& to) {
       return Keep(Number(f, v), [&](double x) { to.set_initial_temperature(x); });
     }},
    {"noise_clip",
     [](Field f, const Value& v, Generation& to) {
       return Keep(Number(f, v), [&](double x) { to.set_noise_clip(x); });
     }},
    {"initial_noise_clip",
     [](Field f, const Value& v, Generation& to) {
       return Keep(Number(f, v), [&](double x) { to.set_initial_noise_clip(x); });
     }},
    {"first_step",
     [](Field f, const Value& v, Generation& to) {
       return Keep(Integer(f, v), [&](int32_t x) { to.set_first_step(x); });
     }},
    {"lower_bounds",
     [](Field f, const Value& v, Generation& to) {
       return Keep(Number(f, v), [&](double x) { to.add_lower_bounds(static_cast<float>(x)); });
     }},
    {"upper_bounds",
     [](Field f, const Value& v, Generation& to) {
       return Keep(Number(f, v), [&](double x) { to.add_upper_bounds(static_cast<float>(x)); });
     }},
};

constexpr Parameter<v1::GradientRequest> kWayBack[] = {
    {"way",
     [](Field f, const Value& v, v1::GradientRequest& to) {
       return Keep(Enumerator<v1::BackwardWay>(f, v, "BACKWARD_WAY_"),
                   [&](v1::BackwardWay x) { to.set_way(x); });
     }},
    {"way_interval",
     [](Field f, const Value& v, v1::GradientRequest& to) {
       return Keep(Integer(f, v), [&](int32_t x) { to.set_shooting_interval(x); });
     }},
    {"loss",
     [](Field f, const Value& v, v1::GradientRequest& to) {
       return Keep(Enumerator<v1::Loss>(f, v, "LOSS_"), [&](v1::Loss x) { to.set_loss(x); });
     }},
    {"estimate_error",
     [](Field f, const Value& v, v1::GradientRequest& to) {
       return Keep(Truth(f, v), [&](bool x) { to.set_estimate_error(x); });
     }},
    {"trajectory_handle",
     [](Field f, const Value& v, v1::GradientRequest& to) {
       return Keep(Text(f, v), [&](const auto& x) { to.set_trajectory_handle(x); });
     }},
};

template <typename Target, size_t N>
const Parameter<Target>* Find(const Parameter<Target> (&table)[N], std::string_view name) {
  const auto found = std::find_if(std::begin(table), std::end(table),
                                  [&](const auto& each) { return each.name == name; });
  return found == std::end(table) ? nullptr : found;
}

absl::Status SetTimeout(std::string_view field, const Value& value, const V2Targets& to) {
  DEEPPCR_ASSIGN_OR_RETURN(const uint64_t time, Unsigned(field, value));
  constexpr uint64_t kDay = uint64_t{24} * 3600 * 1000 * 1000;
  if (time > 0) *to.timeout = std::chrono::microseconds(std::min(time, kDay));
  return absl::OkStatus();
}

absl::Status Unknown(std::string_view name, const V2Targets& to) {
  std::vector<std::string> names;
  for (const auto& each : kOptions) names.emplace_back(each.name);
  if (to.generation != nullptr) {
    for (const auto& each : kGeneration) names.emplace_back(each.name);
  }
  if (to.gradient != nullptr) {
    for (const auto& each : kWayBack) names.emplace_back(each.name);
  }
  names.emplace_back("timeout");
  return Mismatch("parameters", StrCat("names among ", absl::StrJoin(names, ", ")), Quoted(name));
}

absl::Status Set(const std::string& name, const Value& value, const V2Targets& to) {
  // Sent by clients that want to be told which reply is the last one: here every reply is.
  if (name == "triton_enable_empty_final_response") return absl::OkStatus();
  const std::string field = StrCat("parameters.", name);
  if (name == "timeout") return SetTimeout(field, value, to);
  if (const auto* option = Find(kOptions, name)) return option->set(field, value, *to.options);
  if (const auto* of = Find(kGeneration, name); of != nullptr && to.generation != nullptr)
    return of->set(field, value, *to.generation);
  if (const auto* of = Find(kWayBack, name); of != nullptr && to.gradient != nullptr)
    return of->set(field, value, *to.gradient);
  return Unknown(name, to);
}

}  // namespace

absl::Status DecodeV2Parameters(
    const google::protobuf::Map<std::string, inference::InferParameter>& parameters,
    const V2Targets& targets) {
  for (const auto& [name, value] : parameters) DEEPPCR_RETURN_IF_ERROR(Set(name, value, targets));
  return absl::OkStatus();
}

}  // namespace deeppcr
