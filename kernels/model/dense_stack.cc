// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/dense_stack.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

using Shape = std::vector<int64_t>;

// Hands out tensors by name with their shape checked, and remembers which were asked for.
class TensorReader {
 public:
  TensorReader(const Tensors& tensors, int64_t max_bytes)
      : tensors_(tensors), max_bytes_(max_bytes) {}

  bool Has(std::string_view name) const { return tensors_.Find(name) != nullptr; }

  bool HasBeginningWith(std::string_view prefix, std::string_view suffix) const {
    return std::any_of(tensors_.entries().begin(), tensors_.entries().end(),
                       [=](const TensorEntry& entry) {
                         const std::string_view name = entry.name;
                         return name.size() > prefix.size() + suffix.size() &&
                                name.starts_with(prefix) && name.ends_with(suffix);
                       });
  }

  // No tensor or stack of tensors has more.
  int64_t TotalElements() const {
    int64_t total = 0;
    for (const TensorEntry& entry : tensors_.entries()) total += NumElements(entry);
    return total;
  }

  // Appends the values of a tensor that must be there.
  absl::Status Append(const std::string& name, const Shape& shape, std::vector<float>& values) {
    const TensorEntry* entry = tensors_.Find(name);
    if (entry == nullptr) {
      return InvalidArgument("tensor \"", name, "\" of shape ", ShapeString(shape), " is missing");
    }
    if (entry->shape != shape) {
      return InvalidArgument("tensor \"", name, "\": expected shape ", ShapeString(shape), ", got ",
                             ShapeString(entry->shape));
    }
    used_.insert(entry->name);
    DEEPPCR_ASSIGN_OR_RETURN(const int64_t count, CheckedProduct(shape));
    DEEPPCR_RETURN_IF_ERROR(Reserve(count));
    const size_t old_size = values.size();
    values.resize(old_size + static_cast<size_t>(count));
    return ConvertToFloat(*entry, std::span<float>(values).subspan(old_size));
  }

  absl::Status AppendIfThere(const std::string& name, const Shape& shape,
                             std::vector<float>& values) {
    return Has(name) ? Append(name, shape, values) : absl::OkStatus();
  }

  absl::Status CheckAllUsed() const {
    for (const TensorEntry& entry : tensors_.entries()) {
      if (used_.contains(entry.name)) continue;
      return InvalidArgument(
          "tensor ", Quoted(entry.name), " of shape ", ShapeString(entry.shape),
          " is unexpected; expected input.{weight,bias}, layers.{weight,bias} or "
          "layers.<0 .. num_layers - 1>.{weight,bias}, output.{weight,bias}");
    }
    return absl::OkStatus();
  }

 private:
  // Half-precision files grow when they are converted, so the file's size bounds nothing.
  absl::Status Reserve(int64_t elements) {
    bytes_ += elements * static_cast<int64_t>(sizeof(float));
    if (bytes_ <= max_bytes_) return absl::OkStatus();
    return ResourceExhausted("weights take at least ", bytes_, " bytes as float32; ", max_bytes_,
                             " are allowed");
  }

  const Tensors& tensors_;
  const int64_t max_bytes_;
  int64_t bytes_ = 0;
  absl::flat_hash_set<std::string_view> used_;
};

// One of the two layers outside the recurrence.
struct OuterLayer {
  std::string_view prefix;  // of its tensors
  std::string_view key;     // of the config, for its outer dimension
  int64_t outer_dim;
  int64_t rows;
  int64_t cols;
};

absl::Status ReadOuterLayer(TensorReader& reader, const OuterLayer& layer, int64_t state_dim,
                            std::vector<float>& weight, std::vector<float>& bias, DenseSpec& spec) {
  const std::string weight_name = StrCat(layer.prefix, ".weight");
  const std::string bias_name = StrCat(layer.prefix, ".bias");
  const bool optional = layer.outer_dim == state_dim;
  if (!reader.Has(weight_name) && !reader.Has(bias_name) && optional) return absl::OkStatus();
  if (!reader.Has(weight_name)) {
    return InvalidArgument(
        "tensor \"", weight_name, "\" of shape ", ShapeString(Shape{layer.rows, layer.cols}),
        " is missing; it may be left out, with its bias, only if ", layer.key,
        " equals state_dim (config.json: ", layer.outer_dim, " and ", state_dim, ")");
  }
  DEEPPCR_RETURN_IF_ERROR(reader.Append(weight_name, {layer.rows, layer.cols}, weight));
  DEEPPCR_RETURN_IF_ERROR(reader.AppendIfThere(bias_name, {layer.rows}, bias));
  spec.rows = layer.rows;
  spec.cols = layer.cols;
  spec.weight = weight;
  spec.bias = bias;
  return absl::OkStatus();
}

