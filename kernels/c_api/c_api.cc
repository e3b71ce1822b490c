// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/cancel_token.h"
#include "kernels/base/control_group.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/c_api/calls.h"
#include "kernels/c_api/deeppcr.h"
#include "kernels/c_api/gradients.h"
#include "kernels/engine.h"

namespace deeppcr {
namespace {

// Plain bytes: an object with a destructor would keep the library loaded as long as the thread.
thread_local std::array<char, 1024> last_error = {};

// The status of a call, whose text it keeps for the calling thread.
deeppcr_status Return(const absl::Status& status) {
  const absl::string_view text = status.message();
  const size_t size = std::min(text.size(), last_error.size() - 1);
  std::copy_n(text.data(), size, last_error.data());
  last_error[size] = '\0';
  return static_cast<deeppcr_status>(status.code());
}

// The arithmetic that bits and certificates are made for, whatever the caller's thread is set to:
// rounding to nearest, denormal numbers, no traps. Threads that are made meanwhile inherit it.
class DefaultArithmetic {
 public:
  DefaultArithmetic() : callers_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~DefaultArithmetic() { _mm_setcsr(callers_); }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  static constexpr unsigned kDefault = 0x1F80;
  const unsigned callers_;
};

// The status of a failure that leaves no memory for a text of its own.
deeppcr_status Fail(deeppcr_status status, const char* text) {
  std::strncpy(last_error.data(), text, last_error.size() - 1);
  return status;
}

// Runs the body of a call: nothing may be thrown through C.
template <class Body>
deeppcr_status Guarded(const Body& body) {
  const DefaultArithmetic arithmetic;
  try {
    return Return(body());
  } catch (const std::bad_alloc&) {
    return Fail(DEEPPCR_RESOURCE_EXHAUSTED, "out of memory");
  } catch (const std::system_error& error) {
    return Fail(DEEPPCR_RESOURCE_EXHAUSTED, error.what());
  } catch (...) {
    return Fail(DEEPPCR_INTERNAL, "an unexpected exception");
  }
}

// ---- Engine
// Limits as those of the server's flags.
constexpr int64_t kMostThreads = 1024, kMostBytes = int64_t{1} << 40;

absl::StatusOr<EngineOptions> Translate(const deeppcr_engine_options& given) {
  EngineOptions options;
  DEEPPCR_RETURN_IF_ERROR(CheckRange("num_threads", given.num_threads, 0, kMostThreads));
  DEEPPCR_RETURN_IF_ERROR(
      CheckRange("max_concurrent_runs", given.max_concurrent_runs, 0, kMostThreads));
  DEEPPCR_RETURN_IF_ERROR(CheckRange("max_model_bytes", given.max_model_bytes, 1, kMostBytes));
  DEEPPCR_RETURN_IF_ERROR(
      CheckRange("max_workspace_bytes", given.max_workspace_bytes, 1, kMostBytes));
  DEEPPCR_RETURN_IF_ERROR(
      CheckRange("max_unplanned_bytes", given.max_unplanned_bytes, -1, kMostBytes));
  if (given.backend != nullptr) options.backend = given.backend;
  options.num_threads = given.num_threads > 0 ? given.num_threads : AvailableCores();
  options.max_concurrent_runs =
      given.max_concurrent_runs > 0 ? given.max_concurrent_runs : options.num_threads;
  if (given.plan_cache_dir != nullptr) options.plan_cache_dir = given.plan_cache_dir;
  constexpr PlanMode kModes[] = {PlanMode::kPrefer, PlanMode::kMeasure, PlanMode::kRequire};
  DEEPPCR_ASSIGN_OR_RETURN(const deeppcr_plan_mode mode,
                           EnumOf(given.plan_mode, DEEPPCR_PLAN_REQUIRE, "plan_mode"));
  options.plan_mode = kModes[mode];
  options.max_model_bytes = given.max_model_bytes;
  options.max_workspace_bytes = given.max_workspace_bytes;
  options.max_unplanned_bytes = given.max_unplanned_bytes;
  options.gradients = given.gradients != 0;
  return options;
}

absl::Status CreateEngine(const deeppcr_engine_options* options, deeppcr_engine** engine) {
  DEEPPCR_RETURN_IF_ERROR(Required(engine, "engine"));
  DEEPPCR_ASSIGN_OR_RETURN(
      const deeppcr_engine_options known,
      Known(options, deeppcr_engine_options DEEPPCR_ENGINE_OPTIONS_INIT, "options"));
  DEEPPCR_ASSIGN_OR_RETURN(const EngineOptions translated, Translate(known));
  DEEPPCR_ASSIGN_OR_RETURN(std::shared_ptr<const Engine> made, Engine::Create(translated));
  std::string device(made->device());
  *engine = new deeppcr_engine{std::move(made), ::getpid(), std::move(device), known.progress,
                               known.progress_user};
  return absl::OkStatus();
}

// ---- Models
absl::Status LoadModel(deeppcr_engine* engine, const char* directory, const deeppcr_token* token,
                       deeppcr_model** model) {
  DEEPPCR_RETURN_IF_ERROR(Required(engine, "engine"));
  DEEPPCR_RETURN_IF_ERROR(Required(directory, "directory"));
  if (*directory == '\0') return InvalidArgument("directory: expected a folder, got \"\"");
  DEEPPCR_RETURN_IF_ERROR(Required(model, "model"));
  DEEPPCR_RETURN_IF_ERROR(CheckProcess(engine->process));
  const auto progress = [engine](LoadNews news, std::string_view text) {
    if (engine->progress != nullptr)
      engine->progress(engine->progress_user, news == LoadNews::kProblem ? 1 : 0,
                       std::string(text).c_str());
  };
  DEEPPCR_ASSIGN_OR_RETURN(
      std::shared_ptr<const LoadedModel> loaded,
      engine->engine->LoadModel(directory, progress, token == nullptr ? nullptr : &token->token));
  *model = new deeppcr_model{engine->engine, std::move(loaded), engine->process};
  return absl::OkStatus();
}

absl::Status DescribeModel(const deeppcr_model* model, deeppcr_model_info* to) {
  DEEPPCR_RETURN_IF_ERROR(Required(model, "model"));
  DEEPPCR_RETURN_IF_ERROR(Required(to, "info"));
  DEEPPCR_ASSIGN_OR_RETURN(deeppcr_model_info info, Known(to, deeppcr_model_info{}, "info"));
  const ModelInfo& of = model->model->info();
  info.model_type = of.model_type.c_str();
  info.backend = of.backend.c_str();
  info.config_json = of.config_json.c_str();
  info.weights_sha256 = of.weights_sha256.c_str();
  info.input_dim = of.input_dim;
  info.output_dim = of.output_dim;
  info.state_dim = of.state_dim;
  info.num_steps = of.num_layers;
  info.max_inference_steps = of.max_inference_steps;
  info.num_classes = of.num_classes;
  info.max_batch_size = of.max_batch_size;
  info.generates = of.generates() ? 1 : 0;
  info.memory_dim = of.memory_dim;
  std::memcpy(to, &info, to->struct_size);
  return absl::OkStatus();
}

// ---- Runs
absl::StatusOr<SolveOptions> Translate(const deeppcr_run_options& given) {
  SolveOptions options;
  if (given.solver != nullptr) options.solver = given.solver;
  options.rtol = given.rtol;
  options.atol = given.atol;
  options.max_iterations = given.max_iterations;
  options.shooting_interval = given.shooting_interval;
  options.warm_sweeps = given.warm_sweeps;
  constexpr InitialGuess kGuesses[] = {InitialGuess::kFromPlan, InitialGuess::kConstant,
                                       InitialGuess::kCoarse, InitialGuess::kCalibrated,
                                       InitialGuess::kPrevious};
  constexpr JacobianRefresh kRefreshes[] = {JacobianRefresh::kFromPlan,
                                            JacobianRefresh::kEveryIteration,
                                            JacobianRefresh::kWhileContracting};
  constexpr OnNoConvergence kActions[] = {OnNoConvergence::kFallback, OnNoConvergence::kReturn,
                                          OnNoConvergence::kError};
  DEEPPCR_ASSIGN_OR_RETURN(const deeppcr_guess guess,
                           EnumOf(given.initial_guess, DEEPPCR_GUESS_PREVIOUS, "initial_guess"));
  DEEPPCR_ASSIGN_OR_RETURN(
      const deeppcr_refresh refresh,
      EnumOf(given.jacobian_refresh, DEEPPCR_REFRESH_WHILE_CONTRACTING, "jacobian_refresh"));
  DEEPPCR_ASSIGN_OR_RETURN(
      const deeppcr_no_convergence action,
      EnumOf(given.on_no_convergence, DEEPPCR_NO_CONVERGENCE_ERROR, "on_no_convergence"));
  options.initial_guess = kGuesses[guess];
  options.jacobian_refresh = kRefreshes[refresh];
  options.on_no_convergence = kActions[action];
  return options;
}

double OrNan(const std::optional<double>& value) {
  return value.value_or(std::numeric_limits<double>::quiet_NaN());
}

// Names of solvers and terminations end with a zero: they are literals.
deeppcr_report Translate(const SampleReport& report) {
  return {.solver = report.solver.data(),
          .termination = ToString(report.termination).data(),
          .converged = report.converged ? 1 : 0,
          .fallback = report.fallback ? 1 : 0,
          .iterations = report.iterations,
          .chord_corrections = report.chord_corrections,
          .confirmations = report.confirmations,
          .warm_sweeps = report.warm_sweeps,
          .dependent_stages = report.dependent_stages,
          .column_passes = report.column_passes,
          .error_estimate = OrNan(report.error_estimate),
          .output_error_estimate = OrNan(report.output_error_estimate),
          .rounding_estimate = OrNan(report.rounding_estimate),
          .last_update = OrNan(report.update),
          .attempt_solver = report.fallback ? report.attempt.solver.data() : nullptr,
          .attempt_termination =
              report.fallback ? ToString(report.attempt.termination).data() : nullptr};
}

void WriteReports(std::span<const SampleReport> reports, const deeppcr_outputs& to) {
  if (to.reports == nullptr) return;
  auto* at = reinterpret_cast<char*>(to.reports);
  for (const SampleReport& report : reports) {
    const deeppcr_report row = Translate(report);
    std::memcpy(at, &row, std::min(sizeof(row), to.report_size));
    at += to.report_size;
  }
}

absl::Status RunSystem(const LoadedSystem& system, const ModelInfo& info, int64_t num_steps,
                       const SolveOptions& options, const deeppcr_inputs& inputs,
                       const CancelToken* token, deeppcr_outputs* outputs) {
  const int64_t n = inputs.num_samples;
  DEEPPCR_ASSIGN_OR_RETURN(const ResolvedOptions resolved, system.Resolve(options, n));
  DEEPPCR_ASSIGN_OR_RETURN(const SampleInputs samples, InputsOf(inputs, info, num_steps));
  if (resolved.initial_guess == InitialGuess::kPrevious)
    DEEPPCR_RETURN_IF_ERROR(Required(inputs.initial_states, "inputs.initial_states"));
  // A control loop's single sample costs no allocation.
  SampleReport single;
  std::vector<SampleReport> many(n > 1 ? n : 0);
  const std::span<SampleReport> reports = n > 1 ? std::span(many) : std::span(&single, 1);
  RunItem item{.samples = samples,
               .outputs = Rows(outputs->outputs, n, info.output_dim),
               .final_states = Rows(outputs->final_states, n, info.state_dim),
               .trajectory = Rows(outputs->trajectory, n, (num_steps + 1) * info.state_dim),
               .reports = reports,
               .token = token};
  RunTimings timings;
  DEEPPCR_RETURN_IF_ERROR(system.Run(resolved, {&item, 1}, &timings));
  outputs->seconds = timings.wall_seconds;
  WriteReports(reports, *outputs);
  return JudgeReports(reports, options);
}

absl::Status Run(const deeppcr_model* model, const deeppcr_run_options* options,
                 const deeppcr_inputs* inputs, deeppcr_outputs* outputs) {
  DEEPPCR_RETURN_IF_ERROR(Required(model, "model"));
  DEEPPCR_RETURN_IF_ERROR(Required(inputs, "inputs"));
  DEEPPCR_RETURN_IF_ERROR(Required(outputs, "outputs"));
  DEEPPCR_RETURN_IF_ERROR(CheckProcess(model->process));
  DEEPPCR_ASSIGN_OR_RETURN(const deeppcr_run_options known,
                           Known(options, deeppcr_run_options DEEPPCR_RUN_OPTIONS_INIT, "options"));
  DEEPPCR_ASSIGN_OR_RETURN(const deeppcr_inputs from,
                           Known(inputs, deeppcr_inputs DEEPPCR_INPUTS_INIT, "inputs"));
  DEEPPCR_ASSIGN_OR_RETURN(deeppcr_outputs to,
                           Known(outputs, deeppcr_outputs DEEPPCR_OUTPUTS_INIT, "outputs"));
  DEEPPCR_RETURN_IF_ERROR(Required(to.outputs, "outputs.outputs"));
  if (to.reports != nullptr)
    DEEPPCR_RETURN_IF_ERROR(CheckStructure<deeppcr_report>("outputs.report_size", to.report_size,
                                                           offsetof(deeppcr_report, converged)));
  DEEPPCR_ASSIGN_OR_RETURN(const SolveOptions solve, Translate(known));
  const ModelInfo& info = model->model->info();
  DEEPPCR_RETURN_IF_ERROR(
      CheckNumbers(info, from.num_samples, known.num_inference_steps, known.timeout_seconds));
  const RunToken token(known.token, known.timeout_seconds);
  DEEPPCR_ASSIGN_OR_RETURN(
      const std::shared_ptr<const LoadedSystem> system,
      FoundOrMade(model->model->FindFor(solve, known.num_inference_steps, from.num_samples), *model,
                  known.num_inference_steps, token.get()));
  const int64_t num_steps =
      known.num_inference_steps > 0 ? known.num_inference_steps : info.num_layers;
  const absl::Status status = RunSystem(*system, info, num_steps, solve, from, token.get(), &to);
  std::memcpy(outputs, &to, outputs->struct_size);
  return status;
}

}  // namespace
}  // namespace deeppcr

