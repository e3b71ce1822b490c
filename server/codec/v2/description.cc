// SPDX-License-Identifier: Apache-2.0
#include "server/codec/v2/description.h"

#include <algorithm>
#include <string>
#include <vector>

#include "server/codec/v2/request.h"

namespace deeppcr {
namespace {

// A tensor of a request or a reply.
struct Slot {
  std::string_view name;
  inference::DataType type;
  int64_t extent;  // values per sample
  bool optional;
};

// The inputs, and below the outputs, that a client may be expected to know; states and noise of
// whole trajectories are for clients that know of them.
std::vector<Slot> InputsOf(const ModelInfo& info) {
  if (!info.generates()) return {{"inputs", inference::TYPE_FP32, info.input_dim, false}};
  std::vector<Slot> inputs;
  if (info.input_dim > 0)
    inputs.push_back({"conditioning", inference::TYPE_FP32, info.input_dim, false});
  if (info.num_classes > 0) inputs.push_back({"class_labels", inference::TYPE_INT32, 1, true});
  inputs.push_back({"initial_noise", inference::TYPE_FP32, info.sample_dim(), true});
  return inputs;
}

std::vector<Slot> OutputsOf(const ModelInfo& info) {
  std::vector<Slot> outputs;
  for (const V2Output output : DefaultOutputs(info))
    outputs.push_back({NameOf(output, info), inference::TYPE_FP32,
                       output == V2Output::kValues ? info.output_dim : info.state_dim, false});
  return outputs;
}

void FillTensor(const Slot& slot, inference::ModelMetadataResponse::TensorMetadata* to) {
  to->set_name(std::string(slot.name));
  to->set_datatype(slot.type == inference::TYPE_INT32 ? "INT32" : "FP32");
  to->add_shape(-1);
  to->add_shape(slot.extent);
}

std::string PlatformOf(const ModelInfo& info) { return "deeppcr_" + info.model_type; }

void FillDuration(const DurationCount& from, inference::StatisticDuration* to) {
  to->set_count(from.count);
  to->set_ns(from.nanoseconds);
}

// InferStatistics and InferBatchStatistics have the same three fields.
template <typename Message>
void FillStages(const StageCounts& from, Message* to) {
  FillDuration(from.input, to->mutable_compute_input());
  FillDuration(from.infer, to->mutable_compute_infer());
  FillDuration(from.output, to->mutable_compute_output());
}

void FillInference(const InferenceStatistics::Snapshot& from, inference::InferStatistics* to) {
  FillDuration(from.success, to->mutable_success());
  FillDuration(from.fail, to->mutable_fail());
  FillDuration(from.queue, to->mutable_queue());
  FillStages(from.stages, to);
}

std::string_view StateName(ModelState state) {
  switch (state) {
    case ModelState::kReady:
      return "READY";
    case ModelState::kLoading:
      return "LOADING";
    case ModelState::kUnloading:
      return "UNLOADING";
    default:
      return "UNAVAILABLE";
  }
}

void FillPolicy(const VersionPolicy& versions, inference::ModelVersionPolicy* policy) {
  if (!versions.specific.empty()) {
    for (const int64_t each : versions.specific) policy->mutable_specific()->add_versions(each);
  } else if (versions.latest == VersionPolicy::kAll) {
    policy->mutable_all();
  } else {
    policy->mutable_latest()->set_num_versions(
        static_cast<uint32_t>(std::min<int64_t>(versions.latest, UINT32_MAX)));
  }
}

}  // namespace

void FillServer(std::string_view version, inference::ServerMetadataResponse* reply) {
  reply->set_name("deeppcr-serve");
  reply->set_version(std::string(version));
  for (const char* extension :
       {"model_repository", "model_configuration", "statistics", "parameters"})
    reply->add_extensions(extension);
}

void FillMetadata(const ServedModel& model, std::span<const ModelStatus> all,
                  inference::ModelMetadataResponse* reply) {
  const ModelInfo& info = model.model->info();
  reply->set_name(model.name);
  for (const ModelStatus& status : all) {
    if (status.name == model.name && status.model != nullptr)
      reply->add_versions(std::to_string(status.version));
  }
  reply->set_platform(PlatformOf(info));
  for (const Slot& slot : InputsOf(info)) FillTensor(slot, reply->add_inputs());
  for (const Slot& slot : OutputsOf(info)) FillTensor(slot, reply->add_outputs());
}

void FillConfig(const ServedModel& model, const ScheduleOptions& for_all,
                const VersionPolicy& versions, inference::ModelConfig* config) {
  const ScheduleOptions schedule = OptionsFor(model, for_all);
  const ModelInfo& info = model.model->info();
  config->set_name(model.name);
  config->set_platform(PlatformOf(info));
  config->set_backend("deeppcr");
  FillPolicy(versions, config->mutable_version_policy());
  config->set_max_batch_size(info.max_batch_size);
  for (const Slot& slot : InputsOf(info)) {
    inference::ModelInput* input = config->add_input();
    input->set_name(std::string(slot.name));
    input->set_data_type(slot.type);
    input->add_dims(slot.extent);
    input->set_optional(slot.optional);
  }
  for (const Slot& slot : OutputsOf(info)) {
    inference::ModelOutput* output = config->add_output();
    output->set_name(std::string(slot.name));
    output->set_data_type(slot.type);
    output->add_dims(slot.extent);
  }
  inference::ModelInstanceGroup* group = config->add_instance_group();
  group->set_name(model.name);
  group->set_count(schedule.max_instances > 0 ? std::min(schedule.max_instances, schedule.workers)
                                              : schedule.workers);
  group->set_kind(info.on_gpu ? inference::ModelInstanceGroup::KIND_GPU
                              : inference::ModelInstanceGroup::KIND_CPU);
  config->set_default_model_filename("model.safetensors");
  config->mutable_dynamic_batching()->set_max_queue_delay_microseconds(
      static_cast<uint64_t>(schedule.max_delay.count()));
  config->mutable_model_transaction_policy()->set_decoupled(false);
  (*config->mutable_parameters())["config.json"].set_string_value(info.config_json);
  // Tools ask for every output that a description has: what only some clients want is no part of
  // it.
  if (model.model->FindForGradients({}, 0, 1)->backward_limits() != nullptr)
    (*config->mutable_parameters())["gradients"].set_string_value("true");
}

void FillStatistics(const ServedModel& model, inference::ModelStatistics* statistics) {
  const InferenceStatistics::Snapshot snapshot = model.metrics->statistics.Read();
  statistics->set_name(model.name);
  statistics->set_version(std::to_string(model.version));
  statistics->set_last_inference(snapshot.last_inference_ms);
  statistics->set_inference_count(snapshot.inference_count);
  statistics->set_execution_count(snapshot.execution_count);
  FillInference(snapshot, statistics->mutable_inference_stats());
  for (const auto& [samples, stages] : snapshot.batches) {
    inference::InferBatchStatistics* batch = statistics->add_batch_stats();
    batch->set_batch_size(static_cast<uint64_t>(samples));
    FillStages(stages, batch);
  }
  inference::MemoryUsage* memory = statistics->add_memory_usage();
  const ModelInfo& info = model.model->info();
  memory->set_type(info.on_gpu ? "GPU" : "CPU");
  memory->set_byte_size(static_cast<uint64_t>(model.model->memory_bytes()));
}

void FillIndex(std::span<const ModelStatus> all, bool ready,
               inference::RepositoryIndexResponse* reply) {
  for (const ModelStatus& status : all) {
    if (ready && status.model == nullptr) continue;
    auto* model = reply->add_models();
    model->set_name(status.name);
    if (status.version > 0) model->set_version(std::to_string(status.version));
    model->set_state(std::string(StateName(status.state)));
    model->set_reason(status.reason);
  }
}

}  // namespace deeppcr
