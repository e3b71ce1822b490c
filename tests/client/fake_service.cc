// SPDX-License-Identifier: Apache-2.0
#include "tests/client/fake_service.h"

#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace deeppcr {
namespace {

std::vector<float> Values(const v1::Tensor& tensor) {
  std::vector<float> values(tensor.data().size() / sizeof(float));
  if (!values.empty())
    std::memcpy(values.data(), tensor.data().data(), values.size() * sizeof(float));
  return values;
}

void SetTensor(const std::vector<int64_t>& shape, const std::vector<float>& values,
               v1::Tensor* tensor) {
  for (const int64_t extent : shape) tensor->add_shape(extent);
  tensor->mutable_data()->resize(values.size() * sizeof(float));
  if (!values.empty())
    std::memcpy(tensor->mutable_data()->data(), values.data(), tensor->data().size());
}

v1::ModelSummary Summary(const std::string& name) {
  v1::ModelSummary summary;
  summary.set_name(name);
  summary.set_version(7);
  const bool draw = name == "draw";
  const bool broken = name == "broken";
  summary.set_state(broken ? v1::MODEL_STATE_FAILED : v1::MODEL_STATE_READY);
  summary.set_model_type(draw ? "diffusion" : "resnet");
  summary.set_num_layers(draw ? kDrawSteps : kFakeLayers);
  summary.set_state_dim(draw ? kDrawWidth : kFakeWidth);
  if (broken) summary.set_reason("config.json: activation is missing");
  return summary;
}

grpc::Status UnknownModel(const std::string& name) {
  return {grpc::StatusCode::NOT_FOUND, "model: '" + name + "' is unknown"};
}

v1::SampleReport SampleOf(const v1::SolverOptions& options, bool fallback,
                          const std::string& suffix) {
  v1::SampleReport report;
  const bool sequential = fallback || options.solver() == "sequential";
  report.set_solver((sequential ? "sequential" : "newton") + suffix);
  report.set_termination((sequential ? "direct" : "converged") + suffix);
  report.set_fallback(fallback);
  if (fallback) report.mutable_attempt()->set_termination("max_iterations" + suffix);
  report.set_converged(true);
  report.set_iterations(4);
  report.set_dependent_stages(23);
  return report;
}

void DescribeDraw(v1::GetModelResponse* reply) {
  *reply->mutable_summary() = Summary("draw");
  reply->set_output_dim(kDrawPixels);
  reply->set_max_batch_size(kFakeMaxBatch);
  reply->set_num_classes(kDrawClasses);
  for (const int extent : {2, 3}) reply->add_image_shape(extent);
  for (const int steps : {kDrawSteps, 2}) {
    reply->add_num_inference_steps(steps);
    v1::Plan* plan = reply->add_plans();
    plan->set_id("plan-of-" + std::to_string(steps));
    plan->set_device("fake-device");
    plan->set_device_class("fake-device l1d=1K");
    plan->add_entries()->set_max_samples(5);
  }
  *reply->mutable_plan() = reply->plans(0);
}

// Reports two samples that fell back; one of them did not converge even so.
void FailPicard(const std::string& suffix, v1::CompareRow* row) {
  row->set_solver("sequential");
  row->set_converged(false);
  row->set_fallbacks(2);
  for (const char* reason : {"max_iterations", "slow"}) {
    v1::TerminationCount* count = row->add_fallback_reasons();
    count->set_termination(reason + suffix);
    count->set_samples(1);
  }
  v1::TerminationCount* count = row->add_unconverged_reasons();
  count->set_termination("non_finite" + suffix);
  count->set_samples(1);
}

// The first value of a row, or 0 if the tensor is empty.
float FirstOfRow(const v1::Tensor& tensor, int64_t row, int64_t rows) {
  const std::vector<float> values = Values(tensor);
  return values.empty() ? 0 : values[values.size() / static_cast<size_t>(rows) * row];
}

int32_t ClassOf(const v1::GenerationInput& input, int i) {
  if (input.class_labels().empty()) return 0;
  return input.class_labels(input.class_labels_size() == 1 ? 0 : i);
}

// The gradients of a request's samples; see FakeService.
class Gradients {
 public:
  explicit Gradients(const v1::GradientRequest& request)
      : request_(request),
        draw_(request.model() == "draw"),
        n_(draw_ ? request.generation().num_samples() : request.inputs().shape(0)),
        ranked_(request.cotangents().shape_size() == 3),
        columns_(ranked_ ? request.cotangents().shape(1) : 1),
        width_(draw_ ? kDrawPixels : kFakeOutputs) {}

