// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_ENGINE_H_
#define DEEPPCR_KERNELS_ENGINE_H_

// The narrow waist of the numerical library, all that a server sees: load a model, run requests,
// get reports.

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backward_space.h"
#include "kernels/base/cancel_token.h"
#include "kernels/base/load_progress.h"
#include "kernels/plan/plan.h"
#include "kernels/solver/backward_item.h"
#include "kernels/solver/backward_slices.h"
#include "kernels/solver/gradient_error.h"
#include "kernels/solver/options.h"
#include "kernels/solver/report.h"
#include "kernels/solver/run_item.h"
#include "kernels/solver/sample_inputs.h"

namespace deeppcr {

// The weights as they were read, those of a system with the transposed ones of its backward pass,
// and workspaces.
inline constexpr int64_t kUnplannedCopies = 5;
inline constexpr int64_t kLeastUnplannedBytes = int64_t{512} << 20;

struct EngineOptions {
  std::string backend = "auto";                // a name of BackendNames()
  int num_threads = 0;                         // threads that share a batch; 0: one per core
  int max_concurrent_runs = 1;                 // callers of Run at a time
  std::string plan_cache_dir;                  // empty: measured plans are not kept
  PlanMode plan_mode = PlanMode::kPrefer;      // use of plan.json and of older plans at a load
  int64_t max_model_bytes = int64_t{1} << 30;  // weights file
  int64_t max_workspace_bytes = int64_t{256} << 20;  // per thread; bounds how small C may be
  // Bytes that a model may keep for numbers of inference steps beside those of its config.json: the
  // weights as they were read, and packed systems with workspaces, one that is being made included.
  // 0, or less than the weights take: requests choose among those of config.json. -1: as many as
  // kUnplannedCopies of the weights take, at least kLeastUnplannedBytes.
  int64_t max_unplanned_bytes = -1;
  // Bytes that all models of the engine may take together in the memory of the host, with what is
  // made on demand; the least recently used of that goes where another model needs the room.
  int64_t max_memory_bytes = INT64_MAX;
  // Load models with their backward passes, which take the recurrent weights once more, and
  // workspaces of up to max_workspace_bytes per thread besides; models whose steps are a program
  // keep all weights for gradients by parameters.
  bool gradients = false;
  // Called, at least once and from any thread, when the device has failed: no model of this engine
  // will answer again. May be empty.
  std::function<void(const absl::Status&)> device_failed;
};

// Why a model runs on its backend: the first that was tried, or the next, after one that has no
// code for the model or one that failed its self-check.
enum class BackendChoice : uint8_t { kFirst, kNoCode, kSelfCheck };
// "first", "no_code", "self_check".
std::string_view ToString(BackendChoice choice);

// A tensor of a model's files.
struct TensorShape {
  std::string name;
  std::vector<int64_t> extents;
};

// What gradients by parameters are made of, beside states: deltas or state_cotangents of
// BackwardItem.
enum class ParameterForm : uint8_t {
  kNone,     // the model has none
  kLayers,   // an mlp or a resnet: deltas
  kProgram,  // steps that are a program, or were one: state_cotangents
};

// Description of a model, fixed at load.
struct ModelInfo {
  std::string model_type;  // a name of the model registry
  std::string backend;     // the backend that runs it
  BackendChoice backend_choice = BackendChoice::kFirst;
  std::string backend_reason;  // why not the ones before, in a sentence; empty for the first
  // The backend that runs it as well, for numbers of samples for which its plan is the faster one;
  // empty: none.
  std::string other_backend;
  bool on_gpu = false;
  int64_t input_dim = 0;
  int64_t output_dim = 0;
  int64_t state_dim = 0;
  int64_t memory_dim = 0;  // last elements of the state that are a sampler's memory (SystemShape)
  int64_t num_layers = 0;  // L; for a diffusion model its default number of inference steps
  int32_t max_batch_size = 0;
  int32_t min_shooting_interval = 1;  // the smallest C whose workspace fits
  std::string config_json;
  std::string weights_sha256;
  std::vector<std::string> solvers;  // accepted names, auto included
  std::vector<std::string> labels;   // labels of the outputs; may be empty
  // Numbers of inference steps that a diffusion model has plans for, the default first; the largest
  // one that it makes a system of on demand (0: requests choose among those with plans); and its
  // number of classes (0: none). Empty and 0 for other models.
  std::vector<int64_t> num_inference_steps;
  int64_t max_inference_steps = 0;
  int64_t num_classes = 0;
  // What stands for no condition, for guided requests: a class; and the vector [input_dim], or
  // empty where requests bring it.
  bool has_null_class = false;
  std::vector<float> null_condition;
  bool draws_step_noise = false;  // steps of a diffusion model add noise
  bool has_decoder = false;       // the outputs are not the final states
  // The parameters, which have gradients (AddParameterGradients). Of an mlp or a resnet:
  // input.weight, input.bias, layers.weight [L, D, D], layers.bias [L, D], output.weight and
  // output.bias, those that it has. Of other models, where the engine loads backward passes: the
  // tensors of model.safetensors by their names, and floating-point initialisers with axes of
  // denoiser.onnx and block.onnx by theirs, [L, ..] where each layer has its own; those that the
  // outputs read.
  std::vector<TensorShape> parameters;
  ParameterForm parameter_form = ParameterForm::kNone;
  std::string no_parameters;         // why there are none, where that is not said above; or empty
  int64_t parameter_bytes = 0;       // memory that a call of AddParameterGradients takes, at most
  bool has_input_layer = false;      // gradients of parameters take encode_deltas
  std::vector<int64_t> image_shape;  // shape of the outputs: height, width[, channels]; or empty

