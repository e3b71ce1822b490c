// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_SERVICE_H_
#define DEEPPCR_SERVER_SERVICE_H_

// The RPC methods: thin. A handler parses, validates and enqueues; a worker computes and answers.
// gRPC's callback threads are few and shared with health checks, so no handler ever blocks.

#include <atomic>
#include <cstdint>
#include <string_view>

#include "deeppcr/v1/deeppcr.grpc.pb.h"
#include "server/batcher.h"
#include "server/loader_thread.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/model_store.h"
#include "server/shadow.h"

namespace deeppcr {

// True for peers of this machine, in gRPC's notation: "ipv4:127.0.0.1:1234", "ipv6:[::1]:1234"
// (brackets may be percent-encoded), "unix:...".
bool IsLoopbackPeer(std::string_view peer);

// What every call works with. All references outlive the service.
struct ServiceContext {
  ModelStore& store;
  Batcher& batcher;
  LoaderThread& loader;
  Metrics& metrics;
  ShadowSampler& shadow;
  Logger& logger;
  int64_t max_message_bytes = 0;
  bool allow_remote_admin = false;

  std::atomic<bool> draining{false};  // new calls are refused; also before Start is done
  std::atomic<bool> stopping{
      false};  // calls in progress are being cancelled by us, not by their clients
  std::atomic<int64_t> calls{0};       // from arrival until gRPC is rid of the reply
  std::atomic<int64_t> unanswered{0};  // from arrival until the reply is handed to gRPC
};

class DeepPcrService final : public v1::DeepPcr::CallbackService {
 public:
  explicit DeepPcrService(ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* Forward(grpc::CallbackServerContext* rpc,
                                    const v1::ForwardRequest* request,
                                    v1::ForwardResponse* response) override;
  grpc::ServerUnaryReactor* Compare(grpc::CallbackServerContext* rpc,
                                    const v1::CompareRequest* request,
                                    v1::CompareResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* rpc,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* rpc,
                                     const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;
  grpc::ServerUnaryReactor* LoadModel(grpc::CallbackServerContext* rpc,
                                      const v1::LoadModelRequest* request,
                                      v1::LoadModelResponse* response) override;
  grpc::ServerUnaryReactor* UnloadModel(grpc::CallbackServerContext* rpc,
                                        const v1::UnloadModelRequest* request,
                                        v1::UnloadModelResponse* response) override;

 private:
  ServiceContext& context_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_SERVICE_H_
