// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_BLOCK_STACK_H_
#define DEEPPCR_KERNELS_MODEL_BLOCK_STACK_H_

// The family `stack`: L blocks of one form, block.onnx, between the outer layers of outer_layers.h.
//
// block.onnx maps one state [1, D] to the next. model.safetensors has a tensor [L, ..] for each of
// its initialisers, by the initialiser's name: row l - 1 is what block l has in place of the file's
// own numbers. Initialisers that config.json names in shared_weights are the file's own, for all
// blocks. Scalars may be either. Anything else is an error.

#include <string>

#include "absl/status/status.h"
#include "kernels/model/model.h"

namespace deeppcr {

inline constexpr char kBlockFile[] = "block.onnx";

// Loaders of ModelFamily. Errors: kInvalidArgument naming the node, the initialiser or the tensor;
// kResourceExhausted; those of ReadFile.
absl::Status LoadBlockGraph(const std::string& directory, const ModelLimits& limits, Model& model);
absl::Status LoadStack(const Tensors& tensors, const ModelLimits& limits, Model& model);
// Compiles the block, and sets model.weights_sha256 and model.systems.
absl::Status CompleteStack(const ModelLimits& limits, Model& model);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_BLOCK_STACK_H_
