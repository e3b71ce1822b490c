// SPDX-License-Identifier: Apache-2.0
// Denoisers that torch.onnx.export wrote, as models: loaded from a folder as a user would have it,
// and sampled by every solver on the CPU, compared with the reference. That the programs are the
// modules is tests/kernels/program/exports_test.cc's to show.
#include <gtest/gtest.h>
#include <onnx/onnx.pb.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/base/strings.h"
#include "kernels/model/model.h"
#include "kernels/solver/registry.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

struct Export {
  const char* name;
  int64_t state, condition, classes;
};
constexpr std::array kExports = {Export{"tiny_identity", 2, 0, 0},
                                 Export{"tiny_sinusoidal", 2, 0, 0},
                                 Export{"diffusion_ql", 3, 5, 0},
                                 Export{"dppo", 6, 5, 0},
                                 Export{"tabddpm", 5, 0, 3},
                                 Export{"idql", 3, 4, 0},
                                 Export{"idql_decomposed", 3, 4, 0},
                                 Export{"swiglu_head", 4, 6, 0},
                                 Export{"mar", 4, 6, 0},
                                 Export{"group_norm", 3, 0, 0}};

class ExportedDenoisersTest : public ::testing::TestWithParam<Export> {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / StrCat("exported_", GetParam().name);
    std::filesystem::create_directories(folder_);
    WriteScheduler(
        "[50, 10]",
        R"({"_class_name": "DDPMScheduler", "num_train_timesteps": 50, "clip_sample": true})");
    std::filesystem::copy_file(
        StrCat(DEEPPCR_SOURCE_DIR "/tests/data/program/", GetParam().name, ".onnx"),
        folder_ / "denoiser.onnx", std::filesystem::copy_options::overwrite_existing);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void WriteScheduler(const std::string& steps, const std::string& scheduler) const {
    std::string condition;
    if (GetParam().condition > 0)
      condition = StrCat("\"conditioning_dim\": ", GetParam().condition, ", ");
    if (GetParam().classes > 0) condition = StrCat("\"num_classes\": ", GetParam().classes, ", ");
    std::ofstream(folder_ / "config.json")
        << StrCat(R"({"model_type": "diffusion", "denoiser": "onnx", )", condition,
                  "\"state_dim\": ", GetParam().state, ", \"output_dim\": ", GetParam().state,
                  ", \"num_inference_steps\": ", steps, "}");
    std::ofstream(folder_ / "scheduler_config.json") << scheduler;
  }
  void CheckSolvers() const;

  std::filesystem::path folder_;
};

TEST_P(ExportedDenoisersTest, EverySolverAgreesWithTheReference) { CheckSolvers(); }

// The denoiser reads the part of the state that is no memory.
TEST_P(ExportedDenoisersTest, EverySolverOfASamplerThatRemembersAgreesWithTheReference) {
  WriteScheduler("[25, 10]", R"({"_class_name": "DPMSolverMultistepScheduler",
                                 "num_train_timesteps": 50})");
  CheckSolvers();
  WriteScheduler("[25, 9]", R"({"_class_name": "HeunDiscreteScheduler", "clip_sample": true,
                                "timestep_spacing": "leading", "num_train_timesteps": 50})");
  CheckSolvers();
}

void ExportedDenoisersTest::CheckSolvers() const {
  const absl::StatusOr<Model> model = ReadModel(folder_.string(), {});
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(model->systems.size(), 2u);
  constexpr int64_t kSamples = 3;
  std::vector<float> conditions(static_cast<size_t>(kSamples * GetParam().condition));
  for (size_t i = 0; i < conditions.size(); ++i)
    conditions[i] = static_cast<float>(std::sin(static_cast<double>(i + 1)));
  std::vector<int32_t> labels;
  for (int32_t i = 0; GetParam().classes > 0 && i < kSamples; ++i)
    labels.push_back(i % static_cast<int32_t>(GetParam().classes));
  const SampleInputs request = {.num_samples = kSamples,
                                .inputs = conditions,
                                .seed = 11,
                                .first_sample = 3,
                                .labels = labels};
  for (const SystemSpec& spec : model->systems) {
    const SystemShape shape = ShapeOf(spec);
    const SolverRig oracle(BackendCases().back().create(), spec);
    const Solved want = oracle.Solve({.solver = "sequential"}, request);
    const std::vector<double> states(want.trajectory.begin(), want.trajectory.end());
    for (size_t i = 0; i + 1 < BackendCases().size(); ++i) {
      const SolverRig rig(BackendCases()[i].create(), spec);
      const Solved sequential = rig.Solve({.solver = "sequential"}, request);
      EXPECT_LE(RelativeError(sequential.trajectory, states, shape.state_dim, 1e-2), 1e-5);
      for (const std::string_view solver : {"newton", "picard"}) {
        ResolvedOptions options = OptionsFor(solver, shape.num_steps, 1, 1e-4);
        options.initial_guess = InitialGuess::kCoarse;
        // Picard may need more iterations than it gets; then the answer is the sequential one.
        if (solver == "newton") options.on_no_convergence = OnNoConvergence::kReturn;
        const Solved solved = rig.Solve(options, request);
        for (const SampleReport& report : solved.reports)
          EXPECT_TRUE(report.converged) << solver << " " << ToString(report.termination);
        EXPECT_LE(RelativeError(solved.trajectory, states, shape.state_dim, 1e-2), 1e-4) << solver;
      }
    }
  }
}

