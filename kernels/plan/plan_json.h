// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PLAN_PLAN_JSON_H_
#define DEEPPCR_KERNELS_PLAN_PLAN_JSON_H_

// Plans and their keys as JSON, and back. The readers trust nothing: a file may have been damaged,
// edited, or written by somebody else. A field that is missing, unknown, of another type or out of
// range is an error that names it. Errors: kInvalidArgument.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/plan/plan.h"
#include "kernels/plan/plan_key.h"

namespace deeppcr {

inline constexpr int64_t kMaxPlanBytes = int64_t{1} << 20;
inline constexpr size_t kMaxPlanEntries = 64;
inline constexpr size_t kMaxPlanChoices = 16;

// Content of a plan, without its origin and without the members that are for reading only.
nlohmann::json PlanToJson(const Plan& plan);
absl::StatusOr<Plan> PlanFromJson(const nlohmann::json& object);

nlohmann::json ChoiceToJson(const PlanChoice& choice);

// Members of a key but the device class.
nlohmann::json KeyToJson(const PlanKey& key);
absl::StatusOr<PlanKey> KeyFromJson(const nlohmann::json& object);

// A member that is a text of at most 256 bytes.
absl::StatusOr<std::string> TextMember(const nlohmann::json& object, std::string_view field);
// A member that is an array of at most `most` elements.
absl::StatusOr<const nlohmann::json*> ArrayMember(const nlohmann::json& object,
                                                  std::string_view field, size_t most);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PLAN_PLAN_JSON_H_
