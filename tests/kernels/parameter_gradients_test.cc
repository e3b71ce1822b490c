// SPDX-License-Identifier: Apache-2.0
// Gradients by the parameters of whole models: exported and named denoisers, and stacks of blocks,
// against differences of whole runs of the reference in double, with other numbers in the files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "kernels/backend/backend.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/engine.h"
#include "kernels/model/model.h"
#include "kernels/model_parameters.h"
#include "kernels/parameter_summer.h"
#include "kernels/reference/recurrence.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/solver/backward_runner.h"
#include "kernels/solver/runner.h"
#include "tests/testing/diffusion_tensors.h"
#include "tests/testing/edited_model.h"
#include "tests/testing/safetensors_writer.h"
#include "tests/testing/solver_rig.h"

namespace deeppcr {
namespace {

using testing::EditedModel;
using Tensors = std::vector<std::vector<float>>;

constexpr int64_t kSamples = 2;

struct Case {
  std::string name;
  std::string source;     // a folder of the repository; empty: made of the rest
  std::string onnx;       // of tests/data/program
  std::string config;     // config.json
  int64_t num_steps = 0;  // of a diffusion model
  double clip_range = 0;  // 0: none
  std::string scheduler;  // keys of one without a clip of its own; empty: DDPM
  bool learned_variance = false;
  size_t parameters = 0;  // that have a gradient
};

void PrintTo(const Case& of, std::ostream* to) { *to << of.name; }

std::string Source(const std::string& path) { return std::string(DEEPPCR_SOURCE_DIR) + "/" + path; }

std::string Export(int64_t state, const std::string& condition) {
  return R"({"model_type": "diffusion", "denoiser": "onnx", "num_inference_steps": [7],)"
         R"( "max_batch_size": 8, "state_dim": )" +
         std::to_string(state) + R"(, "output_dim": )" + std::to_string(state) + condition + "}";
}

constexpr const char* kPlainAdaLn =
    R"({"model_type": "diffusion", "denoiser": "adaln_mlp", "state_dim": 3, "output_dim": 3,)"
    R"( "hidden_dim": 8, "num_blocks": 2, "activation": "silu", "time_embedding_dim": 6,)"
    R"( "num_inference_steps": [7], "max_batch_size": 8})";

std::vector<Case> Cases() {
  const std::string demo = "deploy/models/repository/", stack = "tests/data/stack/";
  return {
      {.name = "named_residual",
       .source = demo + "swissroll-ddpm/1",
       .num_steps = 20,
       .parameters = 20},
      {.name = "named_residual_decoder",
       .source = demo + "digits-ddpm/1",
       .num_steps = 5,
       .parameters = 24},
      {.name = "named_adaln_class",
       .source = demo + "digits-class/1",
       .num_steps = 5,
       .parameters = 39},
      {.name = "named_adaln_vector",
       .config =
           R"({"model_type": "diffusion", "denoiser": "adaln_mlp", "state_dim": 3,)"
           R"( "output_dim": 5, "hidden_dim": 8, "num_blocks": 2, "activation": "gelu",)"
           R"( "time_embedding_dim": 6, "num_inference_steps": [7], "max_batch_size": 8,)"
           R"( "tensor_prefix": "net.", "conditioning_dim": 4, "decoder_widths": [6], "decoder_activation": "tanh"})",
       .num_steps = 21,
       .clip_range = 3,
       .parameters = 32},
      {.name = "named_multistep",
       .config = kPlainAdaLn,
       .num_steps = 9,
       .scheduler = R"("_class_name": "DPMSolverMultistepScheduler")",
       .parameters = 26},
      {.name = "named_heun_clipped",
       .config = kPlainAdaLn,
       .num_steps = 9,
       .clip_range = 3,
       .scheduler = R"("_class_name": "HeunDiscreteScheduler", "clip_sample": true)",
       .parameters = 26},
      {.name = "named_learned_range",
       .config = kPlainAdaLn,
       .num_steps = 9,
       .scheduler = R"("_class_name": "DDPMScheduler", "variance_type": "learned_range")",
       .learned_variance = true,
       .parameters = 26},
      {.name = "named_learned_clipped",
       .config = kPlainAdaLn,
       .num_steps = 9,
       .clip_range = 3,
       .scheduler = R"("_class_name": "DDPMScheduler", "variance_type": "learned")",
       .learned_variance = true,
       .parameters = 26},
      {.name = "export_multistep",
       .onnx = "diffusion_ql",
       .config = Export(3, R"(, "conditioning_dim": 5)"),
       .num_steps = 9,
       .scheduler = R"("_class_name": "DPMSolverMultistepScheduler", "solver_type": "heun")",
       .parameters = 12},
      {.name = "export_diffusion_ql",
       .onnx = "diffusion_ql",
       .config = Export(3, R"(, "conditioning_dim": 5)"),
       .num_steps = 7,
       .parameters = 12},
      {.name = "export_dppo",
       .onnx = "dppo",
       .config = Export(6, R"(, "conditioning_dim": 5)"),
       .num_steps = 7,
       .parameters = 13},
      {.name = "export_group_norm",
       .onnx = "group_norm",
       .config = Export(3, ""),
       .num_steps = 7,
       .clip_range = 3,
       .parameters = 11},
      {.name = "export_idql",
       .onnx = "idql",
       .config = Export(3, R"(, "conditioning_dim": 4)"),
       .num_steps = 7,
       .parameters = 21},
      {.name = "export_mar",
       .onnx = "mar",
       .config = Export(4, R"(, "conditioning_dim": 6)"),
       .num_steps = 18,
       .clip_range = 3,
       .parameters = 28},
      {.name = "export_swiglu",
       .onnx = "swiglu_head",
       .config = Export(4, R"(, "conditioning_dim": 6)"),
       .num_steps = 7,
       .parameters = 16},
      {.name = "export_tabddpm",
       .onnx = "tabddpm",
       .config = Export(5, R"(, "num_classes": 3)"),
       .num_steps = 7,
       .parameters = 13},
      {.name = "export_digits_ddpm",
       .source = demo + "digits-ddpm-onnx/1",
       .num_steps = 5,
       .parameters = 24},
      {.name = "export_digits_pixels",
       .source = demo + "digits-pixels/1",
       .num_steps = 3,
       .parameters = 35},
      {.name = "stack_bottleneck", .source = stack + "bottleneck", .parameters = 3},
      {.name = "stack_gated", .source = stack + "gated", .parameters = 7},
      {.name = "stack_prenorm", .source = stack + "prenorm", .parameters = 10},
      {.name = "stack_residual", .source = stack + "residual", .parameters = 4},
      {.name = "stack_tied", .source = stack + "tied", .parameters = 4},
  };
}

// Writes the model of a case that is no folder of the repository.
void Write(const Case& of, const std::string& directory) {
  std::filesystem::create_directories(directory);
  const auto write = [&](const std::string& file, const std::string& text) {
    std::ofstream(directory + "/" + file, std::ios::binary) << text;
  };
  write("config.json", of.config);
  write("scheduler_config.json",
        "{" +
            (of.scheduler.empty() ? R"("_class_name": "DDPMScheduler", "clip_sample": )" +
                                        std::string(of.clip_range > 0 ? "true" : "false")
                                  : of.scheduler) +
            (of.clip_range > 0 ? ", \"clip_sample_range\": " + std::to_string(of.clip_range) : "") +
            R"(, "num_train_timesteps": 100, "beta_schedule": "linear",)"
            R"( "prediction_type": "epsilon"})");
  if (!of.onnx.empty()) {
    std::filesystem::copy_file(Source("tests/data/program/" + of.onnx + ".onnx"),
                               directory + "/denoiser.onnx");
    return;
  }
  ModelConfig config = ParseConfig(of.config).value();
  config.learned_variance = of.learned_variance;
  std::vector<testing::NamedTensor> tensors = testing::DiffusionTensors(config);
  for (testing::NamedTensor& tensor : tensors) tensor.name = config.tensor_prefix + tensor.name;
  ASSERT_TRUE(testing::WriteSafetensors(directory + "/model.safetensors", tensors).ok());
}

// A system of a model, whose storage it has.
struct Loaded {
  Model model;
  OwnedSystem owned;
  const SystemSpec& spec() const {
    return owned.storage != nullptr ? owned.spec : model.systems.front();
  }
};

class ParameterGradientsTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    std::string source = Source(GetParam().source);
    if (GetParam().source.empty()) Write(GetParam(), source = temporary_.File("made"));
    edited_ = std::make_unique<EditedModel>(source, temporary_.File("edited"));
    loaded_ = Load(true);
    const SystemShape shape = ShapeOf(loaded_.spec());
    std::mt19937_64 random(11);
    std::normal_distribution<float> normal;
    const auto draw = [&](std::vector<float>& to, int64_t n) {
      to.resize(static_cast<size_t>(n));
      for (float& x : to) x = normal(random);
    };
    draw(inputs_, kSamples * shape.input_dim);
    draw(noise_, GetParam().num_steps > 0 ? kSamples * shape.sample_dim() : 0);
    draw(cotangents_, kSamples * shape.output_dim);
    for (int32_t i = 0; i < kSamples && shape.num_classes > 0; ++i)
      labels_.push_back(static_cast<int32_t>((i + 1) % shape.num_classes));
  }

