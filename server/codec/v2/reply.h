// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CODEC_V2_REPLY_H_
#define DEEPPCR_SERVER_CODEC_V2_REPLY_H_

#include <span>
#include <string_view>

#include "deeppcr/v1/deeppcr.pb.h"
#include "inference/grpc_service.pb.h"
#include "server/codec/v2/request.h"
#include "server/schedule/batcher.h"

namespace deeppcr {

// The output tensors of a solve; the engine writes into them.
struct V2Tensors {
  v1::Tensor values, latents, trajectory, by_inputs, by_initial_noise, by_step_noise;
  v1::Tensor losses;  // whose data are doubles
};

// Moves from `tensors`. The report's sums over samples become parameters: solver (several, if they
// differ), converged (all of them), fallbacks (how many), iterations and dependent_stages (the
// largest), and fields that all samples share. error_estimate (the largest) is left out unless
// every sample has one; attempt_solver and attempt_termination are there if a sample fell back.
void FillV2Reply(const ServedModel& model, std::string_view id, std::span<const V2Output> outputs,
                 const v1::SolveReport& report, V2Tensors* tensors,
                 inference::ModelInferResponse* reply);
// Adds the parameters of a way back: way, way_interval, way_seconds, way_stages (the largest of a
// sample), way_termination (of the first sample, or of the first that overflowed) and, if every
// sample has one, gradient_error_estimate (the largest).
void FillV2WayBack(const v1::BackwardReport& report, inference::ModelInferResponse* reply);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CODEC_V2_REPLY_H_
