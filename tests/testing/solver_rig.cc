// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/solver_rig.h"

#include <algorithm>
#include <cstring>

#include "kernels/solver/registry.h"

namespace deeppcr::testing {
namespace {

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

bool Solved::SameAnswers(const Solved& other) const {
  return SameBits(outputs, other.outputs) && SameBits(trajectory, other.trajectory);
}

SolverRig::SolverRig(std::unique_ptr<Backend> backend, const SystemSpec& spec, int num_threads,
                     int64_t min_shooting_interval, const PackingLimits& packing)
    : backend_(std::move(backend)),
      system_(*backend_->NewSystem(spec, packing)),
      pool_(std::make_unique<ThreadPool>(num_threads)) {
  runner_ = *Runner::Create(*system_, ShapeOf(spec),
                            {.min_shooting_interval = min_shooting_interval}, pool_.get(), 1);
}

Solved SolverRig::Solve(const ResolvedOptions& options, const std::vector<float>& inputs) const {
  const SystemShape& shape = runner_->shape();
  return Solve(options,
               SampleInputs{.num_samples = static_cast<int64_t>(inputs.size()) / shape.input_dim,
                            .inputs = inputs});
}

Solved SolverRig::Solve(const ResolvedOptions& options, const SampleInputs& samples,
                        const CancelToken* token) const {
  const SystemShape& shape = runner_->shape();
  const int64_t n = samples.num_samples;
  Solved solved{.outputs = std::vector<float>(n * shape.output_dim),
                .trajectory = std::vector<float>(n * (shape.num_steps + 1) * shape.state_dim),
                .reports = std::vector<SampleReport>(n)};
  RunItem item{.samples = samples,
               .outputs = solved.outputs,
               .trajectory = solved.trajectory,
               .reports = solved.reports,
               .token = token};
  if (!runner_->Run(options, {&item, 1}, nullptr).ok()) solved.reports.clear();
  return solved;
}

ResolvedOptions OptionsFor(std::string_view solver, int64_t num_steps, int64_t shooting_interval,
                           double rtol) {
  const SolverRow* row = FindSolver(solver);
  if (!row->iterative) return {.solver = row->name};
  const int64_t most = row->max_shooting_interval > 0 ? row->max_shooting_interval : num_steps;
  const int64_t interval = std::min({shooting_interval, most, num_steps});
  return {
      .solver = row->name,
      .rtol = rtol,
      .atol = 1e-6,
      .max_iterations = static_cast<int32_t>(std::min<int64_t>((num_steps - 1) / interval + 1, 32)),
      .shooting_interval = static_cast<int32_t>(interval)};
}

void LimitIterations(std::mt19937_64 random, ResolvedOptions* options) {
  random.discard(1000);
  constexpr int32_t kLimits[] = {1, 2, 3, 4, 6};
  if (options->solver == "newton" && random() % 3 == 0)
    options->max_iterations = std::min(options->max_iterations, kLimits[random() % 5]);
}

}  // namespace deeppcr::testing
