// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_C_API_GRADIENTS_H_
#define DEEPPCR_KERNELS_C_API_GRADIENTS_H_

#include "absl/status/status.h"
#include "kernels/c_api/deeppcr.h"

namespace deeppcr {

// deeppcr_go_back, with a status in place of its number.
absl::Status GoBack(const deeppcr_model* model, const deeppcr_backward_options* options,
                    const deeppcr_inputs* inputs, const deeppcr_cotangents* cotangents,
                    deeppcr_gradients* gradients);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_C_API_GRADIENTS_H_
