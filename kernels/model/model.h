// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_MODEL_H_
#define DEEPPCR_KERNELS_MODEL_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/cancel_token.h"
#include "kernels/base/memory_budget.h"
#include "kernels/base/problems.h"
#include "kernels/model/config.h"
#include "kernels/model/parameter_model.h"
#include "kernels/model/scheduler_config.h"
#include "kernels/model/weights.h"
#include "kernels/problem/spec.h"
#include "kernels/problem/system_key.h"
#include "kernels/program/program.h"

namespace deeppcr {

namespace program {
struct OnnxGraph;
}

struct ModelLimits {
  int64_t max_weights_bytes = int64_t{1} << 30;
  int64_t max_config_bytes = int64_t{1} << 20;
  const CancelToken* token = nullptr;  // may be null; fired: kCancelled
  // Set: what is read is counted in here before it is allocated, but for the files themselves,
  // which are counted beside it for as long as they are there.
  MemoryShare* memory = nullptr;
  // Read a model whose steps are a program with Model::parameters, which takes its weights twice.
  bool parameters = false;
  // Set: readers of one file go on after an error and leave here all that they found.
  Problems* all_problems = nullptr;
  // Set: receives the listing of what denoiser.onnx or block.onnx was compiled to.
  std::string* listing = nullptr;
  // Set: receives what is no error, but what the files' author may not have meant.
  std::vector<std::string>* notes = nullptr;

  // Counts in so many bytes more. Errors: those of MemoryShare::Set.
  absl::Status Take(int64_t bytes) const {
    return memory == nullptr ? absl::OkStatus() : memory->Add(bytes);
  }
  // For what is not kept.
  MemoryShare Another() const { return memory == nullptr ? MemoryShare() : memory->Another(); }
};

// Tables of a diffusion model for one number of inference steps L.
struct StepTables {
  std::vector<ReverseStep> steps;  // [L]
  double clip_range = 0;           // above 0; infinity if samples are not clipped
  float initial_scale = 1.0F;      // of the noise that z_0 is
  SamplerForm form;
  std::vector<double> time_embedding;  // [L, H]
};

// Weights and biases of a layer, or of one layer after another.
struct LayerStorage {
  std::vector<float> weight, bias;
};

// Storage of the spans of the systems of a diffusion model. denoiser_tensors.h says which tensors
// go where.
struct DiffusionStorage {
  LayerStorage input, time_first, time_second, class_embedding, condition;
  LayerStorage first, second, norm, modulation, output;
  std::vector<LayerStorage> decoder_layers;
  std::vector<DenseSpec> decoder;                   // over decoder_layers
  std::vector<StepTables> tables;                   // one per entry of num_inference_steps
  std::optional<StepTables> step_table;             // of step_table.safetensors
  SamplerForm form;                                 // of the step table or the scheduler
  std::unique_ptr<const program::Program> program;  // of denoiser.onnx; null: a named denoiser
  bool integer_time = false;                        // the time input of denoiser.onnx is an integer
};

// Storage of a stack of blocks.
struct StackStorage {
  std::shared_ptr<const program::OnnxGraph> graph;  // of block.onnx; null once it is compiled
  DenseSpec encode, decode;
  // Stacked weights, [L, ..] each, by the initialiser's name.
  std::map<std::string, std::shared_ptr<const std::vector<float>>> weights;
  std::unique_ptr<const program::Program> program;
};

// A model as read from its directory: everything validated, everything finite, float32.
// `systems` point into the other members, so a Model moves but is never copied.
struct Model {
  Model() = default;
  Model(Model&&) = default;
  Model& operator=(Model&&) = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  ModelConfig config;
  std::string config_json;     // the file as it is
  SchedulerConfig scheduler;   // for families with a scheduler_config.json
  std::string scheduler_file;  // the file as it is, or step_table.safetensors; or empty
  // SHA-256 in lower-case hex: of model.safetensors; with denoiser.onnx or block.onnx, of what it
  // was compiled to and of model.safetensors if there is one.
  std::string weights_sha256;
  // Systems for backends: a dense stack is one system, a diffusion model one per number of
  // inference steps, the default first.
  std::vector<SystemSpec> systems;
  // The largest number of steps that SystemOf makes a system of; 0: it makes none. There may be
  // more in config.json.
  int64_t max_num_steps = 0;
  // Storage of the spans of a dense stack; the outer layers of a stack of blocks too. Recurrent
  // weights that came one tensor per layer are stacked here.
  std::vector<float> weights, biases;
  std::vector<float> encode_weight, encode_bias, decode_weight, decode_bias;
  DiffusionStorage diffusion;
  StackStorage stack;
  // What a model whose steps are a program, or were one, is differentiated by; null where that was
  // not asked for, or is not possible, for the reason in `no_parameters`.
  std::shared_ptr<ParameterModel> parameters;
  std::string no_parameters;
  // Sample inputs [num_calibration, input_dim] from calibration.safetensors; may be empty.
  std::vector<float> calibration_inputs;
  int64_t num_calibration = 0;
};

// A system of a model beside those of Model::systems, and the storage of the spans that are its
// own.
struct OwnedSystem {
  std::shared_ptr<const void> storage;
  SystemSpec spec;
};

// The model's system of this name, over the weights of the model, which must outlive it. Errors:
// kInvalidArgument naming num_inference_steps, first_step or guidance_scale, what was expected,
// what came; kFailedPrecondition if the number of steps of this family is fixed; kCancelled.
absl::StatusOr<OwnedSystem> SystemOf(const Model& model, const SystemKey& key,
                                     const ModelLimits& limits);

// Bytes of the tensors and tables.
int64_t MemoryBytes(const Model& model);

// Reads <directory>/config.json, model.safetensors, scheduler_config.json or step_table.safetensors
// if the family has one, and, if there, calibration.safetensors. Allocates nothing large for sizes
// that files only claim. Errors: kNotFound (missing file), kInvalidArgument (names the file and the
// key or tensor, what was expected, what came), kResourceExhausted (larger than the limits).
absl::StatusOr<Model> ReadModel(const std::string& directory, const ModelLimits& limits);

// What ReadModel would say of a model's files, but all of it at once.
struct ModelFilesReport {
  std::vector<std::string> problems;  // one sentence each, with the file's name; empty: none
  std::string listing;                // of the program that an .onnx file was compiled to, if any
  std::vector<std::string> notes;     // one sentence each, with the file's name
  Model model;                        // where there are no problems
};
ModelFilesReport CheckModelFiles(const std::string& directory, const ModelLimits& limits);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_MODEL_H_
