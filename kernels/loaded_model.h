// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_LOADED_MODEL_H_
#define DEEPPCR_KERNELS_LOADED_MODEL_H_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend/registry.h"
#include "kernels/base/memory_budget.h"
#include "kernels/base/thread_pool.h"
#include "kernels/engine.h"
#include "kernels/model/model.h"

namespace deeppcr {

// Context that the engine lends to every model that it loads.
struct LoadContext {
  std::span<const SelectedBackend> backends;  // in the order in which they are tried
  ThreadPool* pool = nullptr;
  const EngineOptions* options = nullptr;
  std::shared_ptr<MemoryBudget> budget;  // of all models; may be null
  MemoryShare* reading = nullptr;        // of the model as it was read; may be null
  LoadProgress progress;
  const CancelToken* token = nullptr;    // may be null
  std::optional<std::string> plan_json;  // text of the model's plan.json, if there is one
  std::span<const std::shared_ptr<const LoadedModel>> loaded;  // models whose plans may serve
};

// Packs a model for the first backend that has code for it, calibrates it, and finds its plan.
// Backends, pool and options must outlive the result. Errors: as Engine::LoadModel.
absl::StatusOr<std::shared_ptr<const LoadedModel>> PrepareModel(Model model,
                                                                const LoadContext& context);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_LOADED_MODEL_H_
