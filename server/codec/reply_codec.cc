// SPDX-License-Identifier: Apache-2.0
#include "server/codec/reply_codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>

namespace deeppcr {
namespace {

// Fills the fields that the reports of an answer and of a failed attempt share. The field of a
// figure that was not found stays unset: its default would read as the best there is.
template <typename From, typename To>
void FillSolve(const From& from, To* to) {
  to->set_solver(std::string(from.solver));
  to->set_termination(std::string(ToString(from.termination)));
  to->set_iterations(from.iterations);
  to->set_chord_corrections(from.chord_corrections);
  to->set_confirmations(from.confirmations);
  to->set_warm_sweeps(from.warm_sweeps);
  if (from.update.has_value()) to->set_update(*from.update);
  if (from.error_estimate.has_value()) to->set_error_estimate(*from.error_estimate);
  if (from.rounding_estimate.has_value()) to->set_rounding_estimate(*from.rounding_estimate);
}

void FillSample(const SampleReport& from, v1::SampleReport* to) {
  FillSolve(from, to);
  to->set_converged(from.converged);
  to->set_fallback(from.fallback);
  to->set_dependent_stages(from.dependent_stages);
  to->set_column_passes(from.column_passes);
  if (from.output_error_estimate.has_value())
    to->set_output_error_estimate(*from.output_error_estimate);
  if (from.fallback) FillSolve(from.attempt, to->mutable_attempt());
}

// The q-quantile of ascending values: the smallest one that at least a share q does not exceed.
double Quantile(const std::vector<double>& ascending, double q) {
  if (ascending.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(ascending.size())));
  return ascending[std::clamp<size_t>(rank, 1, ascending.size()) - 1];
}

void CopyTensor(std::span<const float> values, std::span<const int64_t> shape, v1::Tensor* tensor) {
  tensor->mutable_shape()->Add(shape.begin(), shape.end());
  tensor->set_data(values.data(), values.size_bytes());
}

using TerminationCounts = google::protobuf::RepeatedPtrField<v1::TerminationCount>;

void Count(Termination termination, TerminationCounts* counts) {
  const std::string_view name = ToString(termination);
  auto found = std::find_if(counts->begin(), counts->end(),
                            [&](const auto& each) { return each.termination() == name; });
  if (found == counts->end()) {
    counts->Add()->set_termination(std::string(name));
    found = counts->end() - 1;
  }
  found->set_samples(found->samples() + 1);
}

void FillReasons(std::span<const SampleReport> reports, v1::CompareRow* row) {
  for (const SampleReport& report : reports) {
    if (report.fallback) Count(report.attempt.termination, row->mutable_fallback_reasons());
    if (!report.converged) Count(report.termination, row->mutable_unconverged_reasons());
  }
}

// Sets the largest estimate only if all samples have one: otherwise it would say nothing.
void FillEstimate(std::span<const SampleReport> reports, v1::CompareRow* row) {
  std::optional<double> largest;
  for (const SampleReport& report : reports) {
    if (!report.error_estimate.has_value()) return;
    largest = std::max(largest.value_or(0), *report.error_estimate);
  }
  if (largest.has_value()) row->set_error_estimate(*largest);
}

void FillReports(std::span<const SampleReport> reports, v1::CompareRow* row) {
  row->set_converged(true);
  for (const SampleReport& report : reports) {
    row->set_max_iterations(std::max<double>(row->max_iterations(), report.iterations));
    row->set_dependent_stages(std::max(row->dependent_stages(), report.dependent_stages));
    row->set_converged(row->converged() && report.converged);
    row->set_fallbacks(row->fallbacks() + (report.fallback ? 1 : 0));
    row->set_warm_sweeps(std::max(row->warm_sweeps(), report.warm_sweeps));
    row->set_chord_corrections(std::max(row->chord_corrections(), report.chord_corrections));
  }
}

void FillRow(const ComparisonRow& from, int64_t num_samples, double sequential_median,
             v1::CompareRow* row) {
  if (!from.error.empty()) {
    row->set_error(from.error);
    return;
  }
  row->set_solver(from.solver);
  row->set_repetitions(static_cast<int32_t>(from.seconds.size()));
  row->set_median_seconds(Quantile(from.seconds, 0.5));
  row->set_min_seconds(Quantile(from.seconds, 0));
  row->set_p99_seconds(Quantile(from.seconds, 0.99));
  if (row->median_seconds() > 0) row->set_speedup(sequential_median / row->median_seconds());
  FillReports(from.reports, row);
  FillReasons(from.reports, row);
  FillEstimate(from.reports, row);
  row->set_max_state_error(from.max_state_error);
  row->set_max_output_difference(from.max_output_difference);
  row->set_shooting_interval(from.shooting_interval);
  const int64_t size = static_cast<int64_t>(from.outputs.size());
  CopyTensor(from.outputs, std::vector<int64_t>{num_samples, size / num_samples},
             row->mutable_outputs());
}

void FillEntry(const PlanEntry& from, v1::PlanEntry* to) {
  to->set_max_samples(from.max_samples);
  to->set_solver(from.solver);
  if (from.seconds() > 0) to->set_seconds(from.seconds());
  if (from.sequential_seconds > 0) to->set_sequential_seconds(from.sequential_seconds);
  if (from.ways.has_value()) {
    to->set_way(std::string(ToString(from.ways->way)));
    if (from.ways->sequential_seconds > 0)
      to->set_sequential_way_seconds(from.ways->sequential_seconds);
    if (from.ways->parallel_seconds > 0) to->set_parallel_way_seconds(from.ways->parallel_seconds);
  }
  if (!from.has_parallel()) return;
  to->set_shooting_interval(from.parallel.shooting_interval);
  to->set_initial_guess(std::string(ToString(from.parallel.initial_guess)));
  to->set_warm_sweeps(from.parallel.warm_sweeps);
  to->set_jacobian_refresh(std::string(ToString(from.parallel.jacobian_refresh)));
  if (from.parallel_seconds > 0) to->set_parallel_seconds(from.parallel_seconds);
  to->set_parallel_iterations(from.parallel_iterations);
  to->set_parallel_error(from.parallel_error);
  to->set_parallel_stages(from.parallel_stages);
}

// Fills in the options that a request which names only this solver resolves to.
void FillChoice(const ResolvedOptions& from, bool measured, v1::SolverChoice* to) {
  to->set_solver(std::string(from.solver));
  to->set_measured(measured);
  to->set_shooting_interval(from.shooting_interval);
  to->set_initial_guess(std::string(ToString(from.initial_guess)));
  to->set_warm_sweeps(from.warm_sweeps);
  to->set_jacobian_refresh(std::string(ToString(from.jacobian_refresh)));
  to->set_max_iterations(from.max_iterations);
}

// Adds the choices of the iterative solvers; the sequential one has nothing to choose.
void FillChoices(const LoadedSystem& system, std::span<const std::string> solvers, v1::Plan* to) {
  for (const std::string& solver : solvers) {
    if (solver == "auto") continue;
    const absl::StatusOr<ResolvedOptions> resolved = system.Resolve({.solver = solver}, 1);
    if (!resolved.ok() || resolved->shooting_interval == 0) continue;
    FillChoice(*resolved, system.plan().ChoiceOf(solver) != nullptr, to->add_choices());
  }
}

// num_steps: a number of steps that the model was loaded for; 0: the default.
void FillPlan(const LoadedModel& model, int64_t num_steps, std::string_view backend, v1::Plan* to) {
  const std::shared_ptr<const LoadedSystem> system = model.Find(num_steps, 1, backend);
  const Plan& from = system->plan();
  to->set_id(from.id);
  to->set_device(from.device);
  to->set_rtol(from.rtol);
  to->set_from_cache(from.source != PlanSource::kMeasured);
  to->set_measured_seconds(from.measured_seconds);
  for (const PlanEntry& entry : from.entries) FillEntry(entry, to->add_entries());
  for (const std::string& candidate : from.candidates) to->add_candidates(candidate);
  FillChoices(*system, model.info().solvers, to);
  to->set_device_class(from.device_class);
  to->set_build(from.build);
  to->set_source(std::string(ToString(from.source)));
  to->set_least_rtol(from.least_rtol);
}

// Fills the plans of the backend that answers as well.
void FillOtherPlans(const LoadedModel& model, v1::GetModelResponse* response) {
  const ModelInfo& info = model.info();
  if (info.other_backend.empty()) return;
  if (!info.generates()) return FillPlan(model, 0, info.other_backend, response->add_other_plans());
  for (const int64_t steps : info.num_inference_steps)
    FillPlan(model, steps, info.other_backend, response->add_other_plans());
}

v1::ModelState StateOf(ModelState state) {
  switch (state) {
    case ModelState::kLoading:
      return v1::MODEL_STATE_LOADING;
    case ModelState::kReady:
      return v1::MODEL_STATE_READY;
    case ModelState::kUnloading:
      return v1::MODEL_STATE_UNLOADING;
    case ModelState::kFailed:
      return v1::MODEL_STATE_FAILED;
  }
  return v1::MODEL_STATE_UNSPECIFIED;
}

}  // namespace

