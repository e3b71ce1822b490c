// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_OBSERVE_METHOD_H_
#define DEEPPCR_SERVER_OBSERVE_METHOD_H_

// RPC methods, as label `method` of metrics, in logs and in traces.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace deeppcr {

// The methods of deeppcr.v1.DeepPcr that clients call, and of the v2 protocol. A new one takes its
// name at the same place of kMethodNames.
enum class Method : uint8_t {
  kForward,
  kGenerate,
  kStreamGenerate,
  kCompare,
  kListModels,
  kGetModel,
  kLoadModel,
  kUnloadModel,
  // The methods of inference.GRPCInferenceService.
  kModelInfer,
  kModelStreamInfer,
  kModelReady,
  kModelMetadata,
  kModelConfig,
  kModelStatistics,
  kRepositoryIndex,
  kRepositoryModelLoad,
  kRepositoryModelUnload,
};
inline constexpr auto kMethodNames = std::to_array<std::string_view>({
    "Forward",
    "Generate",
    "StreamGenerate",
    "Compare",
    "ListModels",
    "GetModel",
    "LoadModel",
    "UnloadModel",
    "ModelInfer",
    "ModelStreamInfer",
    "ModelReady",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
});
static_assert(kMethodNames.size() == static_cast<size_t>(Method::kRepositoryModelUnload) + 1);

constexpr std::string_view NameOf(Method method) {
  return kMethodNames[static_cast<size_t>(method)];
}

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_OBSERVE_METHOD_H_