  Loaded Load(bool parameters) const {
    Loaded loaded = {.model = ReadModel(edited_->directory(), {.parameters = parameters}).value()};
    if (GetParam().num_steps > 0)
      loaded.owned = SystemOf(loaded.model, GetParam().num_steps, {}).value();
    return loaded;
  }

  SampleInputs Samples() const {
    return {.num_samples = kSamples,
            .inputs = inputs_,
            .seed = 5,
            .labels = labels_,
            .initial_noise = noise_};
  }

  // The gradients on a backend, with the states of its sequential solver.
  Tensors Gradients(std::unique_ptr<Backend> backend, const BackwardOptions& options,
                    int num_threads, bool one_by_one = false) const {
    const SystemSpec& spec = loaded_.spec();
    const SystemShape shape = ShapeOf(spec);
    ThreadPool pool(num_threads);
    const auto system = backend->NewSystem(spec, {.backward = true}).value();
    const auto runner = Runner::Create(*system, shape, {.iterative = false}, &pool, 1).value();
    const auto backward = BackwardRunner::Create(*system, shape, {}, &pool, 1).value();
    const int64_t n = kSamples, steps = shape.num_steps, dim = shape.state_dim;
    std::vector<float> outputs(n * shape.output_dim), states(n * (steps + 1) * dim);
    std::vector<SampleReport> reports(n);
    RunItem run = {
        .samples = Samples(), .outputs = outputs, .trajectory = states, .reports = reports};
    EXPECT_TRUE(
        runner->Run(testing::OptionsFor("sequential", steps, 0, 1e-4), {&run, 1}, nullptr).ok());
    std::vector<float> of_states(n * steps * dim), of_inputs(shape.has_input_layer ? n * dim : 0);
    std::vector<BackwardReport> back(n);
    BackwardItem item = {.samples = Samples(),
                         .states = states,
                         .of_outputs = cotangents_,
                         .encode_deltas = of_inputs,
                         .state_cotangents = of_states,
                         .reports = back};
    EXPECT_TRUE(backward->Run(options, {&item, 1}).ok());
    Tensors sums;
    std::vector<float*> pointers;
    for (const TensorShape& tensor : ParametersOf(loaded_.model)) {
      size_t size = 1;
      for (const int64_t extent : tensor.extents) size *= static_cast<size_t>(extent);
      sums.emplace_back(size);
    }
    for (std::vector<float>& tensor : sums) pointers.push_back(tensor.data());
    std::vector<ParameterSample> samples;
    for (int64_t i = 0; i < n; ++i)
      samples.push_back({.inputs = inputs_.data() + i * shape.input_dim,
                         .label = labels_.empty() ? 0 : labels_[static_cast<size_t>(i)],
                         .states = states.data() + i * (steps + 1) * dim,
                         .state_cotangents = of_states.data() + i * steps * dim,
                         .encode_delta = of_inputs.empty() ? nullptr : of_inputs.data() + i * dim,
                         .decode_delta = cotangents_.data() + i * shape.output_dim,
                         .seed = Samples().seed,
                         .sample = static_cast<uint64_t>(i)});
    // Samples one by one are given the noise that others draw.
    const int64_t size = shape.draws_noise ? shape.sample_dim() : 0;
    std::vector<float> noise(static_cast<size_t>(n * steps * size));
    for (int64_t i = 0; i < n && size > 0 && one_by_one; ++i) {
      for (int64_t l = 0; l < steps; ++l)
        DrawStepNoise(Samples().seed, static_cast<uint64_t>(i), l,
                      std::span(noise).subspan((i * steps + l) * size, size));
      samples[static_cast<size_t>(i)].step_noise = noise.data() + i * steps * size;
    }
    const ParameterSummer summer(loaded_.model.parameters, spec, &pool);
    const auto add = [&](std::span<const ParameterSample> some) {
      EXPECT_TRUE(summer.Add(some, pointers, nullptr, [](double) {}).ok());
    };
    if (!one_by_one) add(samples);
    for (size_t i = 0; one_by_one && i < samples.size(); ++i) add({&samples[i], 1});
    return sums;
  }

