// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PLAN_PLAN_FILE_H_
#define DEEPPCR_KERNELS_PLAN_PLAN_FILE_H_

// plan.json: the plans of one model, by device class, that travel with its weights.
//   {"format": "deeppcr-plan-1",
//    "devices": {"cpu-avx2 l1d=32K l2=512K l3=32M": [{"key": {...}, "plan": {...}}, ...],
//                "cpu-avx2": [...]}}
// A device class has one plan per number of steps. One that is named by its bits alone is for every
// device of these bits that has no plan of its own.

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

  // A plan that was made for this device class is kept by it, or by the bits if it came so.
  void Add(const PlanKey& key, const Plan& plan);
  std::string Text() const;

  // The plan of the key's device class and number of steps, or of its bits alone where that one
  // does not fit the rest of the key; null if there is neither. If neither fits, the first.
  const KeyedPlan* Find(const PlanKey& key) const;
  // The device classes and for what steps they have plans, for a message.
  std::string Contents() const;

  const std::map<std::string, std::vector<KeyedPlan>>& devices() const { return devices_; }

 private:
  std::map<std::string, std::vector<KeyedPlan>> devices_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PLAN_PLAN_FILE_H_
