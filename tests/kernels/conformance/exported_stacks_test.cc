// SPDX-License-Identifier: Apache-2.0
// Stacks whose blocks torch.onnx.export wrote, loaded from folders as a user would have them: what
// the modules say in float64, by the reference and by every solver on every backend.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/strings.h"
#include "kernels/model/model.h"
#include "kernels/solver/registry.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

class ExportedStacksTest : public ::testing::TestWithParam<const char*> {
 protected:
  const std::string folder_ = StrCat(DEEPPCR_SOURCE_DIR, "/tests/data/stack/", GetParam());

  // The rows of golden.json, one after another.
  template <class T>
  std::vector<T> Golden(const char* key) const {
    const auto text = ReadFile(folder_ + "/golden.json", 1 << 20);
    EXPECT_TRUE(text.ok()) << text.status();
    std::vector<T> all;
    const auto golden = ParseJson(*text, {});
    for (const auto& row : (*golden)[key])
      for (const auto& number : row) all.push_back(number.get<T>());
    return all;
  }
};

TEST_P(ExportedStacksTest, EverySolverSaysWhatTheModulesSay) {
  const absl::StatusOr<Model> model = ReadModel(folder_, {});
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(model->systems.size(), 1u);
  const SystemSpec& spec = model->systems[0];
  const SystemShape shape = ShapeOf(spec);
  const auto inputs = Golden<float>("inputs");
  const auto outputs = Golden<double>("outputs");
  const SolverRig oracle(BackendCases().back().create(), spec);
  const Solved want = oracle.Solve({.solver = "sequential"}, inputs);
  EXPECT_LE(RelativeError(want.outputs, outputs, shape.output_dim, 0), 2e-7) << "rounded once";
  const std::vector<double> states(want.trajectory.begin(), want.trajectory.end());
  int claims = 0, solves = 0;
  for (size_t i = 0; i + 1 < BackendCases().size(); ++i) {
    const SolverRig rig(BackendCases()[i].create(), spec),
        threads(BackendCases()[i].create(), spec, 3);
    for (const SolverRow& row : Solvers()) {
      if (!Suits(row, shape)) continue;
      SCOPED_TRACE(StrCat(BackendCases()[i].name, " ", row.name));
      ResolvedOptions options = OptionsFor(row.name, shape.num_steps, 2, 1e-4);
      const Solved solved = rig.Solve(options, inputs);
      EXPECT_LE(RelativeError(solved.trajectory, states, shape.state_dim, 1e-2),
                row.iterative ? 1e-4 : 1e-5);
      EXPECT_LE(RelativeError(solved.outputs, outputs, shape.output_dim, 1e-2), 2e-4);
      EXPECT_TRUE(solved.SameAnswers(threads.Solve(options, inputs)));
      for (const SampleReport& report : solved.reports) {
        EXPECT_TRUE(report.converged);
        claims += report.fallback ? 0 : 1;
        ++solves;
      }
    }
  }
  EXPECT_GT(claims, solves * 2 / 3) << "fallbacks would prove nothing";
}

TEST_P(ExportedStacksTest, AnswersDependOnNeitherTheBatchNorItsOrder) {
  const absl::StatusOr<Model> model = ReadModel(folder_, {});
  ASSERT_TRUE(model.ok()) << model.status();
  const SystemShape shape = ShapeOf(model->systems[0]);
  const auto inputs = Golden<float>("inputs");
  const auto n = static_cast<int64_t>(inputs.size()) / shape.input_dim;
  for (size_t i = 0; i + 1 < BackendCases().size(); ++i) {
    const SolverRig rig(BackendCases()[i].create(), model->systems[0]);
    for (const std::string_view solver : {"sequential", "newton", "picard"}) {
      const ResolvedOptions options = OptionsFor(solver, shape.num_steps, 3, 1e-4);
      const Solved together = rig.Solve(options, inputs);
      for (int64_t s = n; s-- > 0;) {
        const auto begin = inputs.begin() + s * shape.input_dim;
        const Solved alone = rig.Solve(options, std::vector<float>(begin, begin + shape.input_dim));
        const auto row = together.outputs.begin() + s * shape.output_dim;
        EXPECT_EQ(alone.outputs, std::vector<float>(row, row + shape.output_dim)) << solver;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stacks, ExportedStacksTest,
                         ::testing::Values("prenorm", "bottleneck", "gated", "tied", "residual"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace deeppcr::testing