extern "C" {

const char* deeppcr_last_error(void) { return deeppcr::last_error.data(); }
const char* deeppcr_version(void) { return DEEPPCR_VERSION; }

deeppcr_status deeppcr_engine_create(const deeppcr_engine_options* options,
                                     deeppcr_engine** engine) {
  return deeppcr::Guarded([&] { return deeppcr::CreateEngine(options, engine); });
}
// An object of another process is left alone: its threads cannot be joined here.
void deeppcr_engine_destroy(deeppcr_engine* engine) {
  if (engine != nullptr && engine->process == ::getpid()) delete engine;
}
const char* deeppcr_engine_device(const deeppcr_engine* engine) {
  return engine == nullptr ? "" : engine->device.c_str();
}

deeppcr_status deeppcr_token_create(deeppcr_token** token) {
  return deeppcr::Guarded([&]() -> absl::Status {
    DEEPPCR_RETURN_IF_ERROR(deeppcr::Required(token, "token"));
    *token = new deeppcr_token;
    return absl::OkStatus();
  });
}
void deeppcr_token_cancel(deeppcr_token* token) {
  if (token != nullptr) token->token.Cancel();
}
void deeppcr_token_destroy(deeppcr_token* token) { delete token; }

deeppcr_status deeppcr_model_load(deeppcr_engine* engine, const char* directory,
                                  const deeppcr_token* token, deeppcr_model** model) {
  return deeppcr::Guarded([&] { return deeppcr::LoadModel(engine, directory, token, model); });
}
void deeppcr_model_destroy(deeppcr_model* model) {
  if (model != nullptr && model->process == ::getpid()) delete model;
}
deeppcr_status deeppcr_model_describe(const deeppcr_model* model, deeppcr_model_info* info) {
  return deeppcr::Guarded([&] { return deeppcr::DescribeModel(model, info); });
}
const char* deeppcr_model_solver(const deeppcr_model* model, int32_t i) {
  if (model == nullptr) return nullptr;
  const auto& solvers = model->model->info().solvers;
  return i >= 0 && i < std::ssize(solvers) ? solvers[i].c_str() : nullptr;
}

deeppcr_status deeppcr_run(const deeppcr_model* model, const deeppcr_run_options* options,
                           const deeppcr_inputs* inputs, deeppcr_outputs* outputs) {
  return deeppcr::Guarded([&] { return deeppcr::Run(model, options, inputs, outputs); });
}

deeppcr_status deeppcr_go_back(const deeppcr_model* model, const deeppcr_backward_options* options,
                               const deeppcr_inputs* inputs, const deeppcr_cotangents* cotangents,
                               deeppcr_gradients* gradients) {
  return deeppcr::Guarded(
      [&] { return deeppcr::GoBack(model, options, inputs, cotangents, gradients); });
}

}  // extern "C"
