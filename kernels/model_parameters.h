// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_PARAMETERS_H_
#define DEEPPCR_KERNELS_MODEL_PARAMETERS_H_

#include <span>
#include <vector>

#include "kernels/backend/backward_space.h"
#include "kernels/engine.h"
#include "kernels/model/model.h"

namespace deeppcr {

// What gradients by the parameters of a model are made of.
ParameterForm ParameterFormOf(const Model& model);

// The tensors of a model that have gradients: ModelInfo::parameters.
std::vector<TensorShape> ParametersOf(const Model& model);

// The sums of an mlp or a resnet, which are in the order of its tensors.
ParameterSums LayerSums(std::span<const TensorShape> tensors, std::span<float* const> sums);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_PARAMETERS_H_
