// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_TRAINING_RUN_H_
#define DEEPPCR_TESTS_TESTING_TRAINING_RUN_H_

// A small model with data that it can learn, for tests of training.

#include <cmath>
#include <cstdint>
#include <random>
#include <string>

#include "kernels/model/config.h"
#include "kernels/training/dataset.h"

namespace deeppcr::testing {

inline ModelConfig SmallModel(const std::string& type = "resnet", int64_t layers = 6) {
  return {.model_type = type,
          .input_dim = 3,
          .output_dim = 2,
          .state_dim = 5,
          .num_layers = layers,
          .activation = Activation::kTanh,
          .residual_scale = type == "resnet" ? 1 / std::sqrt(static_cast<double>(layers)) : 1.0};
}

// Normal inputs. Labels: whether the product of the first two is positive, which no linear map
// says; targets: that product and the sine of the third.
inline training::Dataset ProductData(int64_t n, bool labelled, uint64_t seed = 7) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  training::Dataset data = {.num_samples = n, .input_dim = 3, .target_dim = labelled ? 0 : 2};
  for (int64_t i = 0; i < n; ++i) {
    const float a = normal(random), b = normal(random), c = normal(random);
    data.inputs.insert(data.inputs.end(), {a, b, c});
    if (labelled) {
      data.labels.push_back(a * b > 0 ? 1 : 0);
    } else {
      data.targets.insert(data.targets.end(), {a * b, std::sin(c)});
    }
  }
  return data;
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_TRAINING_RUN_H_
