// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_TIME_EMBEDDING_H_
#define DEEPPCR_KERNELS_MODEL_TIME_EMBEDDING_H_

// Time embedding of a denoiser, as in DiT (Peebles and Xie 2023) and MAR (Li et al. 2024): a small
// network on a sinusoidal embedding, in double because it is computed only once, at load.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/cancel_token.h"
#include "kernels/problem/spec.h"

namespace deeppcr {

// y = second(silu(first(e))), e the embedding of the timestep.
struct TimeMlp {
  DenseSpec first;   // [H, E], E even
  DenseSpec second;  // [H, H]
};

// [E/2]: f_j = 10000^(-j / (E/2)). E is even.
std::vector<double> EmbeddingFrequencies(int64_t embedding_dim);

// [E]: cos(t f_j) for j < E/2, then sin(t f_j). E is even.
std::vector<double> SinusoidalEmbedding(double timestep, int64_t embedding_dim);

// y of every step, [L, H]. Each row depends on its timestep alone, to the last bit. Thread-safe.
// Errors: kInvalidArgument naming the timestep whose y is not finite as float32; kCancelled if the
// token, which may be null, has fired.
absl::StatusOr<std::vector<double>> EmbedTimesteps(const TimeMlp& mlp,
                                                   std::span<const ReverseStep> steps,
                                                   const CancelToken* token = nullptr);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_TIME_EMBEDDING_H_