std::span<float> AllocateTensor(std::span<const int64_t> shape, v1::Tensor* tensor) {
  size_t count = 1;
  for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
  tensor->mutable_shape()->Add(shape.begin(), shape.end());
  std::string* data = tensor->mutable_data();
  data->resize(count * sizeof(float));
  // A string's buffer comes from operator new, or lies at a multiple of 8 within the string.
  return {reinterpret_cast<float*>(data->data()), count};
}

std::span<float> AllocateTrajectory(const ModelInfo& info, const SolveInput& input,
                                    v1::Tensor* tensor) {
  return AllocateTensor(std::array{input.num_samples, input.num_steps + 1, info.state_dim}, tensor);
}

void FillSolveReport(const Job& job, std::span<const SampleReport> samples,
                     const JobTimings& timings, v1::SolveReport* report) {
  for (const SampleReport& sample : samples) FillSample(sample, report->add_samples());
  const ResolvedOptions& options = job.options;
  const Plan& plan = job.system->plan();
  report->set_num_steps(options.num_steps);
  report->set_device(plan.device);
  report->set_plan_id(plan.id);
  report->set_model_version(job.model->version);
  report->set_batch_samples(static_cast<int32_t>(timings.batch_samples));
  const RunTimings& stages = timings.run;
  report->set_queue_seconds(timings.queue_seconds);
  report->set_encode_seconds(stages.encode_seconds);
  report->set_solve_seconds(stages.solve_seconds);
  report->set_decode_seconds(stages.decode_seconds);
  report->set_shooting_interval(options.shooting_interval);
  if (options.solver != "sequential") {
    report->set_initial_guess(std::string(ToString(options.initial_guess)));
  }
}