  // The cotangents times the outputs of a whole run, in double.
  double Weighted(const SystemSpec& spec) const {
    const SystemShape shape = ShapeOf(spec);
    const auto family = std::visit([](const auto& s) { return reference::NewFamily(s); }, spec);
    double sum = 0;
    for (int64_t i = 0; i < kSamples; ++i) {
      const auto recurrence = family->Encode(InputOf(Samples(), i, nullptr));
      std::vector<double> z = recurrence->Initial();
      for (int64_t l = 1; l <= shape.num_steps; ++l) z = recurrence->Step(l, z);
      const std::vector<double> y = family->Decode(z);
      for (size_t k = 0; k < y.size(); ++k)
        sum += double{cotangents_[static_cast<size_t>(i) * y.size() + k]} * y[k];
    }
    return sum;
  }
  double WeightedWith(const std::string& tensor, const std::vector<float>& values) const {
    edited_->Write(tensor, values);
    return Weighted(Load(false).spec());
  }

  testing::TemporaryDirectory temporary_;
  std::unique_ptr<EditedModel> edited_;
  Loaded loaded_;
  std::vector<float> inputs_, noise_, cotangents_;
  std::vector<int32_t> labels_;
};

double NormOf(const std::vector<float>& x) {
  double square = 0;
  for (const float element : x) square += double{element} * element;
  return std::sqrt(square);
}

