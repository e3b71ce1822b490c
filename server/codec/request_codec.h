// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CODEC_REQUEST_CODEC_H_
#define DEEPPCR_SERVER_CODEC_REQUEST_CODEC_H_

// Untrusted messages -> views and options. Every check on what a client sends is here; what passes
// may be handed to the engine as it is. Errors are kInvalidArgument and name the field, what was
// expected and what came.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deeppcr/v1/deeppcr.pb.h"
#include "kernels/engine.h"
#include "server/codec/tensor_codec.h"

namespace deeppcr {

// Inputs up to this size are checked for NaN and infinity in the handler, larger ones on a worker.
inline constexpr int64_t kInlineCheckBytes = int64_t{1} << 20;
inline constexpr int kMaxRequestIdBytes = 128;
inline constexpr int kMaxCompareRows = 16;
inline constexpr int kMaxRepetitions = 100;
inline constexpr int kDefaultRepetitions = 5;
// Bound on n * repetitions * rows of a Compare.
inline constexpr int64_t kMaxComparedSamples = int64_t{1} << 16;

// The decoded request of Forward, Generate or Compare.
struct SolveInput {
  // The message that holds the fields of a generation, for errors: input or generation; empty for a
  // dense stack. Static storage.
  std::string_view source;
  int64_t num_samples = 0;
  TensorInput inputs;          // [n, input_dim]
  TensorInput initial_states;  // [n, L + 1, D] or empty
  // For diffusion models only, up to step_noise.
  uint64_t seed = 0;
  uint64_t first_sample = 0;
  std::vector<int32_t> labels;            // [n] or empty
  TensorInput initial_noise, step_noise;  // [n, D], [n, L, D], or empty
  int64_t num_steps = 0;                  // L

  SolveOptions options;       // solver points into SolverNames(); Compare: only num_inference_steps
  int64_t request_bytes = 0;  // in memory, fields we do not know included
  int64_t reply_bytes = 0;    // upper bound

  // The inputs, with nothing to write to, as views of this object and the message.
  RunItem Item() const;
};

struct CompareInput {
  SolveInput request;
  std::vector<SolveOptions>
      rows;  // as asked; if none of them is sequential, a sequential one is put first
  bool sequential_added = false;  // the first row is not part of the reply
  int repetitions = 0;
};

// Checks the fields that every request on a model has.
absl::Status CheckModelFields(std::string_view model, int64_t version);
// `field`: the protocol's name for the id.
absl::Status CheckRequestId(std::string_view field, std::string_view request_id);

// Checks all but the finiteness of values.
// Errors: kInvalidArgument; kResourceExhausted if the reply would exceed max_message_bytes.
absl::StatusOr<SolveInput> DecodeForward(const v1::ForwardRequest& request, const ModelInfo& info,
                                         int64_t max_message_bytes);
absl::StatusOr<SolveInput> DecodeGenerate(const v1::GenerateRequest& request, const ModelInfo& info,
                                          int64_t max_message_bytes);
absl::StatusOr<CompareInput> DecodeCompare(const v1::CompareRequest& request, const ModelInfo& info,
                                           int64_t max_message_bytes);

// Returns "source.name".
std::string FieldOf(const SolveInput& input, std::string_view name);

// Checks every tensor of the input.
absl::Status CheckFinite(const SolveInput& input);
}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CODEC_REQUEST_CODEC_H_
