// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_TRAINING_PUBLISH_H_
#define DEEPPCR_KERNELS_TRAINING_PUBLISH_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/training/dataset.h"
#include "kernels/training/parameters.h"

namespace deeppcr::training {

// Where a model goes: <repository>/<model>/<version>.
struct Destination {
  std::string repository;
  std::string model;
  int64_t version = 0;  // 0: one more than the largest there is
  // Training inputs, the first ones, that go with it for plans to be made on at a load; 0: none,
  // and inputs are drawn in their place.
  int64_t calibration_samples = 600;
};

// Errors: kInvalidArgument for a name that no repository takes; kAlreadyExists for a version that
// is there; kFailedPrecondition where no version is larger than those there are. To be asked before
// a long run, too.
absl::Status CheckDestination(const Destination& destination);

// Writes config.json, model.safetensors and, where calibration_samples says so, with inputs of the
// data calibration.safetensors, reads them as a server would, and only then gives the folder its
// name: a server that looks sees a whole version or none. Returns the folder. Errors: as
// CheckDestination; kUnavailable and the like from the file system.
absl::StatusOr<std::string> Publish(const Destination& destination, const std::string& config_json,
                                    const ParameterLayout& layout,
                                    std::span<const float> parameters, const Dataset& data);

}  // namespace deeppcr::training

#endif  // DEEPPCR_KERNELS_TRAINING_PUBLISH_H_