TEST_P(ParameterGradientsTest, AreThoseOfDifferences) {
  ASSERT_NE(loaded_.model.parameters, nullptr) << loaded_.model.no_parameters;
  const std::vector<TensorShape> parameters = ParametersOf(loaded_.model);
  const Tensors sums = Gradients(cpu::NewCpuBackend().value(), {}, 2);
  std::mt19937_64 random(13);
  std::normal_distribution<float> normal;
  size_t with_gradient = 0;
  for (size_t t = 0; t < parameters.size(); ++t) {
    const std::string& name = parameters[t].name;
    const std::vector<float> values = edited_->Read(name);
    ASSERT_EQ(values.size(), sums[t].size()) << name;
    const double norm = NormOf(sums[t]);
    with_gradient += norm > 0;
    for (const bool along_itself : {true, false}) {
      std::vector<float> direction = sums[t];
      if (!along_itself || norm == 0)
        for (float& d : direction) d = normal(random);
      const double length = NormOf(direction);
      const double distance = 1e-3 * std::max(0.1, NormOf(values) / std::sqrt(values.size()));
      std::vector<float> above = values, below = values;
      double along = 0, moved = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        const auto way = static_cast<float>(distance * direction[i] / length);
        above[i] += way;
        below[i] -= way;
        along += double{sums[t][i]} * (double{above[i]} - below[i]);
        moved += std::pow(double{above[i]} - below[i], 2);
      }
      const double difference = WeightedWith(name, above) - WeightedWith(name, below);
      EXPECT_NEAR(along, difference, std::sqrt(moved) * (1e-3 * norm + 1e-6))
          << name << (along_itself ? ", along itself" : ", along any direction");
    }
    edited_->Write(name, values);
  }
  EXPECT_EQ(with_gradient, GetParam().parameters) << "of " << parameters.size();
}

