// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_SERVICE_H_
#define DEEPPCR_SERVER_RPC_SERVICE_H_

// The RPC methods: thin. A handler parses, validates and enqueues; a worker computes and answers,
// or, where that is quicker than waking one, the handler does. gRPC's callback threads are few and
// shared with health checks, so no handler ever blocks. None throws either: gRPC would answer in
// its place and the call would never end.

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deeppcr/v1/deeppcr.grpc.pb.h"
#include "server/models/loader_thread.h"
#include "server/models/model_store.h"
#include "server/observe/log.h"
#include "server/observe/metrics.h"
#include "server/observe/reply_watch.h"
#include "server/observe/tracer.h"
#include "server/rpc/authorizer.h"
#include "server/schedule/batcher.h"
#include "server/schedule/shadow.h"

namespace deeppcr {

// True for peers of this machine, in gRPC's notation: "ipv4:127.0.0.1:1234", "ipv6:[::1]:1234"
// (brackets may be percent-encoded), "unix:...".
bool IsLoopbackPeer(std::string_view peer);

// The objects that every call works with. All references outlive the service.
struct ServiceContext {
  ModelStore& store;
  Batcher& batcher;
  LoaderThread& loader;
  Metrics& metrics;
  ShadowSampler& shadow;
  Logger& logger;
  ReplyWatch& replies;
  const Authorizer& authorizer;
  Tracer& tracer;
  int64_t max_message_bytes = 0;
  bool allow_remote_admin = false;
  std::string_view backend;  // the engine's
  ScheduleOptions schedule;  // the batcher's
  VersionPolicies versions;

  std::atomic<bool> draining{false};  // new calls are refused; also before Start is done
  std::atomic<bool> leaving{false};   // not ready any more, whatever the models say
  std::atomic<bool> stopping{
      false};  // calls in progress are being cancelled by us, not by their clients
  std::atomic<int64_t> calls{0};       // from arrival until gRPC is rid of the reply
  std::atomic<int64_t> unanswered{0};  // from arrival until the reply is handed to gRPC
  std::atomic<int64_t> streams{0};     // open streams of many calls, however idle

  // The reasons against readiness: draining, or models that are not there.
  std::vector<std::string> Missing() const {
    return leaving.load() ? std::vector<std::string>{"the server is shutting down"}
                          : store.Missing();
  }
  bool Ready() const { return Missing().empty(); }
};

// All methods take and give bytes: requests are checked before they are parsed, see wire.h.
template <typename Base, template <typename> typename... Methods>
struct RawService {
  using Type = Base;
};
template <typename Base, template <typename> typename First, template <typename> typename... Others>
struct RawService<Base, First, Others...> {
  using Type = First<typename RawService<Base, Others...>::Type>;
};
using RawDeepPcrService = RawService<
    v1::DeepPcr::Service, v1::DeepPcr::WithRawCallbackMethod_Forward,
    v1::DeepPcr::WithRawCallbackMethod_Generate, v1::DeepPcr::WithRawCallbackMethod_StreamGenerate,
    v1::DeepPcr::WithRawCallbackMethod_Compare, v1::DeepPcr::WithRawCallbackMethod_ListModels,
    v1::DeepPcr::WithRawCallbackMethod_GetModel, v1::DeepPcr::WithRawCallbackMethod_LoadModel,
    v1::DeepPcr::WithRawCallbackMethod_UnloadModel>::Type;

class DeepPcrService final : public RawDeepPcrService {
 public:
  using Reactor = grpc::ServerUnaryReactor;
  using Rpc = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;

  explicit DeepPcrService(ServiceContext& context) : context_(context) {}

  Reactor* Forward(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept override;
  Reactor* Generate(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept override;
  grpc::ServerWriteReactor<Bytes>* StreamGenerate(Rpc* rpc, const Bytes* request) noexcept override;
  Reactor* Compare(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept override;
  Reactor* ListModels(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept override;
  Reactor* GetModel(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept override;
  Reactor* LoadModel(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept override;
  Reactor* UnloadModel(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept override;

 private:
  ServiceContext& context_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_SERVICE_H_
