// SPDX-License-Identifier: Apache-2.0
// Gradients of whole sampling runs of the demo models, x0 clipped in many elements, as PyTorch's
// autograd gives them in float64 at the same states (tests/data/golden/make_gradient_golden.py),
// and those by all of their weights (make_parameter_golden.py).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/base/thread_pool.h"
#include "kernels/model/model.h"
#include "kernels/parameter_summer.h"
#include "tests/testing/backward_rig.h"
#include "tests/testing/golden.h"
#include "tests/testing/larger.h"
#include "tests/testing/safetensors_writer.h"
#include "tests/testing/solver_rig.h"

namespace deeppcr::testing {
namespace {

// The demo model of a run, under its scheduler and with its clip.
Model ReadClipped(const nlohmann::json& run, const std::string& directory) {
  const std::string demo =
      std::string(DEEPPCR_SOURCE_DIR "/deploy/models/repository/") + std::string(run["model"]);
  std::filesystem::copy(demo + "/1", directory, std::filesystem::copy_options::recursive);
  const std::string path = directory + "/scheduler_config.json";
  nlohmann::json config = nlohmann::json::parse(ReadFile(path, 1 << 20).value());
  EXPECT_EQ(config["_class_name"], run["scheduler"]);
  config["clip_sample"] = true;
  config["clip_sample_range"] = run["clip_range"];
  EXPECT_TRUE(WriteFileAtomically(path, config.dump()).ok());
  return ReadModel(directory, {.parameters = true}).value();
}

// The largest |got - want| / max |want|.
double Off(const std::vector<float>& got, const std::vector<double>& want) {
  EXPECT_EQ(got.size(), want.size());
  double off = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    off = Larger(off, std::fabs(got[i] - want[i]));
    size = Larger(size, std::fabs(want[i]));
  }
  return off == 0 ? 0 : off / size;
}

class GradientGoldenTest : public ::testing::TestWithParam<size_t> {};

TEST_P(GradientGoldenTest, IsThatOfAutograd) {
  const BackendCase& backend = BackendCases()[GetParam()];
  if (backend.name == "reference") GTEST_SKIP() << "a thousand Jacobians in double take minutes";
  const nlohmann::json golden = ReadGolden("gradients.json");
  ASSERT_EQ(golden["runs"].size(), 2U);
  for (const nlohmann::json& run : golden["runs"]) {
    const TemporaryDirectory directory;
    const Model model = ReadClipped(run, directory.path() + "/model");
    const SystemSpec& spec = model.systems.front();
    const int64_t dim = ShapeOf(spec).state_dim, steps = ShapeOf(spec).num_steps;
    ASSERT_EQ(steps, run["steps"]);
    ASSERT_GT(run["clipped_share"], 0.05);
    const std::vector<int32_t> labels = {run["label"]};
    BackwardRequest request = {
        .samples = {.num_samples = 1,
                    .labels = ShapeOf(spec).num_classes > 0 ? std::span<const int32_t>(labels)
                                                            : std::span<const int32_t>()},
        .states = Flat<float>(run["states"]),
        .of_outputs = Flat<float>(run["of_outputs"])};
    const BackwardRig rig(backend.create(), spec);
    const auto check = [&](const Gradients& got, const std::string& way) {
      SCOPED_TRACE(std::string(run["model"]) + ", " + way);
      const double off = Off(got.initial, Flat<double>(run["by_initial_state"]));
      std::printf("%s, %s, %s: off by %.2g\n", backend.name.c_str(),
                  std::string(run["model"]).c_str(), way.c_str(), off);
      EXPECT_LE(off, 1e-5);
      if (got.step_noise.empty()) return;
      std::vector<float> rows;
      for (int64_t l = 0; l < steps; l += run["step_noise_every"].get<int64_t>())
        rows.insert(rows.end(), got.step_noise.begin() + l * dim,
                    got.step_noise.begin() + (l + 1) * dim);
      EXPECT_LE(Off(rows, Flat<double>(run["by_step_noise"])), 1e-5);
    };
    check(rig.Sequential(request), "sequential");
    for (const int64_t interval : {int64_t{1}, int64_t{7}, int64_t{32}, steps})
      check(rig.Parallel(request, interval), "parallel by " + std::to_string(interval));
  }
}

// The norm of a gradient, and its products with cosines over its elements.
std::vector<double> SummaryOf(const std::vector<float>& gradient, const nlohmann::json& waves) {
  std::vector<double> summary(1 + waves.size());
  for (size_t i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i];
    summary[0] += g * g;
    for (size_t k = 0; k < waves.size(); ++k)
      summary[1 + k] += g * std::cos(waves[k].get<double>() * static_cast<double>(i + 1));
  }
  summary[0] = std::sqrt(summary[0]);
  return summary;
}

