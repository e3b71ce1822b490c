// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_TRAINING_PARAMETERS_H_
#define DEEPPCR_KERNELS_TRAINING_PARAMETERS_H_

// The parameters of an mlp or resnet as one vector of floats, in a fixed order: optimisers and
// checkpoints see nothing else.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend/backward_space.h"
#include "kernels/model/config.h"
#include "kernels/problem/spec.h"

namespace deeppcr::training {

// One tensor of model.safetensors within the vector.
struct ParameterTensor {
  std::string name;
  std::vector<int64_t> shape;
  int64_t offset = 0;
  int64_t size = 0;
  int64_t fan_in = 0;   // inputs of each of its sums; 0: a bias
  bool layers = false;  // stacked over the layers of the recurrence

  bool is_bias() const { return fan_in == 0; }
};

// The tensors of a model, which always has its input and output layers and all biases.
class ParameterLayout {
 public:
  // Errors: kInvalidArgument for a model that is neither mlp nor resnet.
  static absl::StatusOr<ParameterLayout> Of(const ModelConfig& config);

  std::span<const ParameterTensor> tensors() const { return tensors_; }
  int64_t size() const { return size_; }

  // The system with these values [size()], as views of them.
  DenseStackSpec SpecOf(std::span<const float> values) const;
  // Where the gradients of the parameters go in a vector [size()].
  ParameterSums SumsOf(std::span<float> gradients) const;

 private:
  void Add(std::string name, std::vector<int64_t> shape, int64_t fan_in, bool layers);
  std::span<const float> ValuesOf(std::span<const float> all, size_t tensor) const {
    return all.subspan(tensors_[tensor].offset, tensors_[tensor].size);
  }

  std::vector<ParameterTensor> tensors_;
  int64_t size_ = 0;
  DenseStackSpec shape_;  // without weights
};

// Where training begins. Biases are zero. Weights are normal with deviation gain / sqrt(fan_in);
// orthogonal layers are gain times a matrix drawn uniformly from the orthogonal ones.
struct Initialization {
  bool orthogonal_layers = false;
  double layer_gain = 1;
  double outer_gain = 1;  // of the input and output layers
  uint64_t seed = 1;
};

// Divides the state between the outer layers: zeroes what lets the input layer write elements from
// `first_read` on, and the output layer read those below, in parameters or their gradients. With
// both an optimiser leaves the zeros as they are, and the output layer sees of an input only what
// the layers between have carried across. 0: changes nothing.
void SplitState(const ParameterLayout& layout, int64_t first_read, std::span<float> values);

// A function of layout and initialization alone.
std::vector<float> InitialParameters(const ParameterLayout& layout,
                                     const Initialization& initialization);

}  // namespace deeppcr::training

#endif  // DEEPPCR_KERNELS_TRAINING_PARAMETERS_H_
