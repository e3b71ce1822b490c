// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_TRAINING_OPTIMIZER_H_
#define DEEPPCR_KERNELS_TRAINING_OPTIMIZER_H_

// SGD, Adam and AdamW over a vector of parameters, element by element: the bits of an update do not
// depend on the number of threads.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/thread_pool.h"
#include "kernels/training/parameters.h"

namespace deeppcr::training {

enum class OptimizerKind : uint8_t { kSgd, kAdam, kAdamW };
// "sgd", "adam", "adamw".
std::string_view ToString(OptimizerKind kind);
// Errors: kInvalidArgument with the names that there are.
absl::StatusOr<OptimizerKind> ParseOptimizerKind(std::string_view name);

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double momentum = 0.9;              // of sgd
  double beta1 = 0.9, beta2 = 0.999;  // of adam and adamw
  double epsilon = 1e-8;
  // Of weights, not of biases: added to the gradient as weight_decay times the weight; with adamw
  // the weight itself shrinks by that times the learning rate (Loshchilov and Hutter, 2019).
  double weight_decay = 0;
  double clip_norm = 0;  // largest 2-norm of the gradient as a whole; 0: any
};

// What an optimiser knows; all that a checkpoint has to keep.
struct OptimizerState {
  std::vector<float> parameters;
  std::vector<float> first;   // the momentum, or Adam's mean of gradients
  std::vector<float> second;  // Adam's mean of their squares; empty for sgd
  int64_t updates = 0;
};

class Optimizer {
 public:
  Optimizer(const ParameterLayout& layout, const OptimizerOptions& options,
            std::vector<float> parameters);

  const OptimizerState& state() const { return state_; }
  // Preconditions: vectors of the sizes of state().
  void Restore(OptimizerState state) { state_ = std::move(state); }

  // The 2-norm of a gradient, summed in double in a fixed order.
  static double NormOf(std::span<const float> gradient);

  // Takes a step along a gradient of this norm. False, and nothing has changed, where the gradient
  // is not finite, or so large that its squares, the new parameters or moments would not be.
  bool Update(std::span<const float> gradient, double norm, double learning_rate, ThreadPool& pool);

 private:
  // Sets elements [begin, end) of next_; false if one is not finite.
  bool UpdatePart(std::span<const float> gradient, float scale, double learning_rate,
                  float weight_decay, int64_t begin, int64_t end);

  const OptimizerOptions options_;
  const std::vector<ParameterTensor> tensors_;
  OptimizerState state_, next_;
};

}  // namespace deeppcr::training

#endif  // DEEPPCR_KERNELS_TRAINING_OPTIMIZER_H_
