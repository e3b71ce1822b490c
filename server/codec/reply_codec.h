// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CODEC_REPLY_CODEC_H_
#define DEEPPCR_SERVER_CODEC_REPLY_CODEC_H_

// Results -> messages.

#include <span>
#include <string_view>
#include <vector>

#include "deeppcr/v1/deeppcr.pb.h"
#include "kernels/engine.h"
#include "server/codec/solve_input.h"
#include "server/models/model_store.h"
#include "server/schedule/batcher.h"

namespace deeppcr {

// Shapes `tensor`, gives it zeros, and returns them for the engine to write into.
std::span<float> AllocateTensor(std::span<const int64_t> shape, v1::Tensor* tensor);
// The same for the trajectories of an input's samples.
std::span<float> AllocateTrajectory(const ModelInfo& info, const SolveInput& input,
                                    v1::Tensor* tensor);

// Fills the report of a job that was computed.
void FillSolveReport(const Job& job, std::span<const SampleReport> samples,
                     const JobTimings& timings, v1::SolveReport* report);

void FillProgress(const SolveProgress& progress, int64_t num_steps, v1::GenerateProgress* message);

// plan: that of the system that ran the comparison.
void FillCompare(const Plan& plan, const CompareInput& input, std::span<const ComparisonRow> rows,
                 v1::CompareResponse* response);

void FillSummary(const ModelStatus& status, v1::ModelSummary* summary);
void FillModel(const ModelStatus& status, v1::GetModelResponse* response);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CODEC_REPLY_CODEC_H_
