// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/plan_key.h"

#include <nlohmann/json.hpp>

#include "kernels/base/sha256.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/plan/plan_json.h"

namespace deeppcr {

namespace {

// Text of an untrusted value for a message: printable ASCII, and short, as the reader bounds texts.
std::string Shown(const nlohmann::json& value) { return value.dump(-1, ' ', true); }

}  // namespace

std::string MisfitOf(const PlanKey& ours, const PlanKey& theirs) {
  const nlohmann::json expected = KeyToJson(ours), got = KeyToJson(theirs);
  std::string misfit;
  for (const auto& [field, value] : expected.items()) {
    if (field == "build" || got.at(field) == value) continue;
    misfit += StrCat(misfit.empty() ? "" : "; ", field, ": expected ", Shown(value), ", got ",
                     Shown(got.at(field)));
  }
  return misfit;
}

absl::StatusOr<std::string> PlanId(const PlanKey& key, const Plan& plan) {
  nlohmann::json named = {KeyToJson(key), plan.least_rtol};
  for (const PlanChoice& choice : plan.choices) named.push_back(ChoiceToJson(choice));
  for (const PlanEntry& e : plan.entries)
    named.push_back({e.max_samples, e.solver, ChoiceToJson(e.parallel)});
  // A plan without ways keeps the id that it had before there were any.
  for (const PlanEntry& e : plan.entries)
    if (e.ways.has_value()) named.push_back(std::string(ToString(e.ways->way)));
  DEEPPCR_ASSIGN_OR_RETURN(const std::string digest, Sha256Hex(named.dump()));
  return digest.substr(0, 16);
}

}  // namespace deeppcr
