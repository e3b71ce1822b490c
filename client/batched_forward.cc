// SPDX-License-Identifier: Apache-2.0
#include "client/batched_forward.h"

#include <algorithm>

#include "client/batching.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

absl::Status CheckInputs(const v1::GetModelResponse& model, const Array& inputs,
                         const BatchedForwardOptions& options) {
  const int64_t n = inputs.shape.empty() ? 0 : inputs.rows();
  if (n < 1) return InvalidArgument("inputs: expected at least one row, got none");
  DEEPPCR_RETURN_IF_ERROR(CheckShape(inputs, {n, model.input_dim()}, "inputs"));
  DEEPPCR_RETURN_IF_ERROR(CheckBatchSize(options.batch_size, model));
  if (options.previous == nullptr) return absl::OkStatus();
  const v1::ModelSummary& summary = model.summary();
  return CheckShape(*options.previous, {n, summary.num_layers() + 1, summary.state_dim()},
                    "previous trajectory");
}

}  // namespace

int64_t LargestBatch(const v1::GetModelResponse& model, bool with_trajectory) {
  const v1::ModelSummary& summary = model.summary();
  // Computed in double, since the product of dimensions from the server might overflow int64_t.
  const double states = with_trajectory ? (static_cast<double>(summary.num_layers()) + 1) *
                                              static_cast<double>(summary.state_dim())
                                        : 0;
  const double bytes =
      4 * std::max(states + static_cast<double>(model.input_dim() + model.output_dim()), 1.0);
  return FittingBatch(bytes, model.max_batch_size());
}

absl::StatusOr<BatchedForwardResult> BatchedForward(const Client& client,
                                                    const v1::GetModelResponse& model,
                                                    const Array& inputs,
                                                    const BatchedForwardOptions& options) {
  DEEPPCR_RETURN_IF_ERROR(CheckInputs(model, inputs, options));
  const bool states = options.solver.return_trajectory() || options.previous != nullptr;
  const int64_t batch = options.batch_size > 0 ? options.batch_size : LargestBatch(model, states);
  const v1::ModelSummary& summary = model.summary();
  v1::ForwardRequest request;
  request.set_model(model.summary().name());
  request.set_version(model.summary().version());
  *request.mutable_options() = options.solver;
  BatchedForwardResult result;
  for (int64_t begin = 0; begin < inputs.rows(); begin += batch) {
    const int64_t count = std::min(batch, inputs.rows() - begin);
    RowsToTensor(inputs, begin, count, request.mutable_inputs());
    if (options.previous != nullptr) {
      RowsToTensor(*options.previous, begin, count, request.mutable_initial_states());
    }
    DEEPPCR_ASSIGN_OR_RETURN(const v1::ForwardResponse reply,
                             client.Forward(request, options.deadline));
    DEEPPCR_RETURN_IF_ERROR(
        CollectRows(reply.outputs(), {count, model.output_dim()}, "outputs", &result.outputs));
    if (options.solver.return_trajectory()) {
      DEEPPCR_RETURN_IF_ERROR(CollectRows(reply.trajectory(),
                                          {count, summary.num_layers() + 1, summary.state_dim()},
                                          "trajectory", &result.trajectory));
    }
    DEEPPCR_RETURN_IF_ERROR(CheckReportCount(reply.report(), count));
    result.reports.push_back(reply.report());
    if (options.solver.keep_trajectory()) result.kept.push_back({reply.trajectory_handle(), count});
    if (options.done != nullptr) options.done->fetch_add(count);
  }
  return result;
}

}  // namespace deeppcr