absl::Status ReadStackedLayers(TensorReader& reader, Model& model) {
  const int64_t L = model.config.num_layers;
  const int64_t D = model.config.state_dim;
  DEEPPCR_RETURN_IF_ERROR(reader.Append("layers.weight", {L, D, D}, model.weights));
  return reader.AppendIfThere("layers.bias", {L, D}, model.biases);
}

absl::Status ReadSingleLayers(TensorReader& reader, Model& model) {
  const int64_t L = model.config.num_layers;
  const int64_t D = model.config.state_dim;
  if (!reader.Has("layers.0.weight")) {
    return InvalidArgument("tensor \"layers.weight\" of shape ", ShapeString(Shape{L, D, D}),
                           " or \"layers.0.weight\" of shape ", ShapeString(Shape{D, D}),
                           " is missing");
  }
  const bool biased = reader.HasBeginningWith("layers.", ".bias");
  // The config alone must not decide how much is allocated.
  model.weights.reserve(static_cast<size_t>(std::min(L * D * D, reader.TotalElements())));
  for (int64_t layer = 0; layer < L; ++layer) {
    const std::string prefix = StrCat("layers.", layer);
    DEEPPCR_RETURN_IF_ERROR(reader.Append(prefix + ".weight", {D, D}, model.weights));
    if (biased) DEEPPCR_RETURN_IF_ERROR(reader.Append(prefix + ".bias", {D}, model.biases));
  }
  return absl::OkStatus();
}

absl::Status ReadTensors(TensorReader& reader, Model& model) {
  const ModelConfig& config = model.config;
  const int64_t D = config.state_dim;
  DEEPPCR_RETURN_IF_ERROR(
      ReadOuterLayer(reader, {"input", "input_dim", config.input_dim, D, config.input_dim}, D,
                     model.encode_weight, model.encode_bias, model.spec.encode));
  DEEPPCR_RETURN_IF_ERROR(reader.Has("layers.weight") ? ReadStackedLayers(reader, model)
                                                      : ReadSingleLayers(reader, model));
  DEEPPCR_RETURN_IF_ERROR(
      ReadOuterLayer(reader, {"output", "output_dim", config.output_dim, config.output_dim, D}, D,
                     model.decode_weight, model.decode_bias, model.spec.decode));
  return reader.CheckAllUsed();
}

// A key that would do nothing is a mistake of the author's.
absl::Status CheckInputActivation(const Model& model) {
  if (model.spec.encode.rows > 0 || model.config.input_activation == Activation::kIdentity) {
    return absl::OkStatus();
  }
  return InvalidArgument("tensor \"input.weight\" is missing; config.json has input_activation \"",
                         NameOf(model.config.input_activation),
                         "\", which applies to the input layer only");
}

absl::Status LoadDenseStack(const Tensors& tensors, const ModelLimits& limits, bool residual,
                            Model& model) {
  TensorReader reader(tensors, limits.max_weights_bytes);
  DEEPPCR_RETURN_IF_ERROR(ReadTensors(reader, model));
  DEEPPCR_RETURN_IF_ERROR(CheckInputActivation(model));
  SystemSpec& spec = model.spec;
  spec.num_steps = model.config.num_layers;
  spec.state_dim = model.config.state_dim;
  spec.residual = residual;
  spec.residual_scale = static_cast<float>(model.config.residual_scale);
  spec.activation = model.config.activation;
  spec.weights = model.weights;
  spec.biases = model.biases;
  spec.encode.activation = model.config.input_activation;
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadMlp(const Tensors& tensors, const ModelLimits& limits, Model& model) {
  return LoadDenseStack(tensors, limits, /*residual=*/false, model);
}

absl::Status LoadResnet(const Tensors& tensors, const ModelLimits& limits, Model& model) {
  return LoadDenseStack(tensors, limits, /*residual=*/true, model);
}

}  // namespace deeppcr