  bool generates() const { return !num_inference_steps.empty(); }
  // Elements of the state that noise and answers without a decoder have.
  int64_t sample_dim() const { return state_dim - memory_dim; }
};

// The options of a backward pass of num_steps steps: those that are wanted, with the interval that
// they leave open, the root of num_steps, where memory allows it. Errors: kInvalidArgument naming
// `way` or `shooting_interval`, what was expected and what came.
absl::StatusOr<BackwardOptions> ResolveBackward(const BackwardOptions& wanted,
                                                const BackwardLimits& limits, int64_t num_steps);

struct ComparisonRow {
  std::string solver;                 // solver that answered the first sample
  std::string error;                  // set, and nothing else, where these options cannot run
  std::vector<double> seconds;        // one per repetition, ascending
  std::vector<float> outputs;         // [n, output_dim]
  std::vector<SampleReport> reports;  // [n]
  // Against sequential: max over samples and steps of |z - z_seq| / |z_seq|, and of the same over
  // the tolerance of these options, |z - z_seq| / (rtol |z_seq| + atol).
  double max_state_error = 0;
  double max_error_over_tolerance = 0;
  double max_output_difference = 0;
  int32_t shooting_interval = 0;
};

// How long a comparison goes on.
struct ComparisonLimits {
  int repetitions = 1;
  // No repetition but the first begins that would make the whole last longer, as far as the ones
  // before tell.
  double seconds = std::numeric_limits<double>::infinity();
};

struct PlanKey;  // kernels/plan/plan_key.h

// A model with one number of steps, ready to run on one backend. Immutable; every method may be
// called from many threads at a time. The engine outlives it.
class LoadedSystem {
 public:
  virtual ~LoadedSystem() = default;

  virtual const Plan& plan() const = 0;

  // Validates options and takes the values that they leave open from the plan entry for
  // num_samples. Errors: kInvalidArgument naming the option, what was expected and what came.
  virtual absl::StatusOr<ResolvedOptions> Resolve(const SolveOptions& options,
                                                  int64_t num_samples) const = 0;

