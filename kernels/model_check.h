// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_CHECK_H_
#define DEEPPCR_KERNELS_MODEL_CHECK_H_

#include <string>
#include <vector>

#include "kernels/engine.h"
#include "kernels/model/model.h"

namespace deeppcr {

// What packing the systems of a model for the CPU says, which runs every model: all problems, each
// once, as a load would tell the first.
std::vector<std::string> ProblemsOfSystems(const Model& model, const EngineOptions& options);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_CHECK_H_