TEST_P(ParameterGradientsTest, AgreeOnBothBackendsAndByBothWays) {
  ASSERT_NE(loaded_.model.parameters, nullptr) << loaded_.model.no_parameters;
  const Tensors expected = Gradients(reference::NewReferenceBackend(), {}, 1);
  const BackwardOptions scan = {.way = BackwardWay::kParallel, .shooting_interval = 2};
  for (const Tensors& sums : {Gradients(cpu::NewCpuBackend().value(), {}, 1),
                              Gradients(cpu::NewCpuBackend().value(), scan, 1),
                              Gradients(reference::NewReferenceBackend(), scan, 1)}) {
    for (size_t t = 0; t < expected.size(); ++t) {
      const double norm = NormOf(expected[t]);
      for (size_t i = 0; i < expected[t].size(); ++i)
        ASSERT_NEAR(sums[t][i], expected[t][i], 1e-3 * norm + 1e-7)
            << ParametersOf(loaded_.model)[t].name << " " << i;
    }
  }
}

TEST_P(ParameterGradientsTest, HaveTheSameBitsWhateverDividesTheWork) {
  ASSERT_NE(loaded_.model.parameters, nullptr) << loaded_.model.no_parameters;
  const Tensors one = Gradients(cpu::NewCpuBackend().value(), {}, 1);
  for (const int threads : {1, 2, 5})
    EXPECT_EQ(Gradients(cpu::NewCpuBackend().value(), {}, threads), one) << threads;
  EXPECT_EQ(Gradients(cpu::NewCpuBackend().value(), {}, 3, /*one_by_one=*/true), one);
}

TEST_P(ParameterGradientsTest, EndWhenNobodyWaitsForThem) {
  const SystemSpec& spec = loaded_.spec();
  const SystemShape shape = ShapeOf(spec);
  ThreadPool pool(2);
  const ParameterSummer summer(loaded_.model.parameters, spec, &pool);
  const std::vector<float> zeros((shape.num_steps + 1) * shape.state_dim + shape.output_dim);
  const ParameterSample sample = {.inputs = inputs_.data(),
                                  .states = zeros.data(),
                                  .state_cotangents = zeros.data(),
                                  .encode_delta = zeros.data(),
                                  .decode_delta = zeros.data()};
  const std::vector<float*> sums(loaded_.model.parameters->tensors.size(), nullptr);
  const auto add = [&](const CancelToken& token) {
    return summer.Add({&sample, 1}, sums, &token, [](double) {});
  };
  CancelToken token;
  EXPECT_TRUE(add(token).ok());
  token.Cancel();
  EXPECT_TRUE(absl::IsCancelled(add(token)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(add(CancelToken(CancelToken::Clock::now()))));
}

INSTANTIATE_TEST_SUITE_P(Models, ParameterGradientsTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace deeppcr
