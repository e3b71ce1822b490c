// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PLAN_PLAN_FILE_H_
#define DEEPPCR_KERNELS_PLAN_PLAN_FILE_H_

// plan.json: the plans of one model, by device class, that travel with its weights.
//   {"format": "deeppcr-plan-1",
//    "devices": {"cpu-avx2 l1d=32K l2=512K l3=32M": [{"key": {...}, "plan": {...}}, ...],
//                "cpu-avx2": [...]}}
// A device class has one plan per number of steps. A plan under the bits alone is for every device
// of these bits that has no plan of its own.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/plan/plan.h"
#include "kernels/plan/plan_key.h"

namespace deeppcr {

inline constexpr std::string_view kPlanFileName = "plan.json";

struct KeyedPlan {
  PlanKey key;
  Plan plan;
};

class PlanFile {
 public:
  // The text is untrusted. Errors: kInvalidArgument naming the device class, the plan's place and
  // the field; kResourceExhausted beyond 1 MiB.
  static absl::StatusOr<PlanFile> Parse(std::string_view text);

  // Keeps a plan under the device class that it was made for, or under the bits if it came so.
  void Add(const PlanKey& key, const Plan& plan);
  std::string Text() const;

  // Plan of the key's device class and number of steps, or the plan of the key's bits alone where
  // the former does not fit the rest of the key; null if there is neither. If neither fits, the
  // former.
  const KeyedPlan* Find(const PlanKey& key) const;
  // Device classes with the numbers of steps that they have plans for, for a message.
  std::string Contents() const;

  const std::map<std::string, std::vector<KeyedPlan>>& devices() const { return devices_; }

 private:
  std::map<std::string, std::vector<KeyedPlan>> devices_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PLAN_PLAN_FILE_H_