  void Fill(v1::GradientResponse* reply) const {
    std::vector<float> cotangents = Values(request_.cotangents());
    cotangents.resize(static_cast<size_t>(n_ * columns_ * width_), 1);
    std::vector<float> inputs, initial, noise;
    for (int64_t row = 0; row < n_ * columns_; ++row) {
      const auto g = static_cast<float>(request_.generation().first_sample() +
                                        static_cast<uint64_t>(row / columns_));
      const auto seed = static_cast<float>(request_.generation().seed());
      const float first = cotangents[row * width_], second = cotangents[row * width_ + 1];
      inputs.insert(inputs.end(), {first, first, second});
      initial.insert(initial.end(), {draw_ ? g : first, draw_ ? seed : 2 * first});
      if (!draw_) initial.push_back(3 * first);
      noise.insert(noise.end(), kDrawSteps * kDrawWidth, g);
    }
    if (Wants(v1::GRADIENT_BY_INPUTS)) Shape({3}, inputs, reply->mutable_input_gradients());
    if (Wants(v1::GRADIENT_BY_INITIAL_STATE))
      Shape({states()}, initial, reply->mutable_initial_state_gradients());
    if (Wants(v1::GRADIENT_BY_STEP_NOISE))
      Shape({kDrawSteps, kDrawWidth}, noise, reply->mutable_step_noise_gradients());
  }

  // Fills in what the solve gives: outputs of nines, states of eights.
  void FillSolve(v1::GradientResponse* reply) const {
    const int64_t rows = (draw_ ? kDrawSteps : kFakeLayers) + 1;
    SetTensor({n_, width_}, std::vector<float>(static_cast<size_t>(n_ * width_), 9),
              reply->mutable_outputs());
    if (request_.options().return_trajectory())
      SetTensor({n_, rows, states()},
                std::vector<float>(static_cast<size_t>(n_ * rows * states()), 8),
                reply->mutable_trajectory());
  }

  int64_t num_samples() const { return n_; }

 private:
  int64_t states() const { return draw_ ? kDrawWidth : kFakeWidth; }
  bool Wants(v1::GradientBy by) const {
    const auto& wanted = request_.gradients();
    if (wanted.empty())
      return by == (draw_ ? v1::GRADIENT_BY_INITIAL_STATE : v1::GRADIENT_BY_INPUTS);
    return std::find(wanted.begin(), wanted.end(), by) != wanted.end();
  }
  void Shape(const std::vector<int64_t>& inner, const std::vector<float>& values,
             v1::Tensor* tensor) const {
    std::vector<int64_t> shape = {n_};
    if (ranked_) shape.push_back(columns_);
    shape.insert(shape.end(), inner.begin(), inner.end());
    SetTensor(shape, values, tensor);
  }

  const v1::GradientRequest& request_;
  const bool draw_;
  const int64_t n_;
  const bool ranked_;
  const int64_t columns_, width_;
};

}  // namespace

FakeService::FakeService(int port) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  const std::string address = "127.0.0.1:" + std::to_string(port);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  server_->GetHealthCheckService()->SetServingStatus("fake", true);
  server_->GetHealthCheckService()->SetServingStatus("broken", false);
}

FakeService::~FakeService() { server_->Shutdown(std::chrono::system_clock::now()); }

std::vector<v1::ForwardRequest> FakeService::forward_requests() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return forward_requests_;
}

std::vector<v1::GenerateRequest> FakeService::generate_requests() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return generate_requests_;
}

std::vector<v1::GradientRequest> FakeService::gradient_requests() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return gradient_requests_;
}

v1::CompareRequest FakeService::last_compare() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return last_compare_;
}

