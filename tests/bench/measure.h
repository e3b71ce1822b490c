// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_BENCH_MEASURE_H_
#define DEEPPCR_TESTS_BENCH_MEASURE_H_

// Timing and checking of whole LoadedSystem::Run calls with host buffers, for the benchmarks.

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/engine.h"

namespace deeppcr::bench {

// Ties this process to one core: `core`, or the last one that it may use if `core` is -1. Returns
// the core.
absl::StatusOr<int> PinToCore(int core);

// One way to answer the requests of a workload.
struct Candidate {
  std::string name;
  ResolvedOptions options;
};

// A diffusion model has no inputs: for i < kDrawnSamples sample i is drawn from the noise of
// (kSeed, i).
inline constexpr uint64_t kSeed = 2024;
inline constexpr int64_t kDrawnSamples = 64;

// Sends the same inputs through any candidate, n samples at a time. Not thread-safe.
class Workload {
 public:
  // `inputs` [count, input_dim] belongs to the caller; count >= n. Empty for a diffusion model.
  Workload(std::shared_ptr<const LoadedModel> model, std::span<const float> inputs, int64_t n);

  const LoadedModel& model() const { return *model_; }
  int64_t samples() const { return n_; }
  // The number of batches of n inputs without overlap.
  int64_t num_batches() const;

  // Runs batch `index` (modulo num_batches). The results stay until the next call.
  absl::Status Run(const ResolvedOptions& options, int64_t index, bool trajectory);
  // Runs batch `index` without a trajectory, and returns the wall seconds of the Run call.
  absl::StatusOr<double> Time(const ResolvedOptions& options, int64_t index);

  std::span<const float> outputs() const { return outputs_; }         // [n, output_dim]
  std::span<const float> trajectory() const { return trajectory_; }   // [n, L + 1, D]
  std::span<const SampleReport> reports() const { return reports_; }  // [n]

 private:
  RunItem Item(int64_t index, bool trajectory);

  std::shared_ptr<const LoadedModel> model_;
  std::shared_ptr<const LoadedSystem> system_;
  std::span<const float> inputs_;
  int64_t n_;
  int64_t input_dim_;
  std::vector<float> outputs_, trajectory_;
  std::vector<SampleReport> reports_;
};

// Times candidates in turns. In its turn a candidate runs once untimed, which fills the caches
// again, and then up to kTimedRuns times timed. A candidate with `seconds` of timed runs is done. A
// first run that takes longer than `seconds` counts as timed, and the turn ends. A candidate whose
// entry in `skip` is set does not run at all. Returns the seconds of every timed run, by candidate;
// at least one for each candidate that runs.
inline constexpr int kTimedRuns = 5;
absl::StatusOr<std::vector<std::vector<double>>> TimeInTurns(Workload* workload,
                                                             std::span<const Candidate> candidates,
                                                             double seconds,
                                                             const std::vector<bool>& skip = {});

// The findings about a candidate, over all samples judged.
struct Verdict {
  double max_state_error = 0;  // max over samples and steps of |z - z_seq| / |z_seq|, max norms
  double max_output_difference = 0;  // relative to the largest output of the sample
  int64_t samples = 0;
  int64_t converged = 0;
  int64_t fallbacks = 0;
  int64_t same_largest = 0;  // samples whose largest output is at the same place
  double mean_iterations = 0;
  double mean_chord_corrections = 0;
  int64_t max_stages = 0;
  double mean_column_passes = 0;
};

// The states [L + 1, D] and outputs that one sample should have.
struct Expected {
  std::vector<float> trajectory;
  std::vector<float> outputs;
};

// Runs the candidate on the first expected.size() inputs (a multiple of n) and compares sample by
// sample. A sample that differs is counted, and is not an error.
absl::StatusOr<Verdict> Judge(Workload* workload, const ResolvedOptions& options,
                              std::span<const Expected> expected);

// States and outputs of the first `count` inputs by the sequential solver of `model`: one by one,
// or in one batch for a diffusion model.
absl::StatusOr<std::vector<Expected>> SequentialAnswers(std::shared_ptr<const LoadedModel> model,
                                                        std::span<const float> inputs,
                                                        int64_t count);
// States and outputs by the reference backend, in double precision, which shares no arithmetic with
// other backends.
absl::StatusOr<std::vector<Expected>> ReferenceAnswers(const std::string& directory,
                                                       std::span<const float> inputs,
                                                       int64_t count);
// The noise [count, (L + 1) D] that a diffusion model draws for its first `count` samples: z_0,
// then the noise of each step.
std::vector<float> DrawnNoise(const ModelInfo& info, int64_t count);

// The larger of state error and output difference between two sets of answers.
double LargestDifference(std::span<const Expected> got, std::span<const Expected> expected,
                         const ModelInfo& info);

// Options and findings as JSON.
nlohmann::ordered_json ToJson(const Candidate& candidate, const Verdict& verdict);

}  // namespace deeppcr::bench

#endif  // DEEPPCR_TESTS_BENCH_MEASURE_H_
