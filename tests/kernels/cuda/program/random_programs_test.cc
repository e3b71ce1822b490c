// SPDX-License-Identifier: Apache-2.0
// Random step programs on the executor, compared with their evaluation in double: states, matrices,
// and whether the probes know how large the rounding is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/program/model.h"
#include "kernels/program/evaluate.h"
#include "tests/kernels/cuda/program/random_program.h"
#include "tests/kernels/program/step_judge.h"
#include "tests/testing/larger.h"
#include "tests/testing/simt/simt_device.h"

namespace deeppcr::testing {
namespace {

using System = ProgramOnExecutor;
using program::Doubles;
using program::Evaluation;

// The number of programs to draw; the slow run of this test asks for more.
int NumPrograms() {
  const char* text = std::getenv("DEEPPCR_TEST_PROGRAMS");
  return text == nullptr ? 300 : std::atoi(text);
}

TEST(CudaProgramsTest, StepsAndMatricesAreThoseInDouble) {
  program::StepJudge judge;
  int refused = 0, at_a_kink = 0;
  for (int seed = 1; seed <= NumPrograms(); ++seed) {
    SCOPED_TRACE(seed);
    System system(seed);
    if (absl::IsUnimplemented(system.status())) {
      ++refused;  // a floor or a lookup of the state
      continue;
    }
    ASSERT_TRUE(system.status().ok()) << system.status();
    Evaluation evaluation(system.program());
    if (system.ChangesSides(evaluation, 0) || system.ChangesSides(evaluation, 1)) {
      ++at_a_kink;
      continue;
    }
    system.Evaluate(evaluation, Doubles(system.state()));
    const auto value = evaluation.at(system.program().output);
    const std::vector<double> want(value.begin(), value.end());
    const int64_t width = system.width();
    // The matrix is that of the second interval, which has a layer of its own.
    const std::vector<double> jacobian = system.JacobianAt(evaluation, 1, 1);

    const std::vector<float> z = system.Step();
    // All columns at once, or a few of them at a time.
    const int rows = seed % 2 == 0 ? System::kMostRows : 2 + kNumProbes;
    System::Pass pass(system, rows);
    ASSERT_TRUE(system.launched().ok()) << system.launched();
    const cuda::BlockMemory memory = pass.MemoryOf(system);
    const float* propagated = memory.Propagated(0);
    const float* matrix = memory.Matrix(pass.tree.index_of(0, 1));
    ASSERT_NO_FATAL_FAILURE(judge.Judge(
        z, propagated, width, [&](int64_t i, int64_t k) { return matrix[i * width + k]; }, want,
        jacobian));
  }
  judge.ExpectMostJudged(NumPrograms(), refused, at_a_kink);
}

// No instruction begins before what it waits for: other orders of warps give the same bits.
TEST(CudaProgramsTest, BitsDependOnNoOrderOfWarps) {
  int compared = 0, over_grid = 0;
  for (int seed = 1; seed <= NumPrograms() / 4; ++seed) {
    SCOPED_TRACE(seed);
    simt::DeviceOptions options;
    options.limits.max_warps = 4;
    System ascending(seed, options);
    if (!ascending.status().ok()) continue;
    const System::Pass right(ascending, System::kMostRows);
    const std::vector<float> state = ascending.Step(System::kSteps);
    for (const simt::Order order : {simt::Order::kDescending, simt::Order::kShuffled}) {
      options.schedule = {.order = order, .seed = static_cast<uint64_t>(seed)};
      System other(seed, options);
      EXPECT_EQ(std::memcmp(right.bytes.data(), System::Pass(other, System::kMostRows).bytes.data(),
                            right.bytes.size() * sizeof(float)),
                0);
      ++compared;
      // By several blocks that wait for one another, which keep all panels, or some, or none.
      for (const auto& [blocks, floats] :
           {std::pair{3, 1 << 20}, std::pair{100, 300 * seed % 5000}, std::pair{5, 0}}) {
        const std::vector<float> by_grid = other.StepOverGrid(blocks, floats);
        if (by_grid.empty()) continue;
        EXPECT_EQ(std::memcmp(state.data(), by_grid.data(), state.size() * sizeof(float)), 0);
        ++over_grid;
      }
    }
  }
  EXPECT_GT(compared, NumPrograms() / 3);
  EXPECT_GT(over_grid, NumPrograms() / 2);
}

}  // namespace
}  // namespace deeppcr::testing