grpc::Status FakeService::Forward(grpc::ServerContext* context, const v1::ForwardRequest* request,
                                  v1::ForwardResponse* reply) {
  ++calls_;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    forward_requests_.push_back(*request);
  }
  if (on_forward) return on_forward(context, *request, reply);
  if (request->model() != "fake") return UnknownModel(request->model());
  const int64_t n = request->inputs().shape(0);
  const std::vector<float> x = Values(request->inputs());
  std::vector<float> outputs;
  std::vector<float> states;
  for (int64_t i = 0; i < n; ++i) {
    const float* row = x.data() + i * kFakeInputs;
    outputs.insert(outputs.end(), {row[0] + row[1], row[2]});
    for (int step = 0; step <= kFakeLayers; ++step)
      states.insert(states.end(), row, row + kFakeWidth);
    *reply->mutable_report()->add_samples() = SampleOf(request->options(), report_fallback, suffix);
  }
  SetTensor({n, kFakeOutputs}, outputs, reply->mutable_outputs());
  if (request->options().return_trajectory()) {
    SetTensor({n, kFakeLayers + 1, kFakeWidth}, states, reply->mutable_trajectory());
  }
  if (request->options().keep_trajectory()) reply->set_trajectory_handle(NewHandle());
  reply->mutable_report()->set_device("fake-device" + suffix);
  reply->set_request_id(request->request_id());
  return grpc::Status::OK;
}

std::string FakeService::NewHandle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return "kept-" + std::to_string(++handles_);
}

void FakeService::Draw(const v1::GenerateRequest& request, v1::GenerateResponse* reply) {
  const v1::GenerationInput& input = request.input();
  const int n = input.num_samples();
  const int steps = input.num_inference_steps() > 0 ? input.num_inference_steps() : kDrawSteps;
  std::vector<float> samples;
  std::vector<float> latents;
  std::vector<float> states;
  for (int i = 0; i < n; ++i) {
    const uint64_t number = input.first_sample() + static_cast<uint64_t>(i);
    const float given = FirstOfRow(input.initial_noise(), i, n) +
                        FirstOfRow(input.step_noise(), i, n) +
                        FirstOfRow(input.conditioning(), i, n);
    for (uint64_t j = 0; j < kDrawPixels; ++j) {
      const uint64_t mixed =
          31 * input.seed() + 7 * number + 3 * static_cast<uint64_t>(ClassOf(input, i)) + j;
      samples.push_back(static_cast<float>(mixed % 11) / 10 + given);
    }
    const float state[] = {static_cast<float>(number), static_cast<float>(input.seed())};
    latents.insert(latents.end(), state, state + kDrawWidth);
    for (int k = 0; k <= steps; ++k) states.insert(states.end(), state, state + kDrawWidth);
    const auto reason = fallbacks.find(number);
    v1::SampleReport* report = reply->mutable_report()->add_samples();
    *report = SampleOf(request.options(), reason != fallbacks.end(), suffix);
    if (reason != fallbacks.end()) report->mutable_attempt()->set_termination(reason->second);
    report->set_iterations(3 + static_cast<int>(number % 3));
    report->set_column_passes(99);
    if (reason == fallbacks.end()) report->set_error_estimate(2e-5);
  }
  SetTensor({n, kDrawPixels}, samples, reply->mutable_samples());
  SetTensor({n, kDrawWidth}, latents, reply->mutable_latents());
  if (request.options().return_trajectory()) {
    SetTensor({n, steps + 1, kDrawWidth}, states, reply->mutable_trajectory());
  }
  if (request.options().keep_trajectory()) reply->set_trajectory_handle(NewHandle());
  reply->mutable_report()->set_device("fake-device" + suffix);
  reply->mutable_report()->set_plan_id("plan-of-" + std::to_string(steps));
  reply->mutable_report()->set_num_steps(steps);
  reply->mutable_report()->set_solve_seconds(0.25);
  reply->set_request_id(request.request_id());
}

grpc::Status FakeService::Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                                   v1::GenerateResponse* reply) {
  ++calls_;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    generate_requests_.push_back(*request);
  }
  if (on_generate) return on_generate(context, *request, reply);
  if (request->model() != "draw") return UnknownModel(request->model());
  Draw(*request, reply);
  return grpc::Status::OK;
}

