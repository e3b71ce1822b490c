// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/plan_json.h"

#include <array>
#include <utility>

#include "kernels/base/json.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/solver/registry.h"

namespace deeppcr {
namespace {

using nlohmann::json;

constexpr int64_t kMaxCount = int64_t{1} << 40;
constexpr double kMaxNumber = 1e12;
constexpr size_t kMaxText = 256;

constexpr std::array kGuesses = {InitialGuess::kConstant, InitialGuess::kCoarse,
                                 InitialGuess::kCalibrated};
constexpr std::array kWays = {BackwardWay::kSequential, BackwardWay::kParallel};
constexpr std::array kRefreshes = {JacobianRefresh::kEveryIteration,
                                   JacobianRefresh::kWhileContracting};

json WaysToJson(const PlanWays& ways) {
  return {{"way", std::string(ToString(ways.way))},
          {"sequential_seconds", ways.sequential_seconds},
          {"parallel_seconds", ways.parallel_seconds}};
}

json EntryToJson(const PlanEntry& e) {
  json object = {
      {"max_samples", e.max_samples},           {"solver", e.solver},
      {"parallel", ChoiceToJson(e.parallel)},   {"sequential_seconds", e.sequential_seconds},
      {"parallel_seconds", e.parallel_seconds}, {"parallel_iterations", e.parallel_iterations},
      {"parallel_error", e.parallel_error},     {"parallel_stages", e.parallel_stages}};
  if (e.ways.has_value()) object["ways"] = WaysToJson(*e.ways);
  return object;
}

// The value whose name stands in the field.
template <class T, size_t N>
absl::StatusOr<T> NamedValue(const json& object, std::string_view field,
                             const std::array<T, N>& values) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::string name, TextMember(object, field));
  for (const T value : values) {
    if (ToString(value) == name) return value;
  }
  return InvalidArgument(field, ": unknown value ", Quoted(name));
}

absl::StatusOr<int64_t> Integer(const json& object, std::string_view field, int64_t min,
                                int64_t max) {
  DEEPPCR_ASSIGN_OR_RETURN(const json* member, JsonMember(object, field));
  return JsonInteger(*member, field, min, max);
}

absl::StatusOr<double> Number(const json& object, std::string_view field) {
  DEEPPCR_ASSIGN_OR_RETURN(const json* member, JsonMember(object, field));
  DEEPPCR_ASSIGN_OR_RETURN(const double value, JsonNumber(*member, field));
  if (value < 0) return InvalidArgument(field, ": expected no negative number, got ", value);
  if (value > kMaxNumber)
    return InvalidArgument(field, ": expected at most ", kMaxNumber, ", got ", value);
  return value;
}

absl::StatusOr<std::string> SolverName(const json& object) {
  DEEPPCR_ASSIGN_OR_RETURN(std::string name, TextMember(object, "solver"));
  if (FindSolver(name) == nullptr) return InvalidArgument("solver: unknown value ", Quoted(name));
  return name;
}

absl::StatusOr<PlanChoice> ReadChoice(const json& object) {
  DEEPPCR_RETURN_IF_ERROR(CheckMembers(
      object, {"solver", "shooting_interval", "initial_guess", "warm_sweeps", "jacobian_refresh"}));
  PlanChoice choice;
  DEEPPCR_ASSIGN_OR_RETURN(choice.solver, SolverName(object));
  if (!FindSolver(choice.solver)->iterative)
    return InvalidArgument("solver: expected an iterative one, got ", Quoted(choice.solver));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t interval,
                           Integer(object, "shooting_interval", 1, int64_t{1} << 20));
  DEEPPCR_ASSIGN_OR_RETURN(choice.initial_guess, NamedValue(object, "initial_guess", kGuesses));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t sweeps, Integer(object, "warm_sweeps", 0, 64));
  DEEPPCR_ASSIGN_OR_RETURN(choice.jacobian_refresh,
                           NamedValue(object, "jacobian_refresh", kRefreshes));
  choice.shooting_interval = static_cast<int32_t>(interval);
  choice.warm_sweeps = static_cast<int32_t>(sweeps);
  return choice;
}

