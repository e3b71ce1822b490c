// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_PARAMETER_MODEL_H_
#define DEEPPCR_KERNELS_MODEL_PARAMETER_MODEL_H_

// The weights of a model whose steps are a program, as what it is differentiated by.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/problem/spec.h"
#include "kernels/program/builder.h"
#include "kernels/program/denoiser_program.h"
#include "kernels/program/onnx_graph.h"
#include "kernels/program/program.h"

namespace deeppcr {

struct Model;

// A tensor of the model's files.
struct ParameterTensor {
  std::string name;  // as it is in the file, its prefix included
  std::vector<int64_t> shape;
};

// Programs in which tensors are parameters: ParameterSlice::tensor is an index into `tensors`. They
// are not optimised, as that folds, splits and merges weights.
struct ParameterModel {
  std::vector<ParameterTensor> tensors;
  program::Program step;
  // From the input of a stack to the sum before its input layer's activation; from z_L to the
  // outputs. Absent without such layers.
  std::optional<program::Program> encode, decode;
};

// Limits of the programs: values may be as large as matrices.
inline constexpr program::ProgramLimits kParameterLimits = {
    .max_value_size = int64_t{1} << 24, .max_result_elements = int64_t{1} << 25};

int64_t MemoryBytes(const ParameterModel& model);

// The initialisers of a graph that are parameters: floats with axes, all finite, whose names are
// printable ASCII without spaces and quotes. A scalar is mostly an exporter's constant, and is a
// parameter only where `also` has its name.
std::vector<ParameterTensor> ParametersOf(const program::OnnxGraph& graph,
                                          std::span<const std::string> also = {});

// A named layer, to be added.
struct NamedLayer {
  std::string name;  // of tensors <name>.weight and, where it has a bias, <name>.bias
  DenseSpec layer;
};

// Layers from first to last as a program, with their tensors added to `tensors`.
absl::StatusOr<program::Program> AddLayers(std::span<const NamedLayer> layers,
                                           std::vector<ParameterTensor>& tensors);

// Gives a model, which is read, what it is differentiated by; an error makes no model unservable,
// and is kept, with the file's name, as the reason why it has no such gradients.
void SetParameters(absl::StatusOr<ParameterModel> made, std::string_view file, Model& model);

// Ends that, once all programs are there: leaves tensors out that no program reads. There are no
// gradients by parameters where two tensors have one name, or where differentiating takes more
// memory than a request may.
void CompleteParameters(Model& model);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_PARAMETER_MODEL_H_
