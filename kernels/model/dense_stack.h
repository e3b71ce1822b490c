// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_DENSE_STACK_H_
#define DEEPPCR_KERNELS_MODEL_DENSE_STACK_H_

// The families `mlp` and `resnet`: an optional input layer, L recurrent dense layers of width D, an
// optional output layer. The families differ only in the residual connection.
//
// Tensors, PyTorch's names and layout ([out, in]):
//   input.weight   [D, input_dim]   optional: without it z_0 = x and input_dim must equal state_dim
//   input.bias     [D]              optional
//   layers.weight  [L, D, D]        or layers.0.weight .. layers.<L-1>.weight, [D, D] each
//   layers.bias    [L, D]           optional; or layers.0.bias .., [D] each, all or none
//   output.weight  [output_dim, D]  optional: without it y = z_L and output_dim = state_dim
//   output.bias    [output_dim]     optional
// Anything else is an error.

#include "absl/status/status.h"
#include "kernels/model/model.h"

namespace deeppcr {

// Loaders of ModelFamily::load.
absl::Status LoadMlp(const Tensors& tensors, const ModelLimits& limits, Model& model);
absl::Status LoadResnet(const Tensors& tensors, const ModelLimits& limits, Model& model);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_DENSE_STACK_H_
