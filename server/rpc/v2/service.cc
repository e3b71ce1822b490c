// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/v2/service.h"

#include <algorithm>
#include <iterator>
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

// A method that tells of the server to whoever asks: fill(&reply).
template <typename Reply, typename Request, typename Fill>
QueuedMethod QueuePlain(V2Service* service, Request request, Fill fill) {
  return Queued(service, request, [fill](UnaryCallOfQueue* call) {
    Reply reply;
    fill(&reply);
    call->FinishWith(Serialize(reply));
  });
}

template <typename Request>
QueuedMethod QueueMissing(V2Service* service, Request request, const char* why) {
  return Queued(service, request, [why](UnaryCallOfQueue* call) {
    call->Finish({grpc::StatusCode::UNIMPLEMENTED, why});
  });
}

}  // namespace

std::vector<QueuedMethod> V2Service::Methods() {
  std::vector<QueuedMethod> methods = {
      QueueSolve<InferMethod>(context_, this, &V2Service::RequestModelInfer),
      Queued(this, &V2Service::RequestModelStreamInfer,
             [this](DuplexOfQueue* call) { (new V2Stream(context_, call))->Start(); })};
  for (auto group : {&V2Service::ServerMethods, &V2Service::ModelMethods,
                     &V2Service::RepositoryMethods, &V2Service::MissingMethods})
    std::ranges::move((this->*group)(), std::back_inserter(methods));
  return methods;
}

std::vector<QueuedMethod> V2Service::ServerMethods() {
  using S = V2Service;
  const auto set_log = [this](const auto& wanted, auto* answer) -> absl::Status {
    Logger& logger = context_.logger;
    DEEPPCR_ASSIGN_OR_RETURN(const LogLevel level, DecodeLogSettings(wanted, logger.level()));
    if (level != logger.level()) logger.SetLevel(level);
    FillLogSettings(level, answer);
    return absl::OkStatus();
  };
  const auto change_log = [this, set_log](UnaryCallOfQueue* call) {
    using LogCall = ImmediateCall<inference::LogSettingsRequest, inference::LogSettingsResponse>;
    call->MayTakeLong();
    (new LogCall(context_, Method::kLogSettings, call))->StartAdmin(set_log);
  };
  return {
      QueuePlain<inference::ServerLiveResponse>(this, &S::RequestServerLive,
                                                [](auto* reply) { reply->set_live(true); }),
      QueuePlain<inference::ServerReadyResponse>(
          this, &S::RequestServerReady,
          [this](auto* reply) { reply->set_ready(context_.Ready()); }),
      QueuePlain<inference::ServerMetadataResponse>(
          this, &S::RequestServerMetadata, [](auto* reply) { FillServer(DEEPPCR_VERSION, reply); }),
      Queued(this, &S::RequestLogSettings, change_log)};
}

std::vector<QueuedMethod> V2Service::ModelMethods() {
  using S = V2Service;
  const auto is_ready = [this](const auto& wanted, auto* answer) -> absl::Status {
    const auto model = FindNamed(context_.store, wanted);
    if (absl::IsInvalidArgument(model.status())) return model.status();
    answer->set_ready(model.ok() && !context_.leaving.load());
    return absl::OkStatus();
  };
  const auto tell_ready = [this, is_ready](UnaryCallOfQueue* call) {
    auto* const ready =
        new ImmediateCall<inference::ModelReadyRequest, inference::ModelReadyResponse>(
            context_, Method::kModelReady, call);
    ready->AnswerWhileDraining();
    ready->Start(is_ready);
  };
  const auto metadata = [this](const auto& wanted, auto* answer) -> absl::Status {
    DEEPPCR_ASSIGN_OR_RETURN(const auto model, FindNamed(context_.store, wanted));
    FillMetadata(*model, context_.store.List(), answer);
    return absl::OkStatus();
  };
  const auto config = [this](const auto& wanted, auto* answer) -> absl::Status {
    DEEPPCR_ASSIGN_OR_RETURN(const auto model, FindNamed(context_.store, wanted));
    FillConfig(*model, context_.schedule, context_.versions.For(model->name),
               answer->mutable_config());
    return absl::OkStatus();
  };
  const auto statistics = [this](const auto& wanted, auto* answer) -> absl::Status {
    DEEPPCR_ASSIGN_OR_RETURN(const auto models, FindAll(context_.store, wanted));
    for (const auto& model : models) FillStatistics(*model, answer->add_model_stats());
    return absl::OkStatus();
  };
  return {
      Queued(this, &S::RequestModelReady, tell_ready),
      QueueSmall<ImmediateCall<inference::ModelMetadataRequest, inference::ModelMetadataResponse>>(
          context_, Method::kModelMetadata, this, &S::RequestModelMetadata, metadata),
      QueueSmall<ImmediateCall<inference::ModelConfigRequest, inference::ModelConfigResponse>>(
          context_, Method::kModelConfig, this, &S::RequestModelConfig, config),
      QueueSmall<
          ImmediateCall<inference::ModelStatisticsRequest, inference::ModelStatisticsResponse>>(
          context_, Method::kModelStatistics, this, &S::RequestModelStatistics, statistics)};
}

std::vector<QueuedMethod> V2Service::RepositoryMethods() {
  using S = V2Service;
  const auto list = [this](const auto& wanted, auto* answer) -> absl::Status {
    DEEPPCR_RETURN_IF_ERROR(CheckRepository(wanted.repository_name()));
    FillIndex(context_.store.List(), wanted.ready(), answer);
    return absl::OkStatus();
  };
  const auto load = [this](const auto& wanted, auto*) -> absl::Status {
    DEEPPCR_RETURN_IF_ERROR(CheckAdmin(wanted));
    return context_.store.Load(wanted.model_name(), 0).status();
  };
  const auto unload = [this](const auto& wanted, auto*) -> absl::Status {
    DEEPPCR_RETURN_IF_ERROR(CheckAdmin(wanted));
    return context_.store.Unload(wanted.model_name(), 0);
  };
  return {
      QueueSmall<
          ImmediateCall<inference::RepositoryIndexRequest, inference::RepositoryIndexResponse>>(
          context_, Method::kRepositoryIndex, this, &S::RequestRepositoryIndex, list),
      QueueSmall<
          AdminCall<inference::RepositoryModelLoadRequest, inference::RepositoryModelLoadResponse>>(
          context_, Method::kRepositoryModelLoad, this, &S::RequestRepositoryModelLoad, load),
      QueueSmall<AdminCall<inference::RepositoryModelUnloadRequest,
                           inference::RepositoryModelUnloadResponse>>(
          context_, Method::kRepositoryModelUnload, this, &S::RequestRepositoryModelUnload,
          unload)};
}

std::vector<QueuedMethod> V2Service::MissingMethods() {
  using S = V2Service;
  return {QueueMissing(this, &S::RequestSystemSharedMemoryStatus, kNoSharedMemory),
          QueueMissing(this, &S::RequestSystemSharedMemoryRegister, kNoSharedMemory),
          QueueMissing(this, &S::RequestSystemSharedMemoryUnregister, kNoSharedMemory),
          QueueMissing(this, &S::RequestCudaSharedMemoryStatus, kNoSharedMemory),
          QueueMissing(this, &S::RequestCudaSharedMemoryRegister, kNoSharedMemory),
          QueueMissing(this, &S::RequestCudaSharedMemoryUnregister, kNoSharedMemory),
          QueueMissing(this, &S::RequestTraceSetting,
                       "tracing is set where the server is started, not by its clients")};
}

}  // namespace deeppcr
