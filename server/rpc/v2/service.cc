// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/v2/service.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "server/codec/v2/description.h"
#include "server/codec/v2/request.h"
#include "server/rpc/small_calls.h"
#include "server/rpc/solve_call.h"
#include "server/rpc/v2/infer_method.h"
#include "server/rpc/v2/log_settings.h"
#include "server/rpc/v2/stream.h"

namespace deeppcr {
namespace {

using Reactor = grpc::ServerUnaryReactor;

Reactor* Reply(grpc::CallbackServerContext* rpc, const google::protobuf::Message& message,
               grpc::ByteBuffer* reply) {
  grpc::ByteBuffer bytes = Serialize(message);
  reply->Swap(&bytes);
  Reactor* reactor = rpc->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

Reactor* Unimplemented(grpc::CallbackServerContext* rpc, const char* why) {
  Reactor* reactor = rpc->DefaultReactor();
  reactor->Finish({grpc::StatusCode::UNIMPLEMENTED, why});
  return reactor;
}

constexpr char kNoSharedMemory[] =
    "this server has no shared memory with its clients: send tensors in the request";

// The model that a request with `name` and `version` asks for.
template <typename Request>
absl::StatusOr<std::shared_ptr<ServedModel>> FindNamed(const ModelStore& store,
                                                       const Request& request) {
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t version, DecodeVersion(request.version()));
  DEEPPCR_RETURN_IF_ERROR(CheckModelFields(request.name(), version));
  return store.Find(request.name(), version);
}

// Every ready version that the request asks for; an error if it names a model without one.
absl::StatusOr<std::vector<std::shared_ptr<ServedModel>>> FindAll(
    const ModelStore& store, const inference::ModelStatisticsRequest& request) {
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t version, DecodeVersion(request.version()));
  if (!request.name().empty()) DEEPPCR_RETURN_IF_ERROR(FindNamed(store, request).status());
  std::vector<std::shared_ptr<ServedModel>> found;
  for (const ModelStatus& status : store.List()) {
    const bool named = request.name().empty() || status.name == request.name();
    if (named && (version == 0 || status.version == version) && status.model != nullptr)
      found.push_back(status.model);
  }
  return found;
}

absl::Status CheckRepository(const std::string& name) {
  if (name.empty()) return absl::OkStatus();
  return Mismatch("repository_name", "none: there is one repository", Quoted(name));
}

// Loads and unloads of v2 take no files and no configuration from clients.
template <typename Request>
absl::Status CheckAdmin(const Request& request) {
  DEEPPCR_RETURN_IF_ERROR(CheckRepository(request.repository_name()));
  for (const auto& [name, value] : request.parameters()) {
    if (name != "unload_dependents")
      return Mismatch("parameters",
                      "none: models are read from the server's repository, as they are there",
                      Quoted(name));
  }
  return CheckModelFields(request.model_name(), 0);
}

}  // namespace

Reactor* V2Service::ServerLive(Rpc* rpc, const Bytes*, Bytes* reply) noexcept {
  inference::ServerLiveResponse message;
  message.set_live(true);
  return Reply(rpc, message, reply);
}

Reactor* V2Service::ServerReady(Rpc* rpc, const Bytes*, Bytes* reply) noexcept {
  inference::ServerReadyResponse message;
  message.set_ready(context_.Ready());
  return Reply(rpc, message, reply);
}

Reactor* V2Service::ServerMetadata(Rpc* rpc, const Bytes*, Bytes* reply) noexcept {
  inference::ServerMetadataResponse message;
  FillServer(DEEPPCR_VERSION, &message);
  return Reply(rpc, message, reply);
}

