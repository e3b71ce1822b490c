// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CODEC_REQUEST_CODEC_H_
#define DEEPPCR_SERVER_CODEC_REQUEST_CODEC_H_

// Untrusted messages -> views and options. Every check on what a client sends is here; what passes
// may be handed to the engine as it is. Errors are kInvalidArgument and name the field, what was
// expected and what came.

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deeppcr/v1/deeppcr.pb.h"
#include "kernels/engine.h"
#include "server/codec/solve_input.h"

namespace deeppcr {

// Inputs up to this size are checked for NaN and infinity in the handler, larger ones on a worker.
inline constexpr int64_t kInlineCheckBytes = int64_t{1} << 20;
// The most noise and inputs that a handler makes itself: numbers that are drawn take far longer
// than numbers that are looked at.
inline constexpr int64_t kInlineMadeBytes = int64_t{1} << 14;
inline constexpr int kMaxRequestIdBytes = 128;
inline constexpr int kMaxCompareRows = 16;
inline constexpr int kMaxRepetitions = 100;
inline constexpr int kDefaultRepetitions = 5;
// Bound on n * repetitions * rows of a Compare.
inline constexpr int64_t kMaxComparedSamples = int64_t{1} << 16;

// Checks the fields that every request on a model has.
absl::Status CheckModelFields(std::string_view model, int64_t version);
// `field`: the protocol's name for the id.
absl::Status CheckRequestId(std::string_view field, std::string_view request_id);

// Decodes a request, and checks all but the finiteness of values. Errors name fields by `names`:
// kInvalidArgument; kResourceExhausted if the reply would exceed max_message_bytes.
absl::StatusOr<SolveInput> DecodeForward(const v1::ForwardRequest& request, const ModelInfo& info,
                                         int64_t max_message_bytes,
                                         const FieldNames& names = kV1Fields);
absl::StatusOr<SolveInput> DecodeGenerate(const v1::GenerateRequest& request, const ModelInfo& info,
                                          int64_t max_message_bytes,
                                          const FieldNames& names = kV1Fields);
// The part of the request that is solved; see gradient_codec.h.
absl::StatusOr<SolveInput> DecodeGradientSolve(const v1::GradientRequest& request,
                                               const ModelInfo& info, int64_t max_message_bytes,
                                               const FieldNames& names);
absl::StatusOr<CompareInput> DecodeCompare(const v1::CompareRequest& request, const ModelInfo& info,
                                           int64_t max_message_bytes);

// The status of LoadedModel::Prepare about a request that wanted this system, whose names of fields
// are these.
absl::Status AboutSteps(const FieldNames& names, const SystemKey& wanted,
                        const absl::Status& status);

// Checks every tensor of the input.
absl::Status CheckFinite(const SolveInput& input);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CODEC_REQUEST_CODEC_H_
