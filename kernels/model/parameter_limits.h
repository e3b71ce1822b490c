// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_PARAMETER_LIMITS_H_
#define DEEPPCR_KERNELS_MODEL_PARAMETER_LIMITS_H_

#include "absl/status/status.h"
#include "kernels/model/config.h"

namespace deeppcr {

// Bounds what a config may ask for before any tensor is looked at: 2^33 parameters and, for
// diffusion, 2^27 modulation values of all its steps. Every key of `config` is in its range.
// Errors: kInvalidArgument naming the keys, what was expected, what came.
absl::Status CheckParameters(const ModelConfig& config);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_PARAMETER_LIMITS_H_
