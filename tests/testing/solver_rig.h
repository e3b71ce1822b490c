// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_SOLVER_RIG_H_
#define DEEPPCR_TESTS_TESTING_SOLVER_RIG_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend/backend.h"
#include "kernels/base/thread_pool.h"
#include "kernels/solver/options.h"
#include "kernels/solver/runner.h"

namespace deeppcr::testing {

// Every backend that can run here: the CPU backend once per instruction set, once more with step
// programs in place of named stacks, and the reference, which is the last. A program linked with
// cuda_cases.cc has the cuda backend in place of the CPU's.
struct BackendCase {
  std::string name;
  std::unique_ptr<Backend> (*create)();
  int64_t max_steps = INT64_MAX;  // deeper systems would take too long
};
const std::vector<BackendCase>& BackendCases();
// The one that users get here: the CPU's newest instruction set, or cuda.
std::unique_ptr<Backend> NewBackendOfUsers();

// The result of a run.
struct Solved {
  std::vector<float> outputs;     // [n, output_dim]
  std::vector<float> trajectory;  // [n, L + 1, D]
  std::vector<SampleReport> reports;

  // True if outputs and trajectories are equal bit for bit.
  bool SameAnswers(const Solved& other) const;
};

// A system on a backend with a runner, ready to use. A failed setup aborts the test program.
class SolverRig {
 public:
  SolverRig(std::unique_ptr<Backend> backend, const SystemSpec& spec, int num_threads = 1,
            int64_t min_shooting_interval = 1, const PackingLimits& packing = {});

  const Runner& runner() const { return *runner_; }
  System& system() { return *system_; }
  Solved Solve(const ResolvedOptions& options, const std::vector<float>& inputs) const;
  Solved Solve(const ResolvedOptions& options, const SampleInputs& samples,
               const CancelToken* token = nullptr) const;

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<System> system_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Runner> runner_;
};

// Options of a solver with C steps per interval, the constant guess, and max_iterations = min(P,
// 32).
ResolvedOptions OptionsFor(std::string_view solver, int64_t num_steps, int64_t shooting_interval,
                           double rtol);

// Lets a third of Newton's solves iterate a few times only: the last iteration's claim is made
// whatever its update, from matrices of states that are farther away than those of other claims.
// Takes a copy of the generator, so that what is drawn after this stays as it was.
void LimitIterations(std::mt19937_64 random, ResolvedOptions* options);

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_SOLVER_RIG_H_
