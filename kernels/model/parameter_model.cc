// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/parameter_model.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/model.h"
#include "kernels/program/parameter_pass.h"

namespace deeppcr {
namespace {

// Of a block, of which a request has one for each thread.
constexpr int64_t kMostBlockBytes = int64_t{256} << 20;

int64_t NumElements(std::span<const int64_t> shape) {
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  return elements;
}

bool AllFinite(const program::OnnxTensor& tensor) {
  const int64_t elements = NumElements(tensor.shape);
  for (int64_t i = 0; i < elements; ++i)
    if (!std::isfinite(static_cast<float>(tensor.numbers[i]))) return false;
  return true;
}

// A name that messages and files can have as it is.
bool IsPlain(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return c > ' ' && c <= '~' && c != '"' && c != '\\';
  });
}

std::vector<program::Program*> ProgramsOf(ParameterModel& model) {
  std::vector<program::Program*> programs = {&model.step};
  for (auto* layers : {&model.encode, &model.decode})
    if (layers->has_value()) programs.push_back(&**layers);
  return programs;
}

}  // namespace

int64_t MemoryBytes(const ParameterModel& model) {
  int64_t bytes = program::MemoryBytes(model.step);
  for (const auto* layers : {&model.encode, &model.decode})
    if (layers->has_value()) bytes += program::MemoryBytes(**layers);
  return bytes;
}

std::vector<ParameterTensor> ParametersOf(const program::OnnxGraph& graph,
                                          std::span<const std::string> also) {
  std::vector<ParameterTensor> tensors;
  for (const auto& [name, tensor] : graph.initializers) {
    const bool named = std::ranges::find(also, name) != also.end();
    if (tensor.type != program::OnnxType::kFloat || (tensor.shape.empty() && !named)) continue;
    if (IsPlain(name) && NumElements(tensor.shape) > 0 && AllFinite(tensor))
      tensors.push_back({name, tensor.shape});
  }
  return tensors;
}

absl::StatusOr<program::Program> AddLayers(std::span<const NamedLayer> layers,
                                           std::vector<ParameterTensor>& tensors) {
  std::vector<DenseSpec> specs;
  std::vector<program::TensorPlace> places;
  const auto add = [&](std::string name, std::vector<int64_t> shape, std::span<const float> from) {
    places.push_back({from, static_cast<int32_t>(tensors.size())});
    tensors.push_back({std::move(name), std::move(shape)});
  };
  for (const auto& [name, layer] : layers) {
    specs.push_back(layer);
    add(name + ".weight", {layer.rows, layer.cols}, layer.weight);
    if (!layer.bias.empty()) add(name + ".bias", {layer.rows}, layer.bias);
  }
  return program::ParameterProgramOfLayers(specs, places, kParameterLimits);
}

void SetParameters(absl::StatusOr<ParameterModel> made, std::string_view file, Model& model) {
  model.parameters = nullptr;
  if (made.ok()) {
    model.parameters = std::make_shared<ParameterModel>(*std::move(made));
  } else {
    model.no_parameters = StrCat(file, ": ", ToStd(made.status().message()));
  }
}

namespace {

absl::Status Complete(ParameterModel& model) {
  std::set<std::string_view> names;
  for (const ParameterTensor& tensor : model.tensors)
    if (!names.insert(tensor.name).second)
      return InvalidArgument("two tensors are called ", Quoted(tensor.name));
  std::vector<int32_t> moved(model.tensors.size(), -1);
  for (const program::Program* program : ProgramsOf(model))
    for (const program::Parameter& parameter : program->parameters)
      for (const program::ParameterSlice& slice : parameter.slices)
        moved[static_cast<size_t>(slice.tensor)] = 0;
  std::vector<ParameterTensor> read;
  for (size_t i = 0; i < moved.size(); ++i) {
    if (moved[i] < 0) continue;
    moved[i] = static_cast<int32_t>(read.size());
    read.push_back(std::move(model.tensors[i]));
  }
  model.tensors = std::move(read);
  for (program::Program* program : ProgramsOf(model)) {
    for (program::Parameter& parameter : program->parameters)
      for (program::ParameterSlice& slice : parameter.slices)
        slice.tensor = moved[static_cast<size_t>(slice.tensor)];
    const program::ParameterPass pass(*program);
    const int64_t bytes = std::max(pass.BlockBytes(), pass.SharedBytes());
    if (bytes > kMostBlockBytes)
      return ResourceExhausted("gradients by parameters take ", bytes, " bytes for a step; ",
                               kMostBlockBytes, " are allowed");
  }
  return absl::OkStatus();
}

}  // namespace

void CompleteParameters(Model& model) {
  if (model.parameters == nullptr) return;
  const absl::Status status = Complete(*model.parameters);
  if (!status.ok()) SetParameters(status, "gradients by parameters", model);
}

}  // namespace deeppcr
