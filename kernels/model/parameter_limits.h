// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_PARAMETER_LIMITS_H_
#define DEEPPCR_KERNELS_MODEL_PARAMETER_LIMITS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/model/config.h"

namespace deeppcr {

// Bounds what a config may ask for before any tensor is looked at: 2^33 parameters and, for
// diffusion, 2^27 modulation values of all its steps. Every key of `config` is in its range.
// Errors: kInvalidArgument naming the keys, what was expected, what came.
absl::Status CheckParameters(const ModelConfig& config);

// The largest number of inference steps that a request may have tables made for, on a diffusion
// model of this config, which CheckParameters has passed: 2^27 modulation values, and 2^34 products
// for these and the time embeddings, which take some seconds.
int64_t MaxStepsOnDemand(const ModelConfig& config);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_PARAMETER_LIMITS_H_
