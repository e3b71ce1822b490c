// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BACKEND_REGISTRY_H_
#define DEEPPCR_KERNELS_BACKEND_REGISTRY_H_

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/cost_rates.h"

namespace deeppcr {

// One row per backend, fastest first. No other place knows which backends exist.
struct BackendRow {
  std::string_view name;
  // Reason why "auto" never chooses the backend; null if it may.
  const char* not_automatic;
  absl::StatusOr<std::unique_ptr<Backend>> (*create)();
  CostRates rates;
};
std::span<const BackendRow> Backends();

struct SelectedBackend {
  std::unique_ptr<Backend> backend;
  std::string reason;  // why this backend, in a sentence
  CostRates rates;
};

// The backend of this name, or for "auto" the first that can run here. DEEPPCR_FORCE_BACKEND in the
// environment takes the place of "auto". Errors: kInvalidArgument (unknown name, the known ones
// listed); kUnavailable (cannot run here, and why).
absl::StatusOr<SelectedBackend> SelectBackend(std::string_view name);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BACKEND_REGISTRY_H_
