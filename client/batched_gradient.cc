// SPDX-License-Identifier: Apache-2.0
#include "client/batched_gradient.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "client/batching.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

// The most bytes that the reports of a sample take in a reply.
constexpr double kReportsBytes = 320;

struct NamedRows {
  std::string_view name;
  const Array* rows;  // may be null
  v1::Tensor* (v1::GradientRequest::*field)();
};

// The arrays of a task that go into a request as they are.
std::vector<NamedRows> RowsOf(const GradientTask& task) {
  using Request = v1::GradientRequest;
  const Array* previous = task.generation != nullptr ? task.generation->previous : task.previous;
  return {{"inputs", task.inputs, &Request::mutable_inputs},
          {"previous trajectory", previous, &Request::mutable_initial_states},
          {"trajectory", task.trajectory, &Request::mutable_trajectory},
          {"cotangents", task.cotangents, &Request::mutable_cotangents},
          {"final_state_cotangents", task.final_state_cotangents,
           &Request::mutable_final_state_cotangents},
          {"targets", task.targets, &Request::mutable_targets}};
}

absl::Status CheckKept(const GradientTask& task, const BatchedGradientOptions& options) {
  if (task.kept.empty()) return absl::OkStatus();
  if (task.trajectory != nullptr || task.loss != v1::LOSS_UNSPECIFIED || task.estimate_error ||
      options.batch_size > 0 || options.solver.return_trajectory())
    return InvalidArgument(
        "kept: expected no trajectory, loss, estimate of the error, batch size or return of "
        "trajectories beside them");
  int64_t sum = 0;
  for (const KeptStates& each : task.kept) sum += each.num_samples;
  if (sum == task.num_samples()) return absl::OkStatus();
  return InvalidArgument("kept: expected states of ", task.num_samples(), " samples, got those of ",
                         sum);
}

absl::Status CheckTask(const v1::GetModelResponse& model, const GradientTask& task,
                       const BatchedGradientOptions& options) {
  if ((task.inputs != nullptr) == (task.generation != nullptr))
    return InvalidArgument("task: expected either inputs or a generation");
  const int64_t n = task.num_samples();
  if (n < 1) return InvalidArgument("task: expected at least one sample, got ", n);
  for (const NamedRows& each : RowsOf(task)) {
    if (each.rows == nullptr) continue;
    if (each.rows->shape.empty() || each.rows->rows() != n)
      return InvalidArgument(each.name, ": expected a row for each of ", n, " samples, got shape ",
                             ShapeToString(each.rows->shape));
  }
  if (!task.target_classes.empty() && std::ssize(task.target_classes) != n)
    return InvalidArgument("target_classes: expected ", n, ", one per sample, got ",
                           task.target_classes.size());
  DEEPPCR_RETURN_IF_ERROR(CheckKept(task, options));
  return CheckBatchSize(options.batch_size, model);
}

// The extent of the cotangents of a sample, 0 if there is none.
int64_t ColumnsOf(const GradientTask& task) {
  for (const Array* each : {task.cotangents, task.final_state_cotangents}) {
    if (each != nullptr && each->shape.size() == 3) return each->shape[1];
  }
  return 0;
}

bool Wants(const GradientTask& task, const v1::GetModelResponse& model, v1::GradientBy by) {
  const auto& wanted = task.gradients;
  if (!wanted.empty() || task.parameters)
    return std::find(wanted.begin(), wanted.end(), by) != wanted.end();
  return by == (model.input_dim() > 0 ? v1::GRADIENT_BY_INPUTS : v1::GRADIENT_BY_INITIAL_STATE);
}

// A kind of gradient: the shape of one, and where replies and results have it.
struct Kind {
  v1::GradientBy by;
  std::string_view name;
  std::vector<int64_t> shape;
  const v1::Tensor& (v1::GradientResponse::*field)() const;
  Array BatchedGradientResult::*result;
};
std::vector<Kind> KindsOf(const v1::GetModelResponse& model, int64_t steps) {
  using Reply = v1::GradientResponse;
  using Result = BatchedGradientResult;
  const int64_t dim = SampleDim(model);
  return {{v1::GRADIENT_BY_INPUTS,
           "input_gradients",
           {model.input_dim()},
           &Reply::input_gradients,
           &Result::by_inputs},
          {v1::GRADIENT_BY_INITIAL_STATE,
           "initial_state_gradients",
           {dim},
           &Reply::initial_state_gradients,
           &Result::by_initial_state},
          {v1::GRADIENT_BY_STEP_NOISE,
           "step_noise_gradients",
           {steps, dim},
           &Reply::step_noise_gradients,
           &Result::by_step_noise}};
}

