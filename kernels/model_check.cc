// SPDX-License-Identifier: Apache-2.0
#include "kernels/model_check.h"

#include <algorithm>
#include <memory>

#include "kernels/backend/registry.h"
#include "kernels/base/problems.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/prepared_system.h"

namespace deeppcr {
namespace {

absl::Status PackOne(const Backend& backend, const SystemSpec& spec, const EngineOptions& options,
                     int64_t count, const PackingLimits& limits, int64_t* packed_bytes) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::unique_ptr<System> system, backend.NewSystem(spec, limits));
  *packed_bytes += system->memory_bytes();
  return ChooseSpaceLimits(*system, ShapeOf(spec).num_steps, options.max_workspace_bytes / count)
      .status();
}

}  // namespace

std::vector<std::string> ProblemsOfSystems(const Model& model, const EngineOptions& options) {
  std::vector<std::string> said;
  const auto say = [&](const absl::Status& status) {
    const std::string text(ToStd(status.message()));
    if (!status.ok() && std::ranges::find(said, text) == said.end()) said.push_back(text);
  };
  const absl::StatusOr<SelectedBackends> cpu = SelectBackends("cpu");
  if (!cpu.ok()) {
    say(cpu.status());
    return said;
  }
  int64_t packed_bytes = 0;
  for (const SystemSpec& spec : model.systems) {
    Problems problems(true);
    const PackingLimits limits = {
        .max_bytes = kMaxPackedCopies * options.max_model_bytes - packed_bytes,
        .all_problems = &problems,
        .advice = AdviceOnSize(model)};
    const absl::Status first = PackOne(*cpu->backends.front().backend, spec, options,
                                       std::ssize(model.systems), limits, &packed_bytes);
    for (const absl::Status& status : problems.all()) say(status);
    say(first);
  }
  return said;
}

}  // namespace deeppcr
