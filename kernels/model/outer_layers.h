// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_OUTER_LAYERS_H_
#define DEEPPCR_KERNELS_MODEL_OUTER_LAYERS_H_

// The two layers outside the recurrence of a stack, PyTorch's names and layout ([out, in]):
//   input.weight   [D, input_dim]   optional: without it z_0 = x and input_dim must equal state_dim
//   input.bias     [D]              optional
//   output.weight  [output_dim, D]  optional: without it y = z_L and output_dim = state_dim
//   output.bias    [output_dim]     optional

#include <string_view>

#include "absl/status/status.h"
#include "kernels/model/model.h"
#include "kernels/model/tensor_reader.h"

namespace deeppcr {

inline constexpr std::string_view kInputLayer = "input";
inline constexpr std::string_view kOutputLayer = "output";

// Read a layer into the storage of the model, and point `spec` to it; spec.rows stays 0 where the
// layer is left out. Errors: those of TensorReader.
absl::Status ReadInputLayer(TensorReader& reader, Model& model, DenseSpec& spec);
absl::Status ReadOutputLayer(TensorReader& reader, Model& model, DenseSpec& spec);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_OUTER_LAYERS_H_
