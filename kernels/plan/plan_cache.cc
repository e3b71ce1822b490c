// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/plan_cache.h"

#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/sha256.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/solver/registry.h"

namespace deeppcr {
namespace {

using nlohmann::json;

constexpr int64_t kMaxPlanBytes = int64_t{4} << 20;
constexpr int64_t kMaxCount = int64_t{1} << 40;

constexpr std::array kGuesses = {InitialGuess::kConstant, InitialGuess::kCoarse,
                                 InitialGuess::kCalibrated};
constexpr std::array kRefreshes = {JacobianRefresh::kEveryIteration,
                                   JacobianRefresh::kWhileContracting};

json ChoiceToJson(const PlanChoice& c) {
  return {{"solver", c.solver},
          {"shooting_interval", c.shooting_interval},
          {"initial_guess", std::string(ToString(c.initial_guess))},
          {"warm_sweeps", c.warm_sweeps},
          {"jacobian_refresh", std::string(ToString(c.jacobian_refresh))}};
}

json EntryToJson(const PlanEntry& e) {
  return {{"max_samples", e.max_samples},           {"solver", e.solver},
          {"parallel", ChoiceToJson(e.parallel)},   {"sequential_seconds", e.sequential_seconds},
          {"parallel_seconds", e.parallel_seconds}, {"parallel_iterations", e.parallel_iterations},
          {"parallel_error", e.parallel_error},     {"parallel_stages", e.parallel_stages}};
}

// The value whose name stands in the field.
template <class T, size_t N>
absl::StatusOr<T> NamedValue(const json& object, std::string_view field,
                             const std::array<T, N>& values) {
  DEEPPCR_ASSIGN_OR_RETURN(const json* member, JsonMember(object, field));
  DEEPPCR_ASSIGN_OR_RETURN(const std::string name, JsonString(*member, field));
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
  return value;
}

absl::StatusOr<std::string> Text(const json& object, std::string_view field) {
  DEEPPCR_ASSIGN_OR_RETURN(const json* member, JsonMember(object, field));
  return JsonString(*member, field);
}

absl::StatusOr<std::string> SolverName(const json& object) {
  DEEPPCR_ASSIGN_OR_RETURN(std::string name, Text(object, "solver"));
  if (FindSolver(name) == nullptr) return InvalidArgument("solver: unknown value ", Quoted(name));
  return name;
}

absl::StatusOr<const json*> Array(const json& object, std::string_view field) {
  DEEPPCR_ASSIGN_OR_RETURN(const json* member, JsonMember(object, field));
  if (!member->is_array())
    return InvalidArgument(field, ": expected an array, got ", DescribeJson(*member));
  return member;
}

absl::StatusOr<PlanChoice> ReadChoice(const json& object) {
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

absl::StatusOr<PlanEntry> ReadEntry(const json& object) {
  PlanEntry entry;
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
  DEEPPCR_ASSIGN_OR_RETURN(const json* entries, Array(root, "entries"));
  for (const json& object : *entries) {
    DEEPPCR_ASSIGN_OR_RETURN(PlanEntry entry, ReadEntry(object));
    if (!plan->entries.empty() && entry.max_samples <= plan->entries.back().max_samples)
      return InvalidArgument("entries: expected ascending max_samples");
    plan->entries.push_back(std::move(entry));
  }
  if (plan->entries.empty()) return InvalidArgument("entries: expected at least one");
  return absl::OkStatus();
}

absl::Status ReadLists(const json& root, Plan* plan) {
  DEEPPCR_ASSIGN_OR_RETURN(const json* choices, Array(root, "choices"));
  for (const json& object : *choices) {
    DEEPPCR_ASSIGN_OR_RETURN(PlanChoice choice, ReadChoice(object));
    plan->choices.push_back(std::move(choice));
  }
  DEEPPCR_ASSIGN_OR_RETURN(const json* candidates, Array(root, "candidates"));
  for (const json& line : *candidates) {
    DEEPPCR_ASSIGN_OR_RETURN(std::string text, JsonString(line, "candidates"));
    plan->candidates.push_back(std::move(text));
  }
  return absl::OkStatus();
}

std::string KeyText(const PlanKey& key) {
  return StrCat(key.device, "\n", key.build, "\n", key.weights_sha256, "\n", key.config_json, "\n",
                key.scheduler_json, "\n", key.num_steps, "\n", key.calibration_sha256, "\n",
                key.min_shooting_interval, "\n", key.iterative, "\n", key.num_threads, "\n",
                std::bit_cast<uint64_t>(key.rtol));  // as text it would lose digits
}

}  // namespace

absl::StatusOr<std::string> PlanId(const PlanKey& key, const Plan& plan) {
  std::string text = KeyText(key);
  for (const PlanChoice& choice : plan.choices) text += ChoiceToJson(choice).dump();
  for (const PlanEntry& e : plan.entries)
    text += StrCat(e.max_samples, e.solver, ChoiceToJson(e.parallel).dump());
  DEEPPCR_ASSIGN_OR_RETURN(const std::string digest, Sha256Hex(text));
  return digest.substr(0, 16);
}

std::string WritePlan(const Plan& plan) {
  json root = {{"id", plan.id},
               {"device", plan.device},
               {"rtol", plan.rtol},
               {"measured_seconds", plan.measured_seconds},
               {"candidates", plan.candidates},
               {"choices", json::array()},
               {"entries", json::array()}};
  for (const PlanChoice& choice : plan.choices) root["choices"].push_back(ChoiceToJson(choice));
  for (const PlanEntry& entry : plan.entries) root["entries"].push_back(EntryToJson(entry));
  return root.dump(2) + "\n";
}

absl::StatusOr<Plan> ReadPlan(std::string_view text) {
  DEEPPCR_ASSIGN_OR_RETURN(const json root, ParseJson(text, {.max_bytes = kMaxPlanBytes}));
  Plan plan;
  DEEPPCR_ASSIGN_OR_RETURN(plan.id, Text(root, "id"));
  DEEPPCR_ASSIGN_OR_RETURN(plan.device, Text(root, "device"));
  DEEPPCR_ASSIGN_OR_RETURN(plan.rtol, Number(root, "rtol"));
  DEEPPCR_ASSIGN_OR_RETURN(plan.measured_seconds, Number(root, "measured_seconds"));
  DEEPPCR_RETURN_IF_ERROR(ReadLists(root, &plan));
  DEEPPCR_RETURN_IF_ERROR(ReadEntries(root, &plan));
  return plan;
}

absl::StatusOr<std::string> PlanCache::PathOf(const PlanKey& key) const {
  DEEPPCR_ASSIGN_OR_RETURN(const std::string digest, Sha256Hex(KeyText(key)));
  return StrCat(directory_, "/plan-", digest.substr(0, 32), ".json");
}

absl::StatusOr<Plan> PlanCache::Load(const PlanKey& key) const {
  if (directory_.empty()) return absl::NotFoundError("plan cache: switched off");
  DEEPPCR_ASSIGN_OR_RETURN(const std::string path, PathOf(key));
  DEEPPCR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxPlanBytes));
  absl::StatusOr<Plan> plan = ReadPlan(text);
  if (!plan.ok()) return InvalidArgument(path, ": ", ToStd(plan.status().message()));
  DEEPPCR_ASSIGN_OR_RETURN(const std::string id, PlanId(key, *plan));
  if (id != plan->id)
    return InvalidArgument(path, ": id: expected ", id, ", got ", Quoted(plan->id));
  plan->from_cache = true;
  return plan;
}

absl::Status PlanCache::Save(const PlanKey& key, const Plan& plan) const {
  if (directory_.empty()) return absl::OkStatus();
  DEEPPCR_ASSIGN_OR_RETURN(const std::string path, PathOf(key));
  return WriteFileAtomically(path, WritePlan(plan));
}

}  // namespace deeppcr
