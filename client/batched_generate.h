// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_BATCHED_GENERATE_H_
#define DEEPPCR_CLIENT_BATCHED_GENERATE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/array.h"
#include "client/client.h"

namespace deeppcr {

// What a diffusion model is asked for: n samples, numbered from first_sample on. Arrays may be
// null.
struct Generation {
  int64_t num_samples = 1;
  uint64_t seed = 0;
  uint64_t first_sample = 0;
  int64_t num_inference_steps = 0;       // K; 0: the model's default
  std::vector<int32_t> class_labels;     // [n], or empty for a model without classes
  const Array* conditioning = nullptr;   // [n, input_dim] for a model that is conditioned on it
  const Array* initial_noise = nullptr;  // [n, D]
  const Array* step_noise = nullptr;     // [n, K, D]
  const Array* previous = nullptr;       // [n, K + 1, D] for INITIAL_GUESS_PREVIOUS
};

// How far a generation has come.
struct GenerationProgress {
  int64_t done = 0;            // samples that are here
  int64_t in_request = 0;      // samples under way
  int64_t num_samples = 0;     // of all requests
  v1::GenerateProgress solve;  // the latest word of the request under way
};

struct BatchedGenerateOptions {
  v1::SolverOptions solver = {};
  int64_t batch_size = 0;        // samples per request; 0: as many as fit
  absl::Duration deadline = {};  // of each request; zero: the client's
  // Called as requests begin and whenever the server tells how far it is. While unset, requests are
  // not streamed.
  std::function<void(const GenerationProgress&)> on_progress = {};
};

struct BatchedGenerateResult {
  Array samples;                         // [n, output_dim]
  Array latents;                         // [n, D]; without shape if the model has no decoder
  Array trajectory;                      // [n, K + 1, D], or without shape if not asked for
  std::vector<int32_t> class_labels;     // [n], or empty: those asked for
  std::vector<v1::SolveReport> reports;  // one per request, in order
};

// Draws any number of samples, in as many requests as it takes, one after the other. A sample
// depends on the seed and its number alone, so every split gives the same noise.
// `model` as GetModel described it.
// Errors: of the first request that fails; kInvalidArgument for what does not fit the model;
// kInternal for replies that do not match their request.
absl::StatusOr<BatchedGenerateResult> BatchedGenerate(const Client& client,
                                                      const v1::GetModelResponse& model,
                                                      const Generation& generation,
                                                      const BatchedGenerateOptions& options);

// K of a generation: its own, or the model's default. Errors: kInvalidArgument for a model that
// draws no samples, or was not loaded for this number.
absl::StatusOr<int64_t> ResolveInferenceSteps(const v1::GetModelResponse& model, int64_t steps);

// The largest request of K steps that keeps request and reply below 12 MiB and within the model's
// max_batch_size.
int64_t LargestGeneration(const v1::GetModelResponse& model, const Generation& generation,
                          int64_t num_inference_steps, bool with_trajectory);

// Fills in samples [begin, begin + count) of a generation. Preconditions: they are among its
// samples, and it fits the model.
void FillGenerationInput(const Generation& generation, int64_t begin, int64_t count,
                         v1::GenerationInput* input);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_BATCHED_GENERATE_H_
