// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_V2_SERVICE_H_
#define DEEPPCR_SERVER_RPC_V2_SERVICE_H_

// The methods of inference.GRPCInferenceService: thin, as those of service.h.

#include "inference/grpc_service.grpc.pb.h"
#include "server/rpc/service.h"

namespace deeppcr {

using V2 = inference::GRPCInferenceService;
using RawV2Server = V2::WithRawMethod_ServerLive<
    V2::WithRawMethod_ServerReady<V2::WithRawMethod_ServerMetadata<V2::Service>>>;
using RawV2Models = V2::WithRawMethod_ModelReady<V2::WithRawMethod_ModelMetadata<
    V2::WithRawMethod_ModelConfig<V2::WithRawMethod_ModelStatistics<RawV2Server>>>>;
using RawV2Inference =
    V2::WithRawMethod_ModelInfer<V2::WithRawMethod_ModelStreamInfer<RawV2Models>>;
using RawV2Repository = V2::WithRawMethod_RepositoryIndex<
    V2::WithRawMethod_RepositoryModelLoad<V2::WithRawMethod_RepositoryModelUnload<RawV2Inference>>>;
using RawV2SystemMemory =
    V2::WithRawMethod_SystemSharedMemoryStatus<V2::WithRawMethod_SystemSharedMemoryRegister<
        V2::WithRawMethod_SystemSharedMemoryUnregister<RawV2Repository>>>;
using RawV2CudaMemory =
    V2::WithRawMethod_CudaSharedMemoryStatus<V2::WithRawMethod_CudaSharedMemoryRegister<
        V2::WithRawMethod_CudaSharedMemoryUnregister<RawV2SystemMemory>>>;
using RawV2Service = V2::WithRawMethod_TraceSetting<V2::WithRawMethod_LogSettings<RawV2CudaMemory>>;

class V2Service final : public RawV2Service {
 public:
  explicit V2Service(ServiceContext& context) : context_(context) {}

  std::vector<QueuedMethod> Methods();

 private:
  // Methods that tell of the server, of models, of the repository; and those that there are not.
  std::vector<QueuedMethod> ServerMethods();
  std::vector<QueuedMethod> ModelMethods();
  std::vector<QueuedMethod> RepositoryMethods();
  std::vector<QueuedMethod> MissingMethods();

  ServiceContext& context_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_V2_SERVICE_H_