grpc::Status FakeService::StreamGenerate(grpc::ServerContext* context,
                                         const v1::GenerateRequest* request,
                                         grpc::ServerWriter<v1::StreamGenerateResponse>* writer) {
  ++streams_;
  if (on_stream) return on_stream(writer);
  v1::StreamGenerateResponse result;
  const grpc::Status status = Generate(context, request, result.mutable_result());
  if (!status.ok()) return status;
  for (int i = 1; i <= 3; ++i) {
    v1::StreamGenerateResponse message;
    v1::GenerateProgress* progress = message.mutable_progress();
    progress->set_solver("newton" + suffix);
    progress->set_iterations(i);
    progress->set_num_steps(kDrawSteps);
    if (i == 3) progress->set_error_estimate(2e-5);
    writer->Write(message);
  }
  writer->Write(result);
  return grpc::Status::OK;
}

grpc::Status FakeService::Gradient(grpc::ServerContext*, const v1::GradientRequest* request,
                                   v1::GradientResponse* reply) {
  ++calls_;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    gradient_requests_.push_back(*request);
  }
  const std::string& handle = request->trajectory_handle();
  if (!handle.empty() && gone.contains(handle))
    return {grpc::StatusCode::NOT_FOUND, "trajectory_handle: expected one that is kept"};
  const bool known = request->has_trajectory() || !handle.empty();
  const Gradients gradients(*request);
  gradients.Fill(reply);
  if (!known) gradients.FillSolve(reply);
  const bool parallel = request->way() == v1::BACKWARD_WAY_PARALLEL;
  reply->mutable_backward()->set_way((parallel ? "parallel" : "sequential") + suffix);
  reply->mutable_backward()->set_seconds(0.25);
  reply->mutable_report()->set_device("fake-device" + suffix);
  for (int64_t i = 0; i < gradients.num_samples(); ++i) {
    if (request->loss() != v1::LOSS_UNSPECIFIED) reply->add_losses(0.5);
    v1::SampleBackwardReport* sample = reply->mutable_backward()->add_samples();
    sample->set_termination("direct");
    sample->set_dependent_stages(23);
    if (known) continue;
    *reply->mutable_report()->add_samples() = SampleOf(request->options(), report_fallback, suffix);
  }
  return on_gradient ? on_gradient(reply) : grpc::Status::OK;
}

grpc::Status FakeService::Compare(grpc::ServerContext*, const v1::CompareRequest* request,
                                  v1::CompareResponse* reply) {
  ++calls_;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    last_compare_ = *request;
  }
  for (const v1::SolverOptions& options : request->options()) {
    v1::CompareRow* row = reply->add_rows();
    row->set_requested_solver(options.solver());
    if (options.solver() == "quasi_newton") {
      row->set_error("needs shooting_interval 1");
      continue;
    }
    const bool sequential = options.solver() == "sequential";
    row->set_solver(options.solver() == "auto" ? "sequential" : options.solver());
    row->set_median_seconds(sequential ? 40e-6 : 20e-6);
    row->set_p99_seconds(55e-6);
    row->set_speedup(sequential ? 1 : 2);
    row->set_max_iterations(sequential ? 0 : 3);
    row->set_warm_sweeps(sequential ? 0 : 2);
    row->set_dependent_stages(sequential ? 1024 : 69);
    row->set_max_output_difference(sequential ? 0 : 1.5e-6);
    row->set_converged(true);
    if (options.solver() == "newton") row->set_error_estimate(2e-5);
    if (options.solver() == "picard") FailPicard(suffix, row);
  }
  reply->set_device("fake-device");
  reply->set_plan_id("0123456789abcdef");
  return grpc::Status::OK;
}

