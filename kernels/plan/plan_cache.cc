// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/plan_cache.h"

#include <nlohmann/json.hpp>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/sha256.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/plan/plan_json.h"

namespace deeppcr {
namespace {

using nlohmann::json;

// The id guards against edits and against files under another's name.
absl::StatusOr<Plan> ReadCached(std::string_view text, const PlanKey& wanted) {
  DEEPPCR_ASSIGN_OR_RETURN(const json root, ParseJson(text, {.max_bytes = kMaxPlanBytes}));
  DEEPPCR_RETURN_IF_ERROR(CheckMembers(root, {"id", "key", "plan"}));
  DEEPPCR_ASSIGN_OR_RETURN(const json* key_object, JsonMember(root, "key"));
  DEEPPCR_ASSIGN_OR_RETURN(const PlanKey key, KeyFromJson(*key_object));
  DEEPPCR_ASSIGN_OR_RETURN(const json* plan_object, JsonMember(root, "plan"));
  DEEPPCR_ASSIGN_OR_RETURN(Plan plan, PlanFromJson(*plan_object));
  DEEPPCR_ASSIGN_OR_RETURN(plan.id, TextMember(root, "id"));
  if (const std::string misfit = MisfitOf(wanted, key); !misfit.empty())
    return InvalidArgument(misfit);
  DEEPPCR_ASSIGN_OR_RETURN(const std::string id, PlanId(key, plan));
  if (id != plan.id) return InvalidArgument("id: expected ", id, ", got ", Quoted(plan.id));
  plan.build = key.build;
  return plan;
}

}  // namespace

absl::StatusOr<std::string> PlanCache::PathOf(const PlanKey& key) const {
  json named = {key.device_class, KeyToJson(key)};
  named[1].erase("build");
  DEEPPCR_ASSIGN_OR_RETURN(const std::string digest, Sha256Hex(named.dump()));
  return StrCat(directory_, "/plan-", digest.substr(0, 32), ".json");
}

absl::StatusOr<Plan> PlanCache::Load(const PlanKey& key) const {
  if (directory_.empty()) return absl::NotFoundError("plan cache: switched off");
  DEEPPCR_ASSIGN_OR_RETURN(const std::string path, PathOf(key));
  DEEPPCR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxPlanBytes));
  absl::StatusOr<Plan> plan = ReadCached(text, key);
  if (!plan.ok()) return WithContext(plan.status(), path);
  plan->device_class = key.device_class;
  plan->source = PlanSource::kCache;
  return plan;
}

absl::Status PlanCache::Save(const PlanKey& key, const Plan& plan) const {
  if (directory_.empty()) return absl::OkStatus();
  DEEPPCR_ASSIGN_OR_RETURN(const std::string path, PathOf(key));
  const json root = {{"id", plan.id}, {"key", KeyToJson(key)}, {"plan", PlanToJson(plan)}};
  return WriteFileAtomically(path, root.dump(2) + "\n");
}

}  // namespace deeppcr