// The samples of a request for which request and reply each fit a message.
int64_t LargestTask(const v1::GetModelResponse& model, const GradientTask& task, int64_t steps,
                    bool with_trajectory) {
  // Computed in double, since the product of dimensions from the server might overflow int64_t.
  const auto width = static_cast<double>(model.summary().state_dim());
  const double states = (static_cast<double>(steps) + 1) * width;
  double asked = 0;
  for (const NamedRows& each : RowsOf(task))
    asked += each.rows == nullptr ? 0 : static_cast<double>(each.rows->row_size());
  if (const Generation* generation = task.generation; generation != nullptr) {
    asked += static_cast<double>(model.input_dim());
    if (generation->initial_noise != nullptr) asked += width;
    if (generation->step_noise != nullptr) asked += states;
  }
  const auto columns = static_cast<double>(std::max<int64_t>(ColumnsOf(task), 1));
  double answered = static_cast<double>(model.output_dim()) + width;
  if (with_trajectory) answered += states;
  for (const Kind& kind : KindsOf(model, steps)) {
    if (!Wants(task, model, kind.by)) continue;
    double size = columns;
    for (const int64_t extent : kind.shape) size *= static_cast<double>(extent);
    answered += size;
  }
  return FittingBatch(4 * std::max(asked, answered) + kReportsBytes, model.max_batch_size());
}

// Fills in samples [begin, begin + count).
void FillRows(const GradientTask& task, int64_t begin, int64_t count,
              v1::GradientRequest* request) {
  for (const NamedRows& each : RowsOf(task)) {
    if (each.rows != nullptr) RowsToTensor(*each.rows, begin, count, (request->*each.field)());
  }
  if (task.generation != nullptr)
    FillGenerationInput(*task.generation, begin, count, request->mutable_generation());
  request->clear_target_classes();
  if (task.target_classes.empty()) return;
  const auto first = task.target_classes.begin() + begin;
  request->mutable_target_classes()->Add(first, first + count);
}

absl::Status Collect(const v1::GradientResponse& reply, const v1::GetModelResponse& model,
                     const GradientTask& task, int64_t count, int64_t steps, bool with_trajectory,
                     bool solved, BatchedGradientResult* result) {
  const int64_t columns = ColumnsOf(task);
  for (const Kind& kind : KindsOf(model, steps)) {
    if (!Wants(task, model, kind.by)) continue;
    std::vector<int64_t> shape = {count};
    if (columns > 0) shape.push_back(columns);
    shape.insert(shape.end(), kind.shape.begin(), kind.shape.end());
    DEEPPCR_RETURN_IF_ERROR(
        CollectRows((reply.*kind.field)(), shape, kind.name, &(result->*kind.result)));
  }
  if (reply.backward().samples_size() != count)
    return Internal("bad reply: expected ", count, " reports of the way back, got ",
                    reply.backward().samples_size());
  const int64_t losses = task.loss == v1::LOSS_UNSPECIFIED ? 0 : count;
  if (reply.losses_size() != losses)
    return Internal("bad reply: expected ", losses, " losses, got ", reply.losses_size());
  result->losses.insert(result->losses.end(), reply.losses().begin(), reply.losses().end());
  result->reports.push_back(reply.report());
  result->backward_reports.push_back(reply.backward());
  if (!solved) return absl::OkStatus();
  DEEPPCR_RETURN_IF_ERROR(CheckReportCount(reply.report(), count));
  if (with_trajectory) {
    DEEPPCR_RETURN_IF_ERROR(CollectRows(reply.trajectory(),
                                        {count, steps + 1, model.summary().state_dim()},
                                        "trajectory", &result->trajectory));
  }
  // Of kept states some may be solved again: their outputs would be those of a part.
  if (!task.kept.empty()) return absl::OkStatus();
  return CollectRows(reply.outputs(), {count, model.output_dim()}, "outputs", &result->outputs);
}

