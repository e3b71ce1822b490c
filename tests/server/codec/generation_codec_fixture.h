// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_SERVER_CODEC_GENERATION_CODEC_FIXTURE_H_
#define DEEPPCR_TESTS_SERVER_CODEC_GENERATION_CODEC_FIXTURE_H_

// Diffusion models as the codec sees them, with tensors and requests for them.

#include <cmath>
#include <cstring>
#include <vector>

#include "absl/status/statusor.h"
#include "server/codec/request_codec.h"
#include "tests/testing/fake_engine.h"

namespace deeppcr {

inline constexpr int64_t kMessageLimit = 1 << 20;
inline constexpr int64_t kState = 4;
inline constexpr int32_t kSteps = 8;     // the default
inline constexpr int32_t kLongest = 12;  // the largest that a request may ask for

// A model without classes and conditioning. The default number of steps is neither the smallest nor
// the largest.
inline ModelInfo Plain() {
  ModelInfo info = testing::FakeModel().info_;
  info.model_type = "diffusion";
  info.input_dim = 0;
  info.output_dim = 3;
  info.state_dim = kState;
  info.num_layers = kSteps;
  info.num_inference_steps = {kSteps, 3, kLongest};
  info.has_decoder = true;
  info.solvers = {"sequential", "newton", "picard", "jacobi", "auto"};
  return info;
}
inline ModelInfo WithClasses() {
  ModelInfo info = Plain();
  info.num_classes = 5;
  return info;
}
inline ModelInfo WithConditioning() {
  ModelInfo info = Plain();
  info.input_dim = 2;
  return info;
}
inline ModelInfo Mlp() { return testing::FakeModel().info_; }

inline void SetTensor(std::vector<int64_t> shape, v1::Tensor* tensor) {
  tensor->clear_shape();
  tensor->mutable_shape()->Add(shape.begin(), shape.end());
  size_t count = 1;
  for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) + 0.5f;
  tensor->set_data(values.data(), count * sizeof(float));
}

// A request without the fields that a model with classes or conditioning needs.
inline v1::GenerateRequest GoodGenerate(int32_t num_samples = 3) {
  v1::GenerateRequest request;
  request.set_model("m");
  request.mutable_input()->set_num_samples(num_samples);
  return request;
}

inline absl::StatusOr<SolveInput> Decode(const v1::GenerateRequest& request,
                                         const ModelInfo& info = Plain()) {
  return DecodeGenerate(request, info, kMessageLimit);
}

inline void SetValue(size_t index, float value, v1::Tensor* tensor) {
  std::memcpy(tensor->mutable_data()->data() + index * sizeof(float), &value, sizeof(float));
}

}  // namespace deeppcr

#endif  // DEEPPCR_TESTS_SERVER_CODEC_GENERATION_CODEC_FIXTURE_H_