Reactor* V2Service::ModelReady(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept {
  auto* const call = new ImmediateCall<inference::ModelReadyRequest, inference::ModelReadyResponse>(
      context_, Method::kModelReady, {rpc, request}, reply);
  Reactor* const reactor = call->reactor();
  call->AnswerWhileDraining();
  call->Start([this](const auto& wanted, auto* answer) -> absl::Status {
    const auto model = FindNamed(context_.store, wanted);
    if (absl::IsInvalidArgument(model.status())) return model.status();
    answer->set_ready(model.ok() && !context_.leaving.load());
    return absl::OkStatus();
  });
  return reactor;
}

Reactor* V2Service::ModelMetadata(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept {
  return StartUnary<
      ImmediateCall<inference::ModelMetadataRequest, inference::ModelMetadataResponse>>(
      context_, Method::kModelMetadata, {rpc, request}, reply,
      [this](const auto& wanted, auto* answer) -> absl::Status {
        DEEPPCR_ASSIGN_OR_RETURN(const auto model, FindNamed(context_.store, wanted));
        FillMetadata(*model, context_.store.List(), answer);
        return absl::OkStatus();
      });
}

Reactor* V2Service::ModelConfig(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept {
  return StartUnary<ImmediateCall<inference::ModelConfigRequest, inference::ModelConfigResponse>>(
      context_, Method::kModelConfig, {rpc, request}, reply,
      [this](const auto& wanted, auto* answer) -> absl::Status {
        DEEPPCR_ASSIGN_OR_RETURN(const auto model, FindNamed(context_.store, wanted));
        FillConfig(*model, context_.schedule, context_.versions.For(model->name),
                   answer->mutable_config());
        return absl::OkStatus();
      });
}

Reactor* V2Service::ModelStatistics(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept {
  return StartUnary<
      ImmediateCall<inference::ModelStatisticsRequest, inference::ModelStatisticsResponse>>(
      context_, Method::kModelStatistics, {rpc, request}, reply,
      [this](const auto& wanted, auto* answer) -> absl::Status {
        DEEPPCR_ASSIGN_OR_RETURN(const auto models, FindAll(context_.store, wanted));
        for (const auto& model : models) FillStatistics(*model, answer->add_model_stats());
        return absl::OkStatus();
      });
}

Reactor* V2Service::RepositoryIndex(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept {
  return StartUnary<
      ImmediateCall<inference::RepositoryIndexRequest, inference::RepositoryIndexResponse>>(
      context_, Method::kRepositoryIndex, {rpc, request}, reply,
      [this](const auto& wanted, auto* answer) -> absl::Status {
        DEEPPCR_RETURN_IF_ERROR(CheckRepository(wanted.repository_name()));
        FillIndex(context_.store.List(), wanted.ready(), answer);
        return absl::OkStatus();
      });
}

Reactor* V2Service::RepositoryModelLoad(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept {
  return StartUnary<
      AdminCall<inference::RepositoryModelLoadRequest, inference::RepositoryModelLoadResponse>>(
      context_, Method::kRepositoryModelLoad, {rpc, request}, reply,
      [this](const auto& wanted, auto*) -> absl::Status {
        DEEPPCR_RETURN_IF_ERROR(CheckAdmin(wanted));
        return context_.store.Load(wanted.model_name(), 0).status();
      });
}

Reactor* V2Service::RepositoryModelUnload(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept {
  return StartUnary<
      AdminCall<inference::RepositoryModelUnloadRequest, inference::RepositoryModelUnloadResponse>>(
      context_, Method::kRepositoryModelUnload, {rpc, request}, reply,
      [this](const auto& wanted, auto*) -> absl::Status {
        DEEPPCR_RETURN_IF_ERROR(CheckAdmin(wanted));
        return context_.store.Unload(wanted.model_name(), 0);
      });
}

std::vector<QueuedMethod> V2Service::QueuedMethods() {
  return {QueueSolve<InferMethod>(context_, std::bind_front(&V2Service::RequestModelInfer, this))};
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* V2Service::ModelStreamInfer(
    Rpc* rpc) noexcept {
  return new V2Stream(context_, rpc);
}

Reactor* V2Service::SystemSharedMemoryStatus(Rpc* rpc, const Bytes*, Bytes*) noexcept {
  return Unimplemented(rpc, kNoSharedMemory);
}
Reactor* V2Service::SystemSharedMemoryRegister(Rpc* rpc, const Bytes*, Bytes*) noexcept {
  return Unimplemented(rpc, kNoSharedMemory);
}
Reactor* V2Service::SystemSharedMemoryUnregister(Rpc* rpc, const Bytes*, Bytes*) noexcept {
  return Unimplemented(rpc, kNoSharedMemory);
}
Reactor* V2Service::CudaSharedMemoryStatus(Rpc* rpc, const Bytes*, Bytes*) noexcept {
  return Unimplemented(rpc, kNoSharedMemory);
}
Reactor* V2Service::CudaSharedMemoryRegister(Rpc* rpc, const Bytes*, Bytes*) noexcept {
  return Unimplemented(rpc, kNoSharedMemory);
}
Reactor* V2Service::CudaSharedMemoryUnregister(Rpc* rpc, const Bytes*, Bytes*) noexcept {
  return Unimplemented(rpc, kNoSharedMemory);
}
Reactor* V2Service::TraceSetting(Rpc* rpc, const Bytes*, Bytes*) noexcept {
  return Unimplemented(rpc, "tracing is set where the server is started, not by its clients");
}

Reactor* V2Service::LogSettings(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept {
  auto* const call =
      new ImmediateCall<inference::LogSettingsRequest, inference::LogSettingsResponse>(
          context_, Method::kLogSettings, {rpc, request}, reply);
  Reactor* const reactor = call->reactor();
  call->StartAdmin([this](const auto& wanted, auto* answer) -> absl::Status {
    Logger& logger = context_.logger;
    DEEPPCR_ASSIGN_OR_RETURN(const LogLevel level, DecodeLogSettings(wanted, logger.level()));
    if (level != logger.level()) logger.SetLevel(level);
    FillLogSettings(level, answer);
    return absl::OkStatus();
  });
  return reactor;
}

}  // namespace deeppcr