TEST_P(GradientGoldenTest, ByParametersIsThatOfAutograd) {
  const BackendCase& backend = BackendCases()[GetParam()];
  if (backend.name == "reference") GTEST_SKIP() << "a thousand Jacobians in double take minutes";
  const nlohmann::json states = ReadGolden("gradients.json");
  const nlohmann::json golden = ReadGolden("parameter_gradients.json");
  ASSERT_EQ(golden["runs"].size(), 2U);
  for (size_t r = 0; r < golden["runs"].size(); ++r) {
    const nlohmann::json &run = states["runs"][r], &expected = golden["runs"][r]["by_parameters"];
    SCOPED_TRACE(std::string(run["model"]));
    const TemporaryDirectory directory;
    const Model model = ReadClipped(run, directory.path() + "/model");
    const SystemSpec& spec = model.systems.front();
    const std::vector<int32_t> labels(ShapeOf(spec).num_classes > 0 ? 1 : 0,
                                      run["label"].get<int32_t>());
    const BackwardRequest request = {.samples = {.num_samples = 1, .labels = labels},
                                     .states = Flat<float>(run["states"]),
                                     .of_outputs = Flat<float>(run["of_outputs"]),
                                     .state_cotangents = true};
    const BackwardRig rig(backend.create(), spec);
    ThreadPool pool(2);
    const ParameterSummer summer(model.parameters, spec, &pool);
    for (const Gradients& back : {rig.Sequential(request), rig.Parallel(request, 32)}) {
      std::vector<std::vector<float>> tensors;
      std::vector<float*> sums;
      for (const ParameterTensor& tensor : model.parameters->tensors) {
        size_t size = 1;
        for (const int64_t extent : tensor.shape) size *= static_cast<size_t>(extent);
        tensors.emplace_back(size);
      }
      for (std::vector<float>& tensor : tensors) sums.push_back(tensor.data());
      const ParameterSample sample = {.label = labels.empty() ? 0 : labels[0],
                                      .states = request.states.data(),
                                      .state_cotangents = back.state_cotangents.data(),
                                      .decode_delta = request.of_outputs.data()};
      ASSERT_TRUE(summer.Add({&sample, 1}, sums, nullptr, [](double) {}).ok());
      ASSERT_EQ(tensors.size(), expected.size());
      for (size_t t = 0; t < tensors.size(); ++t) {
        const std::string& name = model.parameters->tensors[t].name;
        const std::vector<double> want = Flat<double>(expected[name]);
        const std::vector<double> got = SummaryOf(tensors[t], golden["waves"]);
        ASSERT_GT(want[0], 0) << name;
        ASSERT_EQ(got.size(), want.size()) << name;
        for (size_t k = 0; k < want.size(); ++k)
          EXPECT_NEAR(got[k], want[k], 1e-5 * want[0]) << name << ", number " << k;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, GradientGoldenTest,
                         ::testing::Range<size_t>(0, BackendCases().size()),
                         [](const auto& c) { return BackendCases()[c.param].name; });

}  // namespace
}  // namespace deeppcr::testing
