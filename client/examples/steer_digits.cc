// SPDX-License-Identifier: Apache-2.0
// Steers digits that a diffusion model draws towards a wanted class. The loss of a classifier goes
// back through the classifier to the pixels, and from there through the decoder and every step of
// the reverse process to the noise, which follows the gradient. Two requests a round do it; neither
// model knows of the other.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/array.h"
#include "client/batching.h"
#include "client/client.h"
#include "client/png.h"
#include "client/sample_picture.h"
#include "kernels/base/status_macros.h"

namespace deeppcr {
namespace {

// Mean loss of samples that are the wanted digit beyond doubt: further steps would please the
// classifier alone.
constexpr double kSureLoss = 0.05;

struct Settings {
  std::string server = ClientOptions().server;
  std::string sampler = "digits-ddpm", classifier = "digits-resnet";
  int32_t wanted = 3;
  int64_t num_samples = 10;
  int64_t rounds = 40;
  float step = 2;  // length of a round's way, of noise whose length is the root of L D
  uint64_t seed = 1;
  std::string png;
};

// All noise of the samples: what a reverse process is a function of.
struct Noise {
  Array initial;  // [n, D]
  Array steps;    // [n, L, D]
};

Array Normals(std::vector<int64_t> shape, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  Array array = {.shape = std::move(shape)};
  int64_t size = 1;
  for (const int64_t extent : array.shape) size *= extent;
  array.values.resize(size);
  for (float& x : array.values) x = normal(random);
  return array;
}

void ToTensor(const Array& array, v1::Tensor* tensor) {
  RowsToTensor(array, 0, array.rows(), tensor);
}

v1::GenerationInput GenerationOf(const Noise& noise) {
  v1::GenerationInput input;
  input.set_num_samples(static_cast<int32_t>(noise.initial.rows()));
  ToTensor(noise.initial, input.mutable_initial_noise());
  ToTensor(noise.steps, input.mutable_step_noise());
  return input;
}

// The samples, whose states stay on the server, so that nothing is solved twice.
absl::StatusOr<v1::GenerateResponse> Draw(const Client& client, const Settings& settings,
                                          const Noise& noise) {
  v1::GenerateRequest request;
  request.set_model(settings.sampler);
  *request.mutable_input() = GenerationOf(noise);
  request.mutable_options()->set_keep_trajectory(true);
  return client.Generate(request);
}

// What the classifier says of the samples, and the gradient of its loss by their pixels.
absl::StatusOr<v1::GradientResponse> Classify(const Client& client, const Settings& settings,
                                              const v1::Tensor& samples) {
  v1::GradientRequest request;
  request.set_model(settings.classifier);
  *request.mutable_inputs() = samples;
  request.set_loss(v1::LOSS_CROSS_ENTROPY);
  for (int64_t i = 0; i < settings.num_samples; ++i) request.add_target_classes(settings.wanted);
  request.add_gradients(v1::GRADIENT_BY_INPUTS);
  return client.Gradient(request);
}

// Takes cotangents of the samples back to the noise.
absl::StatusOr<Noise> GradientByNoise(const Client& client, const Settings& settings,
                                      const Noise& noise, const std::string& handle,
                                      const v1::Tensor& of_samples) {
  v1::GradientRequest request;
  request.set_model(settings.sampler);
  *request.mutable_generation() = GenerationOf(noise);
  request.set_trajectory_handle(handle);
  *request.mutable_cotangents() = of_samples;
  request.add_gradients(v1::GRADIENT_BY_INITIAL_STATE);
  request.add_gradients(v1::GRADIENT_BY_STEP_NOISE);
  absl::StatusOr<v1::GradientResponse> answer = client.Gradient(request);
  if (absl::IsNotFound(answer.status())) {  // the states have made room for others
    request.clear_trajectory_handle();
    answer = client.Gradient(request);
  }
  DEEPPCR_ASSIGN_OR_RETURN(const v1::GradientResponse reply, std::move(answer));
  Noise gradient;
  DEEPPCR_ASSIGN_OR_RETURN(
      gradient.initial, TensorToArray(reply.initial_state_gradients(), "initial_state_gradients"));
  DEEPPCR_ASSIGN_OR_RETURN(gradient.steps,
                           TensorToArray(reply.step_noise_gradients(), "step_noise_gradients"));
  return gradient;
}

// The noise of one sample.
std::vector<std::span<float>> PartsOf(Noise& noise, int64_t sample) {
  std::vector<std::span<float>> parts;
  for (Array* array : {&noise.initial, &noise.steps})
    parts.push_back(
        std::span(array->values).subspan(sample * array->row_size(), array->row_size()));
  return parts;
}

double LengthOf(const std::vector<std::span<float>>& parts) {
  double squares = 0;
  for (const std::span<float> part : parts)
    for (const float x : part) squares += double{x} * x;
  return std::sqrt(squares);
}

// A step down the gradient, and back to the length that noise has: shorter noise would be noise of
// another model.
void Follow(Noise& gradient, float step, Noise* noise) {
  for (int64_t i = 0; i < noise->initial.rows(); ++i) {
    const std::vector<std::span<float>> way = PartsOf(gradient, i), at = PartsOf(*noise, i);
    const double before = LengthOf(at), steepness = LengthOf(way);
    if (!(steepness > 0)) continue;
    for (size_t k = 0; k < at.size(); ++k)
      for (size_t j = 0; j < at[k].size(); ++j)
        at[k][j] -= static_cast<float>(step / steepness) * way[k][j];
    const double scale = before / LengthOf(at);
    for (const std::span<float> part : at)
      for (float& x : part) x = static_cast<float>(x * scale);
  }
}

struct Verdict {
  double loss = 0;   // mean
  int64_t hits = 0;  // samples of the wanted class
};

absl::StatusOr<Verdict> VerdictOf(const v1::GradientResponse& reply, int32_t wanted) {
  DEEPPCR_ASSIGN_OR_RETURN(const Array scores, TensorToArray(reply.outputs(), "outputs"));
  Verdict verdict;
  for (int64_t i = 0; i < scores.rows(); ++i) {
    const auto row = std::span(scores.values).subspan(i * scores.row_size(), scores.row_size());
    verdict.hits += std::ranges::max_element(row) - row.begin() == wanted ? 1 : 0;
    verdict.loss += reply.losses(static_cast<int>(i)) / static_cast<double>(scores.rows());
  }
  return verdict;
}

// The first samples above the last ones.
absl::Status WritePicture(const v1::GetModelResponse& model, const v1::Tensor& first,
                          const v1::Tensor& last, const std::string& path) {
  DEEPPCR_ASSIGN_OR_RETURN(Array samples, TensorToArray(first, "samples"));
  const int64_t columns = samples.rows();
  DEEPPCR_ASSIGN_OR_RETURN(const Array more, TensorToArray(last, "samples"));
  DEEPPCR_RETURN_IF_ERROR(AppendRows(more, &samples));
  DEEPPCR_ASSIGN_OR_RETURN(PictureLayout layout, LayOutPicture(model, samples.rows(), 6));
  layout.picture_width = layout.picture_width / layout.columns * columns;
  layout.picture_height = layout.picture_width / columns * 2;
  layout.columns = columns;
  DEEPPCR_ASSIGN_OR_RETURN(const std::string png, EncodePng(DrawSamples(layout, samples)));
  std::ofstream(path, std::ios::binary) << png;
  return absl::OkStatus();
}

absl::Status Steer(const Settings& settings) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::unique_ptr<Client> owned,
                           Client::Create({.server = settings.server}));
  const Client& client = *owned;
  DEEPPCR_ASSIGN_OR_RETURN(const v1::GetModelResponse model, client.GetModel(settings.sampler));
  const int64_t dim = SampleDim(model), num_steps = model.num_inference_steps(0);
  std::mt19937_64 random(settings.seed);
  Noise noise = {.initial = Normals({settings.num_samples, dim}, random),
                 .steps = Normals({settings.num_samples, num_steps, dim}, random)};
  v1::Tensor first;
  std::printf("%5s %10s   of class %d\n", "round", "mean loss", settings.wanted);
  for (int64_t round = 0;; ++round) {
    DEEPPCR_ASSIGN_OR_RETURN(const v1::GenerateResponse drawn, Draw(client, settings, noise));
    DEEPPCR_ASSIGN_OR_RETURN(const v1::GradientResponse classified,
                             Classify(client, settings, drawn.samples()));
    DEEPPCR_ASSIGN_OR_RETURN(const Verdict verdict, VerdictOf(classified, settings.wanted));
    std::printf("%5lld %10.4f   %lld of %lld\n", static_cast<long long>(round), verdict.loss,
                static_cast<long long>(verdict.hits), static_cast<long long>(settings.num_samples));
    if (round == 0) first = drawn.samples();
    const bool there = verdict.hits == settings.num_samples && verdict.loss < kSureLoss;
    if (there || round == settings.rounds)
      return settings.png.empty() ? absl::OkStatus()
                                  : WritePicture(model, first, drawn.samples(), settings.png);
    DEEPPCR_ASSIGN_OR_RETURN(Noise gradient,
                             GradientByNoise(client, settings, noise, drawn.trajectory_handle(),
                                             classified.input_gradients()));
    Follow(gradient, settings.step, &noise);
  }
}

int Main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Steers digits that a diffusion model draws towards a class.");
  app.option_defaults()->always_capture_default();
  app.add_option("--server", settings.server, "of a server with --gradients");
  app.add_option("--sampler", settings.sampler, "diffusion model of images");
  app.add_option("--classifier", settings.classifier, "model of the same images");
  app.add_option("--class", settings.wanted, "the wanted class")->check(CLI::NonNegativeNumber);
  app.add_option("--num", settings.num_samples, "samples")->check(CLI::Range(1, 64));
  app.add_option("--rounds", settings.rounds, "steps of the noise, at most")
      ->check(CLI::Range(0, 1000));
  app.add_option("--step", settings.step, "length of a step")->check(CLI::PositiveNumber);
  app.add_option("--seed", settings.seed, "of the noise");
  app.add_option("--png", settings.png, "picture of the samples, before above after")
      ->type_name("FILE");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = Steer(settings);
  if (status.ok()) return 0;
  std::fprintf(stderr, "steer_digits: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace deeppcr

int main(int argc, char** argv) { return deeppcr::Main(argc, argv); }
