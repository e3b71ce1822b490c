// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_OBSERVE_METHOD_H_
#define DEEPPCR_SERVER_OBSERVE_METHOD_H_

// RPC methods, as label `method` of metrics, in logs and in traces.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace deeppcr {

// The methods of deeppcr.v1.DeepPcr that clients call, and of the v2 protocol. A new one takes a
// row of kMethodNames.
enum class Method : uint8_t {
  kForward,
  kGenerate,
  kStreamGenerate,
  kCompare,
  kGradient,
  kStreamGradient,
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
  kLogSettings,
};

struct MethodName {
  Method method;
  std::string_view name;
};
inline constexpr auto kMethodNames = std::to_array<MethodName>({
    {Method::kForward, "Forward"},
    {Method::kGenerate, "Generate"},
    {Method::kStreamGenerate, "StreamGenerate"},
    {Method::kCompare, "Compare"},
    {Method::kGradient, "Gradient"},
    {Method::kStreamGradient, "StreamGradient"},
    {Method::kListModels, "ListModels"},
    {Method::kGetModel, "GetModel"},
    {Method::kLoadModel, "LoadModel"},
    {Method::kUnloadModel, "UnloadModel"},
    {Method::kModelInfer, "ModelInfer"},
    {Method::kModelStreamInfer, "ModelStreamInfer"},
    {Method::kModelReady, "ModelReady"},
    {Method::kModelMetadata, "ModelMetadata"},
    {Method::kModelConfig, "ModelConfig"},
    {Method::kModelStatistics, "ModelStatistics"},
    {Method::kRepositoryIndex, "RepositoryIndex"},
    {Method::kRepositoryModelLoad, "RepositoryModelLoad"},
    {Method::kRepositoryModelUnload, "RepositoryModelUnload"},
    {Method::kLogSettings, "LogSettings"},
});
static_assert([] {
  for (size_t i = 0; i < kMethodNames.size(); ++i)
    if (kMethodNames[i].method != static_cast<Method>(i)) return false;
  return kMethodNames.back().method == Method::kLogSettings;
}());

constexpr std::string_view NameOf(Method method) {
  return kMethodNames[static_cast<size_t>(method)].name;
}

// The service of gRPC that has the method.
constexpr std::string_view ServiceOf(Method method) {
  return method < Method::kModelInfer ? "deeppcr.v1.DeepPcr" : "inference.GRPCInferenceService";
}

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_OBSERVE_METHOD_H_