absl::StatusOr<v1::GradientResponse> Send(const Client& client, const v1::GradientRequest& request,
                                          const GradientTask& task,
                                          const BatchedGradientOptions& options,
                                          BatchedGradientResult* result) {
  if (!task.parameters) return client.Gradient(request, options.deadline);
  ParameterCollector collector;
  DEEPPCR_ASSIGN_OR_RETURN(
      v1::GradientResponse reply,
      client.StreamGradient(
          request, [&](const v1::ParameterPiece& piece) { return collector.Add(piece); },
          options.deadline));
  DEEPPCR_ASSIGN_OR_RETURN(std::vector<NamedArray> tensors, collector.Take());
  DEEPPCR_RETURN_IF_ERROR(AddParameters(std::move(tensors), &result->parameters));
  return reply;
}

// Goes back along states that the server keeps, or solves again where it keeps them no more.
absl::StatusOr<v1::GradientResponse> SendKept(const Client& client, const KeptStates& kept,
                                              const GradientTask& task,
                                              const BatchedGradientOptions& options,
                                              v1::GradientRequest* request,
                                              BatchedGradientResult* result) {
  request->clear_options();
  request->set_trajectory_handle(kept.handle);
  if (!kept.handle.empty()) {
    absl::StatusOr<v1::GradientResponse> reply = Send(client, *request, task, options, result);
    const bool gone = absl::IsNotFound(reply.status()) &&
                      ToStd(reply.status().message()).starts_with("trajectory_handle");
    if (!gone) return reply;
  }
  request->clear_trajectory_handle();
  *request->mutable_options() = options.solver;
  result->solved_again += kept.num_samples;
  return Send(client, *request, task, options, result);
}

}  // namespace

absl::StatusOr<BatchedGradientResult> BatchedGradient(const Client& client,
                                                      const v1::GetModelResponse& model,
                                                      const GradientTask& task,
                                                      const BatchedGradientOptions& options) {
  DEEPPCR_RETURN_IF_ERROR(CheckTask(model, task, options));
  int64_t steps = model.summary().num_layers();
  if (task.generation != nullptr) {
    DEEPPCR_ASSIGN_OR_RETURN(steps,
                             ResolveInferenceSteps(model, task.generation->num_inference_steps));
    DEEPPCR_ASSIGN_OR_RETURN(steps, StepsMade(*task.generation, steps));
  }
  const bool with_trajectory = options.solver.return_trajectory() && task.trajectory == nullptr;
  const int64_t batch = options.batch_size > 0 ? options.batch_size
                                               : LargestTask(model, task, steps, with_trajectory);
  v1::GradientRequest request;
  request.set_model(model.summary().name());
  request.set_version(model.summary().version());
  if (task.trajectory == nullptr) *request.mutable_options() = options.solver;
  request.set_loss(task.loss);
  request.set_way(task.way);
  request.set_estimate_error(task.estimate_error);
  request.set_shooting_interval(task.shooting_interval);
  for (const v1::GradientBy by : task.gradients) request.add_gradients(by);
  BatchedGradientResult result;
  const int64_t n = task.num_samples();
  size_t index = 0;
  for (int64_t begin = 0, count = 0; begin < n; begin += count, ++index) {
    const bool kept = !task.kept.empty();
    count = kept ? task.kept[index].num_samples : std::min(batch, n - begin);
    FillRows(task, begin, count, &request);
    DEEPPCR_ASSIGN_OR_RETURN(
        const v1::GradientResponse reply,
        kept ? SendKept(client, task.kept[index], task, options, &request, &result)
             : Send(client, request, task, options, &result));
    const bool solved = task.trajectory == nullptr && request.trajectory_handle().empty();
    DEEPPCR_RETURN_IF_ERROR(
        Collect(reply, model, task, count, steps, with_trajectory, solved, &result));
    if (options.done != nullptr) options.done->fetch_add(count);
  }
  return result;
}

}  // namespace deeppcr
