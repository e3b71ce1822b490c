// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PLAN_PLAN_H_
#define DEEPPCR_KERNELS_PLAN_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/solver/backward_item.h"
#include "kernels/solver/options.h"

namespace deeppcr {

// A way to run an iterative solver.
struct PlanChoice {
  std::string solver = "newton";
  int32_t shooting_interval = 1;
  InitialGuess initial_guess = InitialGuess::kConstant;
  int32_t warm_sweeps = 0;
  JacobianRefresh jacobian_refresh = JacobianRefresh::kEveryIteration;

  bool operator==(const PlanChoice&) const = default;
};

// "newton, C = 16, calibrated guess, 2 warm sweeps, Jacobians every_iteration".
std::string Describe(const PlanChoice& choice);

// Ways back of requests for gradients, at one cotangent of each sample.
struct PlanWays {
  BackwardWay way = BackwardWay::kSequential;  // way of `auto`
  // Medians, whole way back of max_samples samples; 0: not measured.
  double sequential_seconds = 0, parallel_seconds = 0;

  bool operator==(const PlanWays&) const = default;
};

// The choice for requests of up to max_samples samples (and more than the entry before).
struct PlanEntry {
  int32_t max_samples = 0;
  std::string solver = "sequential";  // solver of `auto`: sequential, or parallel.solver
  PlanChoice parallel;                // the best parallel configuration that met the tolerance
  double sequential_seconds = 0;   // medians, whole request of max_samples samples; 0: not measured
  double parallel_seconds = 0;     // 0 where it was not measured or no candidate met the tolerance
  double parallel_iterations = 0;  // mean over calibration inputs
  double parallel_error = 0;       // worst true error against sequential over calibration inputs
  int64_t parallel_stages = 0;     // worst
  // Absent where the plan was made without backward passes.
  std::optional<PlanWays> ways;

  bool operator==(const PlanEntry&) const = default;
  // False: no candidate met the tolerance, and the parallel fields mean nothing.
  bool has_parallel() const { return solver != "sequential" || parallel_stages > 0; }
  double seconds() const { return solver == "sequential" ? sequential_seconds : parallel_seconds; }
};

// Origin of a plan.
enum class PlanSource : uint8_t {
  kMeasured,
  kCache,    // --plan_cache_dir
  kFile,     // plan.json beside the weights
  kServing,  // a model with the same weights that was loaded already
  kNearest,  // the plan of another number of steps, rescaled
};
// "measured", "cache", "file", "serving", "nearest".
std::string_view ToString(PlanSource source);

// Use of existing plans at a load.
enum class PlanMode : uint8_t {
  kMeasure,  // measure, whatever plans there are
  kPrefer,   // measure only where no plan fits
  kRequire,  // take the plan of the file, or fail
};

// Plan of a model, made before the model is ready. The id names everything beside the request that
// an answer's bits depend on.
struct Plan {
  std::string id;  // 16 hex digits
  std::string device;
  std::string device_class;  // key of the plan: DeviceClass::Name(), or the bits alone
  std::string build;         // build that made or checked the plan
  PlanSource source = PlanSource::kMeasured;
  double rtol = 1e-4;  // tolerance that the candidates had to meet
  // The smallest rtol that float32 is expected to certify for this model, from the rounding of
  // calibration inputs; `auto` answers requests below it with the sequential solver. 0: not known.
  double least_rtol = 0;
  double measured_seconds = 0;
  // Best choice of each iterative solver that met the tolerance; a request that names the solver
  // takes from it the options that the request leaves out.
  std::vector<PlanChoice> choices;
  std::vector<PlanEntry>
      entries;  // ascending max_samples; the last one is the model's max_batch_size
  std::vector<std::string> candidates;  // one line each, for reading

  // The entry for a request of num_samples samples. Entries must not be empty.
  const PlanEntry& Lookup(int64_t num_samples) const;
  // Choice of this solver, or null.
  const PlanChoice* ChoiceOf(std::string_view solver) const;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PLAN_PLAN_H_