  // Computes a batch. Allocates nothing and holds no lock while it computes. The bits of an item do
  // not depend on the other items. Deadline, cancellation and non-convergence are terminations in
  // the reports, never errors here: with OnNoConvergence::kError the caller turns `!converged` into
  // its error. Errors: kInvalidArgument on a span of the wrong size (our own bug: callers validate
  // first); kUnavailable if the device has failed.
  virtual absl::Status Run(const ResolvedOptions& options, std::span<RunItem> items,
                           RunTimings* timings) const = 0;

  // The limits of GoBack; null where this system has no backward pass, because the engine loads
  // none or the backend has none.
  virtual const BackwardLimits* backward_limits() const = 0;
  // Takes cotangents of a batch back at states that are known. Allocates nothing and holds no lock
  // while it computes. The bits of an item do not depend on the other items. Deadline, cancellation
  // and overflow are terminations in the reports. Errors: kInvalidArgument on a span of the wrong
  // size or an interval out of range; kUnimplemented without a backward pass; kUnavailable if the
  // device has failed.
  virtual absl::Status GoBack(const BackwardOptions& options,
                              std::span<BackwardItem> items) const = 0;
  // Adds the gradients of parameters at samples that have gone back, one sample after another, to
  // sums in the order of ModelInfo::parameters, each laid out as the tensor is; null: not wanted.
  // The engine's threads share the work. The bits depend neither on their number, nor on how the
  // samples are divided among calls. Calls `pause` now and then, unless the work is short, with the
  // seconds since it began or paused, so that a thread which does this can do something else in
  // between. Allocates ModelInfo::parameter_bytes. Errors: kUnimplemented where
  // has_parameter_gradients is false; kDeadlineExceeded, kCancelled by the token, which may be
  // null, with sums of no use; kUnavailable if the device has failed.
  virtual absl::Status AddParameterGradients(std::span<const ParameterSample> samples,
                                             std::span<float* const> sums, const CancelToken* token,
                                             absl::FunctionRef<void(double)> pause) const = 0;
  // True if this system gives them.
  virtual bool has_parameter_gradients() const = 0;

  // Runs `samples` (but for their initial_states) through several options, interleaved, as often as
  // the limits say, and once more with trajectories for the differences. Allocates. A row
  // whose options failed to resolve carries the error. Stops with kDeadlineExceeded / kCancelled
  // when the token, which may be null, says so.
  virtual absl::StatusOr<std::vector<ComparisonRow>> Compare(
      const SampleInputs& samples, std::span<const absl::StatusOr<ResolvedOptions>> options,
      const ComparisonLimits& limits, const CancelToken* token) const = 0;
};

// A loaded model: systems of one number of steps each, made at load or on demand. Every method may
// be called from many threads at a time.
class LoadedModel {
 public:
  virtual ~LoadedModel() = default;

  virtual const ModelInfo& info() const = 0;
  // Weights, tables and workspaces, as of now.
  virtual int64_t memory_bytes() const = 0;
  // The plan of this key, for a load that may take it over; null if there is none.
  virtual const Plan* PlanOf(const PlanKey& key) const = 0;
  // The text of a plan.json with the plans of this device class that were made at load.
  virtual std::string PlanFileText() const = 0;

