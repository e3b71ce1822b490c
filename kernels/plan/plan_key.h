// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PLAN_PLAN_KEY_H_
#define DEEPPCR_KERNELS_PLAN_PLAN_KEY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/plan/plan.h"

namespace deeppcr {

// Key of a plan: everything that its validity depends on. The number of threads is no part of the
// key, as no bit depends on it.
struct PlanKey {
  std::string device_class;  // DeviceClass::Name()
  std::string device_bits;   // DeviceClass::bits
  std::string backend;
  std::string build;  // version, and a hash of the sources that decide bits
  std::string weights_sha256;
  std::string config_sha256;
  std::string scheduler_sha256;    // empty: the family has none
  std::string calibration_sha256;  // empty: the model brings no inputs
  int64_t num_steps = 0;           // L
  int64_t min_shooting_interval = 1;
  bool iterative = true;
  double rtol = 1e-4;

  bool operator==(const PlanKey&) const = default;
};

// Differences between our key and the key of a plan, field by field, with the expected and the
// found value; empty if there are none. Neither the build, which has rules of its own, nor the
// device class, which chose the plan, is compared.
std::string MisfitOf(const PlanKey& ours, const PlanKey& theirs);

// The id of a plan: 16 hex digits over the key and over every choice, but not over measured times,
// nor over the properties of the device that only speed depends on.
absl::StatusOr<std::string> PlanId(const PlanKey& key, const Plan& plan);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PLAN_PLAN_KEY_H_