// The same file gives the same program, and its weights decide the model's id.
TEST_P(ExportedDenoisersTest, TheIdIsThatOfWhatIsComputed) {
  const std::string id = ReadModel(folder_.string(), {})->weights_sha256;
  EXPECT_EQ(id.size(), 64u);
  EXPECT_EQ(id, ReadModel(folder_.string(), {})->weights_sha256);
}

// A graph whose every name is another one, with its nodes and initialisers in another order.
std::string Disguised(const std::string& bytes) {
  onnx::ModelProto model;
  EXPECT_TRUE(model.ParseFromString(bytes));
  onnx::GraphProto& graph = *model.mutable_graph();
  std::map<std::string, std::string> names;
  const auto rename = [&](std::string* name) {
    if (name->empty()) return;
    const auto count = names.size();
    // Names whose order is another one.
    *name =
        names.try_emplace(*name, StrCat("v", 9999 - 7 * count % 5003, "_", count)).first->second;
  };
  for (auto& input : *graph.mutable_input()) {
    if (input.name() != "state" && input.name() != "time" && input.name() != "condition" &&
        input.name() != "label")
      rename(input.mutable_name());
    else
      names[input.name()] = input.name();
  }
  for (auto& output : *graph.mutable_output()) rename(output.mutable_name());
  for (auto& tensor : *graph.mutable_initializer()) rename(tensor.mutable_name());
  for (auto& node : *graph.mutable_node()) {
    node.set_name(StrCat("n", node.name().size() * 31 % 17));
    for (auto& name : *node.mutable_input()) rename(&name);
    for (auto& name : *node.mutable_output()) rename(&name);
  }
  graph.clear_value_info();
  std::mt19937 random(5);
  const auto shuffle = [&](auto* list) {
    for (int i = list->size() - 1; i > 0; --i)
      list->SwapElements(i, static_cast<int>(random() % static_cast<uint32_t>(i + 1)));
  };
  shuffle(graph.mutable_node());
  shuffle(graph.mutable_initializer());
  return model.SerializeAsString();
}

// What a graph calls its parts, and in which order it lists them, changes no bit.
TEST_P(ExportedDenoisersTest, NamesAndOrderChangeNoBit) {
  const absl::StatusOr<Model> model = ReadModel(folder_.string(), {});
  ASSERT_TRUE(model.ok()) << model.status();
  const auto file = folder_ / "denoiser.onnx";
  std::stringstream bytes;
  bytes << std::ifstream(file, std::ios::binary).rdbuf();
  std::ofstream(file, std::ios::binary) << Disguised(bytes.str());
  const absl::StatusOr<Model> disguised = ReadModel(folder_.string(), {});
  ASSERT_TRUE(disguised.ok()) << disguised.status();
  std::vector<float> conditions(static_cast<size_t>(2 * GetParam().condition), 0.5F);
  std::vector<int32_t> labels(GetParam().classes > 0 ? 2 : 0, 1);
  const SampleInputs request = {
      .num_samples = 2, .inputs = conditions, .seed = 3, .first_sample = 0, .labels = labels};
  const SystemSpec &plain = model->systems[1], &other = disguised->systems[1];
  EXPECT_EQ(ShapeOf(plain).step_weights, ShapeOf(other).step_weights);
  for (size_t i = 0; i + 1 < BackendCases().size(); ++i) {
    const SolverRig rig(BackendCases()[i].create(), plain);
    const SolverRig again(BackendCases()[i].create(), other);
    for (const std::string_view solver : {"sequential", "newton", "picard"}) {
      const ResolvedOptions options = OptionsFor(solver, ShapeOf(plain).num_steps, 2, 1e-4);
      EXPECT_TRUE(rig.Solve(options, request).SameAnswers(again.Solve(options, request)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Exports, ExportedDenoisersTest, ::testing::ValuesIn(kExports),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace deeppcr::testing