  // The system of this name, or null if there is none at the moment: those that were made at load
  // are always there. Where two backends have one, that of `backend`; if
  // that is empty, the first one's, unless the other's plan is clearly faster for num_samples
  // samples.
  virtual std::shared_ptr<const LoadedSystem> Find(const SystemKey& key = {},
                                                   int64_t num_samples = 1,
                                                   std::string_view backend = {}) const = 0;
  // The system for a request: where it leaves everything to the plans, that of the faster backend,
  // else the first one's, so that what is valid does not depend on the number of samples.
  std::shared_ptr<const LoadedSystem> FindFor(const SolveOptions& options, const SystemKey& key,
                                              int64_t num_samples) const;
  // The same for a request that goes back: a system with a backward pass, where a backend has one.
  // With `by_parameters`: one that has gradients by parameters, too.
  std::shared_ptr<const LoadedSystem> FindForGradients(const SolveOptions& options,
                                                       const SystemKey& key, int64_t num_samples,
                                                       bool by_parameters = false) const;
  // Find, and where that gives null makes the system, which takes up to seconds. Its plan is that
  // of the nearest number of steps, rescaled, so that it is the same wherever that plan is. Systems
  // that nobody has used for longest go to make room. One call at a time makes a system; others
  // wait. Errors: kInvalidArgument if this model has no such number of steps; kResourceExhausted if
  // the system exceeds the limits alone, or with those in use; kUnavailable if the device has
  // failed; kCancelled if the token, which may be null, has fired.
  virtual absl::StatusOr<std::shared_ptr<const LoadedSystem>> Prepare(
      const SystemKey& key, const CancelToken* token) const = 0;
};

// Engine of a process, which has one. Thread-safe.
class Engine {
 public:
  virtual ~Engine() = default;

  // Errors: kUnavailable if the backend that was asked for cannot run here (with the reason).
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options);

  // The first backend that models are tried on, its device, e.g. "cpu-avx512", and why it is the
  // first, in a sentence. ModelInfo::backend says where a model runs.
  virtual std::string_view backend() const = 0;
  virtual std::string_view device() const = 0;
  virtual std::string_view backend_reason() const = 0;
  // Bytes of EngineOptions::max_memory_bytes that a load could take.
  virtual int64_t available_memory() const = 0;

  // Reads <directory>/{config.json,model.safetensors,scheduler_config.json or
  // step_table.safetensors (diffusion),
  // calibration.safetensors?, plan.json?}, validates everything, calibrates the initial guess, and
  // finds the plan: in plan.json, in one of the models that are loaded already, in the cache, or by
  // measuring, as EngineOptions::plan_mode allows. Takes seconds. Where a backend has no code for
  // the model, computes it wrong (kernels/self_check.h), or has a device that fails meanwhile,
  // "auto" takes the next and says so. The directory itself is trusted (the caller checked the
  // name); its contents are not. Errors: kNotFound, kInvalidArgument (file, key or tensor named),
  // kResourceExhausted (bytes wanted and allowed), kFailedPrecondition (no plan fits, and one is
  // required), kUnimplemented (no backend can run the model), kDataLoss (the last backend computes
  // it wrong). Memory that others have is an error with MissingBytes. kCancelled soon after the
  // token, which may be null, has fired.
  virtual absl::StatusOr<std::shared_ptr<const LoadedModel>> LoadModel(
      const std::string& directory, const LoadProgress& progress, const CancelToken* token,
      std::span<const std::shared_ptr<const LoadedModel>> loaded) const = 0;
  absl::StatusOr<std::shared_ptr<const LoadedModel>> LoadModel(const std::string& directory,
                                                               const LoadProgress& progress,
                                                               const CancelToken* token) const {
    return LoadModel(directory, progress, token, {});
  }
};

// What loading a model would say, without a plan: every problem of its files at once, or else of
// the systems that the CPU runs. In well under a second for small models.
struct ModelCheck {
  std::vector<std::string> problems;  // one sentence each; empty: none
  std::string listing;                // of the step program of an .onnx file; else empty
  std::vector<std::string> notes;     // no problems, but what may not be meant
};
// Of the options only the limits on bytes count.
ModelCheck CheckModel(const std::string& directory, const EngineOptions& options);

// The standard normal noise that a diffusion model draws for a sample where none is given: the
// initial noise, and that of step `step` of its process, 0 being the first. Thread-safe.
void DrawInitialNoise(uint64_t seed, uint64_t sample, std::span<float> noise);
void DrawStepNoise(uint64_t seed, uint64_t sample, int64_t step, std::span<float> noise);

// Every backend that EngineOptions may name, and every solver that a request may, `auto` included;
// for validation, metric labels and help.
std::span<const std::string_view> BackendNames();
std::span<const std::string_view> SolverNames();

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_ENGINE_H_