// The gradient by a weight [2, 3] in two pieces, and by a bias [2] in one: 1, 2, .. times the
// number of samples.
grpc::Status FakeService::StreamGradient(grpc::ServerContext* context,
                                         const v1::GradientRequest* request,
                                         grpc::ServerWriter<v1::StreamGradientResponse>* writer) {
  v1::StreamGradientResponse last;
  const grpc::Status status = Gradient(context, request, last.mutable_result());
  if (!status.ok()) return status;
  const auto n = static_cast<float>(request->inputs().shape(0));
  std::vector<v1::ParameterPiece> pieces;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape, int64_t offset,
                       int64_t count, int64_t total) {
    v1::ParameterPiece& piece = pieces.emplace_back();
    piece.set_name(name);
    piece.mutable_shape()->Add(shape.begin(), shape.end());
    piece.set_offset(offset);
    piece.set_total(total);
    for (int64_t i = 0; i < count; ++i) {
      const float value = n * static_cast<float>(offset + i + 1);
      piece.mutable_data()->append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
  };
  add("output.weight", {2, 3}, 0, 4, 6);
  add("output.weight", {2, 3}, 4, 2, 6);
  add("output.bias", {2}, 0, 2, 2);
  if (on_pieces) on_pieces(&pieces);
  for (const v1::ParameterPiece& piece : pieces) {
    v1::StreamGradientResponse event;
    *event.mutable_piece() = piece;
    writer->Write(event);
  }
  writer->Write(last);
  return grpc::Status::OK;
}

grpc::Status FakeService::ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                                     v1::ListModelsResponse* reply) {
  ++calls_;
  *reply->add_models() = Summary("broken");
  *reply->add_models() = Summary("draw");
  *reply->add_models() = Summary("fake");
  return grpc::Status::OK;
}

grpc::Status FakeService::GetModel(grpc::ServerContext*, const v1::GetModelRequest* request,
                                   v1::GetModelResponse* reply) {
  ++calls_;
  if (request->model() == "draw") {
    DescribeDraw(reply);
    if (describe) describe(reply);
    return grpc::Status::OK;
  }
  if (request->model() != "fake" && request->model() != "broken")
    return UnknownModel(request->model());
  *reply->mutable_summary() = Summary(request->model());
  if (request->model() == "broken") return grpc::Status::OK;
  reply->set_input_dim(kFakeInputs);
  reply->set_output_dim(kFakeOutputs);
  reply->set_max_batch_size(kFakeMaxBatch);
  for (const char* solver : {"sequential", "newton", "auto"}) reply->add_solvers(solver + suffix);
  for (const char* label : {"low", "high"}) reply->add_labels(label + suffix);
  v1::Plan* plan = reply->mutable_plan();
  plan->set_id("0123456789abcdef" + suffix);
  plan->set_device("fake-device" + suffix);
  plan->set_device_class("fake-device l1d=1K" + suffix);
  plan->set_least_rtol(2e-5);
  if (request->with_plan_file()) reply->set_plan_file(plan_file);
  plan->set_rtol(1e-4);
  plan->set_measured_seconds(1.5);
  for (const int last : {1, 5}) {
    v1::PlanEntry* entry = plan->add_entries();
    entry->set_max_samples(last);
    entry->set_solver("sequential");
    entry->set_seconds(40e-6);
    entry->set_sequential_seconds(40e-6);
    entry->set_parallel_seconds(80e-6);
    entry->set_parallel_iterations(3);
    entry->set_parallel_stages(69);
    entry->set_parallel_error(1e-5);
    entry->set_shooting_interval(16);
    entry->set_initial_guess("calibrated");
    entry->set_jacobian_refresh("every_iteration");
  }
  v1::SolverChoice* choice = plan->add_choices();
  choice->set_solver("picard" + suffix);
  choice->set_shooting_interval(8);
  choice->set_initial_guess("constant");
  choice->set_jacobian_refresh("every_iteration");
  choice->set_max_iterations(32);
  plan->add_candidates("newton C=16 calibrated: 80 us" + suffix);
  return grpc::Status::OK;
}

grpc::Status FakeService::LoadModel(grpc::ServerContext*, const v1::LoadModelRequest* request,
                                    v1::LoadModelResponse* reply) {
  ++calls_;
  if (request->model() != "fake") return UnknownModel(request->model());
  *reply->mutable_summary() = Summary("fake");
  reply->set_seconds(0.25);
  return grpc::Status::OK;
}

grpc::Status FakeService::UnloadModel(grpc::ServerContext*, const v1::UnloadModelRequest* request,
                                      v1::UnloadModelResponse*) {
  ++calls_;
  if (request->model() != "fake") return UnknownModel(request->model());
  return grpc::Status::OK;
}

}  // namespace deeppcr
