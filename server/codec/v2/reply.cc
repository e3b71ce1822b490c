// SPDX-License-Identifier: Apache-2.0
#include "server/codec/v2/reply.h"

#include <algorithm>
#include <optional>
#include <string>

namespace deeppcr {
namespace {

v1::Tensor* TensorOf(V2Output output, V2Tensors* tensors) {
  switch (output) {
    case V2Output::kLatents:
      return &tensors->latents;
    case V2Output::kTrajectory:
      return &tensors->trajectory;
    case V2Output::kByInputs:
      return &tensors->by_inputs;
    case V2Output::kByInitialNoise:
      return &tensors->by_initial_noise;
    case V2Output::kByStepNoise:
      return &tensors->by_step_noise;
    case V2Output::kLosses:
      return &tensors->losses;
    default:
      return &tensors->values;
  }
}

// Sets parameters of the reply to values of any of protobuf's kinds.
class Parameters {
 public:
  explicit Parameters(inference::ModelInferResponse* reply) : map_(*reply->mutable_parameters()) {}
  void Set(const char* name, const std::string& value) { map_[name].set_string_param(value); }
  void Set(const char* name, double value) { map_[name].set_double_param(value); }
  void Set(const char* name, int64_t value) { map_[name].set_int64_param(value); }
  void Set(const char* name, bool value) { map_[name].set_bool_param(value); }

 private:
  google::protobuf::Map<std::string, inference::InferParameter>& map_;
};

// Sets the largest estimate only if all samples have one: otherwise it would say nothing.
void FillEstimate(const v1::SolveReport& report, Parameters* parameters) {
  std::optional<double> largest;
  for (const v1::SampleReport& sample : report.samples()) {
    if (!sample.has_error_estimate()) return;
    largest = std::max(largest.value_or(0), sample.error_estimate());
  }
  if (largest.has_value()) parameters->Set("error_estimate", *largest);
}

// Sets the attempt of the first sample that fell back.
void FillAttempt(const v1::SolveReport& report, Parameters* parameters) {
  for (const v1::SampleReport& sample : report.samples()) {
    if (!sample.has_attempt()) continue;
    parameters->Set("attempt_solver", sample.attempt().solver());
    parameters->Set("attempt_termination", sample.attempt().termination());
    return;
  }
}

void FillSamples(const v1::SolveReport& report, Parameters* parameters) {
  std::string solver, termination;
  int64_t iterations = 0, stages = 0, fallbacks = 0;
  bool converged = true;
  for (const v1::SampleReport& sample : report.samples()) {
    solver = solver.empty() || solver == sample.solver() ? sample.solver() : "several";
    // The termination of the first sample, or of the first that did not converge.
    if (termination.empty() || (converged && !sample.converged()))
      termination = sample.termination();
    converged = converged && sample.converged();
    iterations = std::max<int64_t>(iterations, sample.iterations());
    stages = std::max(stages, sample.dependent_stages());
    fallbacks += sample.fallback() ? 1 : 0;
  }
  parameters->Set("solver", solver);
  parameters->Set("termination", termination);
  parameters->Set("converged", converged);
  parameters->Set("fallbacks", fallbacks);
  parameters->Set("iterations", iterations);
  parameters->Set("dependent_stages", stages);
}

void FillReport(const v1::SolveReport& report, Parameters* parameters) {
  // A request with the handle of a trajectory solved nothing.
  if (report.samples_size() > 0) FillSamples(report, parameters);
  FillEstimate(report, parameters);
  FillAttempt(report, parameters);
  parameters->Set("device", report.device());
  parameters->Set("plan_id", report.plan_id());
  parameters->Set("initial_guess", report.initial_guess());
  parameters->Set("shooting_interval", int64_t{report.shooting_interval()});
  parameters->Set("num_steps", report.num_steps());
  parameters->Set("batch_samples", int64_t{report.batch_samples()});
  parameters->Set("queue_seconds", report.queue_seconds());
  parameters->Set("encode_seconds", report.encode_seconds());
  parameters->Set("solve_seconds", report.solve_seconds());
  parameters->Set("decode_seconds", report.decode_seconds());
}

}  // namespace

void FillV2Reply(const ServedModel& model, std::string_view id, std::span<const V2Output> outputs,
                 const v1::SolveReport& report, V2Tensors* tensors,
                 inference::ModelInferResponse* reply) {
  reply->set_model_name(model.name);
  reply->set_model_version(std::to_string(model.version));
  reply->set_id(std::string(id));
  for (const V2Output wanted : outputs) {
    v1::Tensor* from = TensorOf(wanted, tensors);
    inference::ModelInferResponse::InferOutputTensor* output = reply->add_outputs();
    output->set_name(std::string(NameOf(wanted, model.model->info())));
    output->set_datatype(wanted == V2Output::kLosses ? "FP64" : "FP32");
    output->mutable_shape()->Swap(from->mutable_shape());
    // Clients read only the raw contents, by the index of the output.
    reply->add_raw_output_contents()->swap(*from->mutable_data());
  }
  Parameters parameters(reply);
  FillReport(report, &parameters);
}

void FillV2WayBack(const v1::BackwardReport& report, inference::ModelInferResponse* reply) {
  int64_t stages = 0;
  std::string termination;
  double error = 0;
  bool estimated = report.samples_size() > 0;
  for (const v1::SampleBackwardReport& sample : report.samples()) {
    stages = std::max(stages, sample.dependent_stages());
    if (termination.empty() || termination == "direct") termination = sample.termination();
    estimated = estimated && sample.has_gradient_error_estimate();
    error = std::max(error, sample.gradient_error_estimate());
  }
  Parameters parameters(reply);
  parameters.Set("way", report.way());
  parameters.Set("way_interval", int64_t{report.shooting_interval()});
  parameters.Set("way_seconds", report.seconds());
  parameters.Set("way_stages", stages);
  parameters.Set("way_termination", termination);
  if (estimated) parameters.Set("gradient_error_estimate", error);
}

}  // namespace deeppcr
