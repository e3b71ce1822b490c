// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_V2_SERVICE_H_
#define DEEPPCR_SERVER_RPC_V2_SERVICE_H_

// The methods of inference.GRPCInferenceService: thin, as those of service.h.

#include "inference/grpc_service.grpc.pb.h"
#include "server/rpc/service.h"

namespace deeppcr {

using V2 = inference::GRPCInferenceService;
using RawV2Server = V2::WithRawCallbackMethod_ServerLive<
    V2::WithRawCallbackMethod_ServerReady<V2::WithRawCallbackMethod_ServerMetadata<V2::Service>>>;
using RawV2Models = V2::WithRawCallbackMethod_ModelReady<V2::WithRawCallbackMethod_ModelMetadata<
    V2::WithRawCallbackMethod_ModelConfig<V2::WithRawCallbackMethod_ModelStatistics<RawV2Server>>>>;
using RawV2Inference =
    V2::WithRawMethod_ModelInfer<V2::WithRawCallbackMethod_ModelStreamInfer<RawV2Models>>;
using RawV2Repository =
    V2::WithRawCallbackMethod_RepositoryIndex<V2::WithRawCallbackMethod_RepositoryModelLoad<
        V2::WithRawCallbackMethod_RepositoryModelUnload<RawV2Inference>>>;
using RawV2SystemMemory = V2::WithRawCallbackMethod_SystemSharedMemoryStatus<
    V2::WithRawCallbackMethod_SystemSharedMemoryRegister<
        V2::WithRawCallbackMethod_SystemSharedMemoryUnregister<RawV2Repository>>>;
using RawV2CudaMemory = V2::WithRawCallbackMethod_CudaSharedMemoryStatus<
    V2::WithRawCallbackMethod_CudaSharedMemoryRegister<
        V2::WithRawCallbackMethod_CudaSharedMemoryUnregister<RawV2SystemMemory>>>;
using RawV2Service =
    V2::WithRawCallbackMethod_TraceSetting<V2::WithRawCallbackMethod_LogSettings<RawV2CudaMemory>>;

class V2Service final : public RawV2Service {
 public:
  using Reactor = grpc::ServerUnaryReactor;
  using Rpc = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;

  explicit V2Service(ServiceContext& context) : context_(context) {}

  // ModelInfer.
  std::vector<QueuedMethod> QueuedMethods();

  Reactor* ServerLive(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept override;
  Reactor* ServerReady(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept override;
  Reactor* ModelReady(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept override;
  Reactor* ServerMetadata(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept override;
  Reactor* ModelMetadata(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept override;
  grpc::ServerBidiReactor<Bytes, Bytes>* ModelStreamInfer(Rpc* rpc) noexcept override;
  Reactor* ModelConfig(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept override;
  Reactor* ModelStatistics(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept override;
  Reactor* RepositoryIndex(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept override;
  Reactor* RepositoryModelLoad(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept override;
  Reactor* RepositoryModelUnload(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept override;
  Reactor* LogSettings(Rpc* rpc, const Bytes* request, Bytes* reply) noexcept override;

  Reactor* SystemSharedMemoryStatus(Rpc* rpc, const Bytes*, Bytes*) noexcept override;
  Reactor* SystemSharedMemoryRegister(Rpc* rpc, const Bytes*, Bytes*) noexcept override;
  Reactor* SystemSharedMemoryUnregister(Rpc* rpc, const Bytes*, Bytes*) noexcept override;
  Reactor* CudaSharedMemoryStatus(Rpc* rpc, const Bytes*, Bytes*) noexcept override;
  Reactor* CudaSharedMemoryRegister(Rpc* rpc, const Bytes*, Bytes*) noexcept override;
  Reactor* CudaSharedMemoryUnregister(Rpc* rpc, const Bytes*, Bytes*) noexcept override;
  Reactor* TraceSetting(Rpc* rpc, const Bytes*, Bytes*) noexcept override;

 private:
  ServiceContext& context_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_V2_SERVICE_H_
