// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_INTEGRATION_GRADIENT_FIXTURE_H_
#define DEEPPCR_TESTS_INTEGRATION_GRADIENT_FIXTURE_H_

// Requests for gradients of the demo models.

#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/integration/service_fixture.h"

namespace deeppcr {

inline constexpr char kModels[] = DEEPPCR_SOURCE_DIR "/deploy/models/repository/";
inline constexpr int64_t kSamples = 2;
inline constexpr int64_t kPixels = 64;     // inputs of digits-resnet, outputs of digits-ddpm
inline constexpr int64_t kLatent = 16;     // state_dim of both
inline constexpr int64_t kClasses = 10;    // outputs of digits-resnet
inline constexpr int64_t kFewSteps = 100;  // of digits-ddpm

inline std::vector<float> Normals(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(n);
  for (float& x : numbers) x = normal(random);
  return numbers;
}

inline grpc::Status Call(v1::DeepPcr::Stub& stub, const v1::GradientRequest& request,
                         v1::GradientResponse* response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  return stub.Gradient(&context, request, response);
}

// A request to digits-resnet at `point` [n, 64], solved step by step.
inline v1::GradientRequest OfResnet(const std::vector<float>& point) {
  v1::GradientRequest request;
  request.set_model("digits-resnet");
  SetTensor({std::ssize(point) / kPixels, kPixels}, point, request.mutable_inputs());
  request.mutable_options()->set_solver("sequential");
  return request;
}

// A request to digits-ddpm from the noise `point` [n, 16], solved step by step.
inline v1::GradientRequest OfDdpm(const std::vector<float>& point) {
  const int64_t n = std::ssize(point) / kLatent;
  v1::GradientRequest request;
  request.set_model("digits-ddpm");
  v1::GenerationInput& generation = *request.mutable_generation();
  generation.set_num_samples(static_cast<int32_t>(n));
  generation.set_seed(5);
  generation.set_num_inference_steps(kFewSteps);
  SetTensor({n, kLatent}, point, generation.mutable_initial_noise());
  request.mutable_options()->set_solver("sequential");
  return request;
}

}  // namespace deeppcr

#endif  // DEEPPCR_TESTS_INTEGRATION_GRADIENT_FIXTURE_H_