// Reads the ways back, which a plan that was made without backward passes, or by an earlier build,
// does not have.
absl::Status ReadWays(const json& object, PlanEntry* entry) {
  if (!object.is_object() || !object.contains("ways")) return absl::OkStatus();
  const json& ways = object.at("ways");
  DEEPPCR_RETURN_IF_ERROR(CheckMembers(ways, {"way", "sequential_seconds", "parallel_seconds"}));
  PlanWays read;
  DEEPPCR_ASSIGN_OR_RETURN(read.way, NamedValue(ways, "way", kWays));
  DEEPPCR_ASSIGN_OR_RETURN(read.sequential_seconds, Number(ways, "sequential_seconds"));
  DEEPPCR_ASSIGN_OR_RETURN(read.parallel_seconds, Number(ways, "parallel_seconds"));
  entry->ways = read;
  return absl::OkStatus();
}

absl::StatusOr<PlanEntry> ReadEntry(const json& object) {
  DEEPPCR_RETURN_IF_ERROR(CheckMembers(
      object, {"max_samples", "solver", "parallel", "sequential_seconds", "parallel_seconds",
               "parallel_iterations", "parallel_error", "parallel_stages", "ways"}));
  PlanEntry entry;
  DEEPPCR_RETURN_IF_ERROR(ReadWays(object, &entry));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t samples, Integer(object, "max_samples", 1, 4096));
  entry.max_samples = static_cast<int32_t>(samples);
  DEEPPCR_ASSIGN_OR_RETURN(entry.solver, SolverName(object));
  DEEPPCR_ASSIGN_OR_RETURN(const json* parallel, JsonMember(object, "parallel"));
  DEEPPCR_ASSIGN_OR_RETURN(entry.parallel, ReadChoice(*parallel));
  DEEPPCR_ASSIGN_OR_RETURN(entry.sequential_seconds, Number(object, "sequential_seconds"));
  DEEPPCR_ASSIGN_OR_RETURN(entry.parallel_seconds, Number(object, "parallel_seconds"));
  DEEPPCR_ASSIGN_OR_RETURN(entry.parallel_iterations, Number(object, "parallel_iterations"));
  DEEPPCR_ASSIGN_OR_RETURN(entry.parallel_error, Number(object, "parallel_error"));
  DEEPPCR_ASSIGN_OR_RETURN(entry.parallel_stages, Integer(object, "parallel_stages", 0, kMaxCount));
  if (entry.solver != "sequential" && entry.solver != entry.parallel.solver)
    return InvalidArgument("solver: expected sequential or the parallel choice, got ",
                           Quoted(entry.solver));
  return entry;
}

absl::Status ReadEntries(const json& root, Plan* plan) {
  DEEPPCR_ASSIGN_OR_RETURN(const json* entries, ArrayMember(root, "entries", kMaxPlanEntries));
  for (const json& object : *entries) {
    DEEPPCR_ASSIGN_OR_RETURN(PlanEntry entry, ReadEntry(object));
    if (!plan->entries.empty() && entry.max_samples <= plan->entries.back().max_samples)
      return InvalidArgument("entries: expected ascending max_samples");
    plan->entries.push_back(std::move(entry));
  }
  if (plan->entries.empty()) return InvalidArgument("entries: expected at least one");
  return absl::OkStatus();
}

absl::Status ReadChoices(const json& root, Plan* plan) {
  DEEPPCR_ASSIGN_OR_RETURN(const json* choices, ArrayMember(root, "choices", kMaxPlanChoices));
  for (const json& object : *choices) {
    DEEPPCR_ASSIGN_OR_RETURN(PlanChoice choice, ReadChoice(object));
    if (plan->ChoiceOf(choice.solver) != nullptr)
      return InvalidArgument("choices: expected one for ", choice.solver, ", got two");
    plan->choices.push_back(std::move(choice));
  }
  return absl::OkStatus();
}

absl::Status ReadHashes(const json& object, PlanKey* key) {
  DEEPPCR_ASSIGN_OR_RETURN(key->weights_sha256, TextMember(object, "weights_sha256"));
  DEEPPCR_ASSIGN_OR_RETURN(key->config_sha256, TextMember(object, "config_sha256"));
  DEEPPCR_ASSIGN_OR_RETURN(key->scheduler_sha256, TextMember(object, "scheduler_sha256"));
  DEEPPCR_ASSIGN_OR_RETURN(key->calibration_sha256, TextMember(object, "calibration_sha256"));
  return absl::OkStatus();
}

}  // namespace

