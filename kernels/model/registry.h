// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_REGISTRY_H_
#define DEEPPCR_KERNELS_MODEL_REGISTRY_H_

// The model families. CONTRIBUTING.md, "Adding", says what a new one takes beside its row.

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/model/model.h"

namespace deeppcr {

struct ModelFamily {
  std::string_view name;  // model_type of config.json
  // Reads the step program of a model whose `config` is set; null: the family has none. Errors:
  // those of reading and compiling, with the file's name.
  absl::Status (*load_program)(const std::string& directory, const ModelLimits& limits,
                               Model& model);
  // Fills the members that follow from `config` and `scheduler` of a model, both set. Null: the
  // family has no scheduler_config.json. Errors: kInvalidArgument naming the key;
  // kResourceExhausted.
  absl::Status (*load_scheduler)(const ModelLimits& limits, Model& model);
  // Fills the storage and `systems` of a model whose `config` is set and whose scheduler is loaded;
  // converts nothing beyond limits.max_weights_bytes of float32.
  // Errors: kInvalidArgument naming the tensor, what was expected, what came; kResourceExhausted.
  absl::Status (*load)(const Tensors& tensors, const ModelLimits& limits, Model& model);
  // Ends `load` with what depends on all files; null: nothing does. Errors: as load_program.
  absl::Status (*complete)(const ModelLimits& limits, Model& model);
  // SystemOf. Null: the number of steps is fixed.
  absl::StatusOr<OwnedSystem> (*system_of)(const Model& model, const SystemKey& key,
                                           const ModelLimits& limits);
  std::string_view summary;  // one line, for documentation and listings
};

// Static storage.
std::span<const ModelFamily> ModelFamilies();

// Family of this name; null if there is none.
const ModelFamily* FindModelFamily(std::string_view name);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_REGISTRY_H_
