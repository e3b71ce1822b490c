// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PLAN_PLAN_CACHE_H_
#define DEEPPCR_KERNELS_PLAN_PLAN_CACHE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/plan/plan.h"

namespace deeppcr {

// Everything that a plan is valid for. Two equal keys may share a plan; any difference calls for a
// new one.
struct PlanKey {
  std::string device;
  std::string build;  // of this program
  std::string weights_sha256;
  std::string config_json;
  std::string scheduler_json;      // of a diffusion model
  int64_t num_steps = 0;           // L
  std::string calibration_sha256;  // of the inputs that the guess was fitted on
  int64_t min_shooting_interval = 1;
  bool iterative = true;
  int num_threads = 1;
  double rtol = 1e-4;
};

// The id of a plan: 16 hex digits over the key and over every choice, but not over the measured
// times.
absl::StatusOr<std::string> PlanId(const PlanKey& key, const Plan& plan);

// A plan as JSON text, and back. The reader checks every field: the file may have been damaged or
// edited. Errors of ReadPlan: kInvalidArgument naming the field.
std::string WritePlan(const Plan& plan);
absl::StatusOr<Plan> ReadPlan(std::string_view json);

// Plans as files of a directory, one per key, replaced atomically. Thread-safe.
class PlanCache {
 public:
  // An empty directory name switches the cache off.
  explicit PlanCache(std::string directory) : directory_(std::move(directory)) {}

  // Errors: kNotFound; kInvalidArgument for a damaged file, naming it.
  absl::StatusOr<Plan> Load(const PlanKey& key) const;
  absl::Status Save(const PlanKey& key, const Plan& plan) const;

 private:
  absl::StatusOr<std::string> PathOf(const PlanKey& key) const;
  std::string directory_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PLAN_PLAN_CACHE_H_