json ChoiceToJson(const PlanChoice& c) {
  return {{"solver", c.solver},
          {"shooting_interval", c.shooting_interval},
          {"initial_guess", std::string(ToString(c.initial_guess))},
          {"warm_sweeps", c.warm_sweeps},
          {"jacobian_refresh", std::string(ToString(c.jacobian_refresh))}};
}

json PlanToJson(const Plan& plan) {
  json root = {{"least_rtol", plan.least_rtol},
               {"measured_seconds", plan.measured_seconds},
               {"choices", json::array()},
               {"entries", json::array()}};
  for (const PlanChoice& choice : plan.choices) root["choices"].push_back(ChoiceToJson(choice));
  for (const PlanEntry& entry : plan.entries) root["entries"].push_back(EntryToJson(entry));
  return root;
}

absl::StatusOr<Plan> PlanFromJson(const json& object) {
  DEEPPCR_RETURN_IF_ERROR(
      CheckMembers(object, {"least_rtol", "measured_seconds", "choices", "entries"}));
  Plan plan;
  DEEPPCR_ASSIGN_OR_RETURN(plan.least_rtol, Number(object, "least_rtol"));
  DEEPPCR_ASSIGN_OR_RETURN(plan.measured_seconds, Number(object, "measured_seconds"));
  DEEPPCR_RETURN_IF_ERROR(ReadChoices(object, &plan));
  DEEPPCR_RETURN_IF_ERROR(ReadEntries(object, &plan));
  return plan;
}

json KeyToJson(const PlanKey& key) {
  return {{"backend", key.backend},
          {"build", key.build},
          {"calibration_sha256", key.calibration_sha256},
          {"config_sha256", key.config_sha256},
          {"device", key.device_bits},
          {"iterative", key.iterative},
          {"min_shooting_interval", key.min_shooting_interval},
          {"num_steps", key.num_steps},
          {"rtol", key.rtol},
          {"scheduler_sha256", key.scheduler_sha256},
          {"weights_sha256", key.weights_sha256}};
}

absl::StatusOr<PlanKey> KeyFromJson(const json& object) {
  DEEPPCR_RETURN_IF_ERROR(CheckMembers(
      object,
      {"backend", "build", "calibration_sha256", "config_sha256", "device", "iterative",
       "min_shooting_interval", "num_steps", "rtol", "scheduler_sha256", "weights_sha256"}));
  PlanKey key;
  DEEPPCR_ASSIGN_OR_RETURN(key.backend, TextMember(object, "backend"));
  DEEPPCR_ASSIGN_OR_RETURN(key.build, TextMember(object, "build"));
  DEEPPCR_ASSIGN_OR_RETURN(key.device_bits, TextMember(object, "device"));
  DEEPPCR_RETURN_IF_ERROR(ReadHashes(object, &key));
  DEEPPCR_ASSIGN_OR_RETURN(const json* iterative, JsonMember(object, "iterative"));
  DEEPPCR_ASSIGN_OR_RETURN(key.iterative, JsonBool(*iterative, "iterative"));
  DEEPPCR_ASSIGN_OR_RETURN(key.min_shooting_interval,
                           Integer(object, "min_shooting_interval", 1, kMaxCount));
  DEEPPCR_ASSIGN_OR_RETURN(key.num_steps, Integer(object, "num_steps", 1, kMaxCount));
  DEEPPCR_ASSIGN_OR_RETURN(key.rtol, Number(object, "rtol"));
  return key;
}

absl::StatusOr<std::string> TextMember(const json& object, std::string_view field) {
  DEEPPCR_ASSIGN_OR_RETURN(const json* member, JsonMember(object, field));
  DEEPPCR_ASSIGN_OR_RETURN(std::string text, JsonString(*member, field));
  if (text.size() > kMaxText)
    return InvalidArgument(field, ": expected at most ", kMaxText, " bytes, got ", text.size());
  return text;
}

absl::StatusOr<const json*> ArrayMember(const json& object, std::string_view field, size_t most) {
  DEEPPCR_ASSIGN_OR_RETURN(const json* member, JsonMember(object, field));
  if (!member->is_array())
    return InvalidArgument(field, ": expected an array, got ", DescribeJson(*member));
  if (member->size() > most)
    return InvalidArgument(field, ": expected at most ", most, " elements, got ", member->size());
  return member;
}

}  // namespace deeppcr
