// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BACKEND_REGISTRY_H_
#define DEEPPCR_KERNELS_BACKEND_REGISTRY_H_

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/cost_rates.h"

namespace deeppcr {

// One row per backend, fastest first. No other source knows which backends exist.
struct BackendRow {
  std::string_view name;
  // Whether "auto" takes the backend: for every model, for models that no backend before it runs,
  // or for none.
  enum class Automatic { kYes, kNotFirst, kNever } automatic;
  const char* why_not;  // null for kYes
  absl::StatusOr<std::unique_ptr<Backend>> (*create)();
  CostRates rates;
  // Whether each load checks the model against a backend that is not checked: what a GPU computes
  // depends on its driver and its libraries, which no test of ours has seen.
  bool self_check = false;
};
std::span<const BackendRow> Backends();

struct SelectedBackend {
  std::unique_ptr<Backend> backend;
  CostRates rates;
  // Backends that models are checked against, in the order in which they are tried; empty: models
  // are not checked.
  std::vector<std::shared_ptr<const Backend>> oracles = {};
};

// Backends that a model may run on, in the order in which they are tried.
struct SelectedBackends {
  std::vector<SelectedBackend> backends;  // at least one
  std::string reason;                     // why the first is the first, in a sentence
};

// The backend of this name, or for "auto" those that can run here. DEEPPCR_FORCE_BACKEND in the
// environment takes the place of "auto". Errors: kInvalidArgument (unknown name, the known ones
// listed); kUnavailable (cannot run here, and why).
absl::StatusOr<SelectedBackends> SelectBackends(std::string_view name);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BACKEND_REGISTRY_H_