void FillProgress(const SolveProgress& progress, int64_t num_steps, v1::GenerateProgress* message) {
  message->set_sample(static_cast<int32_t>(progress.sample));
  message->set_solver(std::string(progress.solver));
  message->set_iterations(progress.updates);
  message->set_steps(progress.steps);
  message->set_num_steps(num_steps);
  if (progress.update.has_value()) message->set_update(*progress.update);
  if (progress.error_estimate.has_value()) message->set_error_estimate(*progress.error_estimate);
}

void FillCompare(const Plan& plan, const CompareInput& input, std::span<const ComparisonRow> rows,
                 v1::CompareResponse* response) {
  double sequential_median = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (input.rows[i].solver != "sequential" || !rows[i].error.empty()) continue;
    sequential_median = Quantile(rows[i].seconds, 0.5);
    for (const SampleReport& report : rows[i].reports) {
      response->set_sequential_stages(
          std::max(response->sequential_stages(), report.dependent_stages));
    }
    break;
  }
  for (size_t i = input.sequential_added ? 1 : 0; i < rows.size(); ++i) {
    v1::CompareRow* row = response->add_rows();
    row->set_requested_solver(std::string(input.rows[i].solver));
    FillRow(rows[i], input.request.num_samples, sequential_median, row);
  }
  response->set_device(plan.device);
  response->set_plan_id(plan.id);
}

void FillSummary(const ModelStatus& status, v1::ModelSummary* summary) {
  summary->set_name(status.name);
  summary->set_version(status.version);
  summary->set_state(StateOf(status.state));
  summary->set_reason(status.reason);
  if (status.model == nullptr) return;
  const ModelInfo& info = status.model->model->info();
  summary->set_model_type(info.model_type);
  summary->set_num_layers(info.num_layers);
  summary->set_state_dim(info.state_dim);
  summary->set_memory_dim(info.memory_dim);
}

void FillModel(const ModelStatus& status, v1::GetModelResponse* response) {
  FillSummary(status, response->mutable_summary());
  if (status.model == nullptr) return;
  const ModelInfo& info = status.model->model->info();
  response->set_input_dim(info.input_dim);
  response->set_output_dim(info.output_dim);
  response->set_max_batch_size(info.max_batch_size);
  response->set_config_json(info.config_json);
  response->set_memory_bytes(status.model->model->memory_bytes());
  response->set_weights_sha256(info.weights_sha256);
  response->set_backend(info.backend);
  response->set_backend_reason(info.backend_reason);
  response->set_other_backend(info.other_backend);
  for (const std::string& solver : info.solvers) response->add_solvers(solver);
  for (const std::string& label : info.labels) response->add_labels(label);
  const LoadedModel& model = *status.model->model;
  FillPlan(model, 0, info.backend, response->mutable_plan());
  for (const int64_t steps : info.num_inference_steps) {
    response->add_num_inference_steps(steps);
    FillPlan(model, steps, info.backend, response->add_plans());
  }
  FillOtherPlans(model, response);
  response->set_max_inference_steps(info.max_inference_steps);
  response->set_gradients(model.FindForGradients({}, 0, 1)->backward_limits() != nullptr);
  response->set_parameter_gradients(response->gradients() && !info.parameters.empty());
  response->set_num_classes(info.num_classes);
  response->mutable_image_shape()->Add(info.image_shape.begin(), info.image_shape.end());
}

}  // namespace deeppcr
