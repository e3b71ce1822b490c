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
#include "client/kept_states.h"

namespace deeppcr {

// A request for n samples of a diffusion model, numbered from first_sample on. Arrays may be null.
struct Generation {
  int64_t num_samples = 1;
  uint64_t seed = 0;
  uint64_t first_sample = 0;
  int64_t num_inference_steps = 0;       // K; 0: the model's default
  std::vector<int32_t> class_labels;     // [n], or empty for a model without classes
  const Array* conditioning = nullptr;   // [n, input_dim], for a model conditioned on vectors
  const Array* initial_noise = nullptr;  // [n, D]
  const Array* step_noise = nullptr;     // [n, K, D]
  const Array* previous = nullptr;       // [n, K + 1, D] for INITIAL_GUESS_PREVIOUS
  // Fields of the message that are the same for all samples: guidance_scale, temperatures,
  // noise_clip, first_step k (K is then K - k in all shapes), known elements with values [1, ..],
  // bounds. Others are not looked at.
  v1::GenerationInput controls = {};
  const Array* null_conditioning = nullptr;  // [n, input_dim]
  const Array* initial_samples = nullptr;    // [n, D], with first_step
};

// The progress of a generation.
struct GenerationProgress {
  int64_t done = 0;            // samples received
  int64_t in_request = 0;      // samples of the request under way
  int64_t num_samples = 0;     // samples of all requests
  v1::GenerateProgress solve;  // the latest progress of the request under way
};

struct BatchedGenerateOptions {
  v1::SolverOptions solver = {};
  int64_t batch_size = 0;        // samples per request; 0: as many as fit
  absl::Duration deadline = {};  // for each request; zero: the client's
  // Called at the start of each request and at each progress message. If empty, requests are not
  // streamed.
  std::function<void(const GenerationProgress&)> on_progress = {};
};

struct BatchedGenerateResult {
  Array samples;                         // [n, output_dim]
  Array latents;                         // [n, D]; without shape if the model has no decoder
  Array trajectory;                      // [n, K + 1, D], or without shape if not asked for
  std::vector<int32_t> class_labels;     // [n], the requested classes; empty without classes
  std::vector<v1::SolveReport> reports;  // one per request, in order
  std::vector<KeptStates> kept;          // as many, if the solver options keep trajectories
};

// Draws any number of samples, in as many requests as it takes, one after the other. A sample
// depends on the seed and its number alone, so every split gives the same noise.
// model: the description by GetModel.
// Errors: the error of the first failed request; kInvalidArgument if the generation does not fit
// the model; kInternal for replies that do not match their request.
absl::StatusOr<BatchedGenerateResult> BatchedGenerate(const Client& client,
                                                      const v1::GetModelResponse& model,
                                                      const Generation& generation,
                                                      const BatchedGenerateOptions& options);

// K of a generation: `steps`, or the model's default for 0. Errors: kInvalidArgument for a model
// that draws no samples, or has no such number of steps.
absl::StatusOr<int64_t> ResolveInferenceSteps(const v1::GetModelResponse& model, int64_t steps);

// The steps that are made of `num_inference_steps`: first_step of the controls less. Errors:
// kInvalidArgument.
absl::StatusOr<int64_t> StepsMade(const Generation& generation, int64_t num_inference_steps);

// The most samples per request of K steps for which request and reply stay within 12 MiB each, at
// most the model's max_batch_size and at least 1.
int64_t LargestGeneration(const v1::GetModelResponse& model, const Generation& generation,
                          int64_t num_inference_steps, bool with_trajectory);

// Fills in samples [begin, begin + count) of a generation. Preconditions: the generation has these
// samples, and fits the model.
void FillGenerationInput(const Generation& generation, int64_t begin, int64_t count,
                         v1::GenerationInput* input);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_BATCHED_GENERATE_H_
