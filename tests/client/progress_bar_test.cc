// SPDX-License-Identifier: Apache-2.0
#include "client/progress_bar.h"

#include <gtest/gtest.h>

namespace deeppcr {
namespace {

GenerationProgress At(int64_t done, int64_t in_request, int64_t all) {
  return {.done = done, .in_request = in_request, .num_samples = all};
}

std::string Text(const GenerationProgress& progress, size_t width) {
  return ProgressBarText(progress, FinishedPart(progress), width);
}

TEST(ProgressBarTextTest, CountsSamplesBeforeAnythingIsKnown) {
  EXPECT_EQ(Text(At(4, 4, 8), 80), "[############............] 4 of 8 samples");
}

TEST(ProgressBarTextTest, IterationsComeWithTheErrorEstimate) {
  GenerationProgress progress = At(0, 8, 8);
  progress.solve.set_solver("newton");
  progress.solve.set_iterations(4);
  progress.solve.set_num_steps(1000);
  EXPECT_EQ(Text(progress, 80), "[........................] 0 of 8 samples, newton iteration 4");
  progress.solve.set_error_estimate(1.2e-3);
  EXPECT_EQ(
      Text(progress, 100),
      "[........................] 0 of 8 samples, newton iteration 4, error estimate 1.2e-03");
}

TEST(ProgressBarTextTest, StepsAndSamplesOfARequestMoveTheBar) {
  GenerationProgress progress = At(4, 4, 8);
  progress.solve.set_solver("sequential");
  progress.solve.set_sample(1);
  progress.solve.set_steps(500);
  progress.solve.set_num_steps(1000);

  EXPECT_EQ(FinishedPart(progress), 5.5 / 8);
  EXPECT_EQ(Text(progress, 80),
            "[################........] 4 of 8 samples, sequential step 500 of 1000");
  progress.solve.set_sample(3);
  progress.solve.set_steps(1000);
  EXPECT_EQ(FinishedPart(progress), 1.0);
  progress.solve.set_sample(INT32_MAX);
  EXPECT_EQ(FinishedPart(progress), 1.0);
  progress.solve.set_sample(-5);
  EXPECT_EQ(FinishedPart(progress), 0.5);
}

TEST(ProgressBarTextTest, TheBarIsFilledAsFarAsItIsTold) {
  EXPECT_EQ(ProgressBarText(At(4, 4, 8), 0.75, 80), "[##################......] 4 of 8 samples");
}

TEST(ProgressBarTextTest, HostileFiguresAndTextStayInTheLine) {
  GenerationProgress progress = At(8, 8, 8);
  progress.solve.set_solver("\x1b[2J\n");
  progress.solve.set_steps(INT64_MAX);
  progress.solve.set_num_steps(1);

  const std::string text = Text(progress, 60);
  EXPECT_EQ(text, "[########################] 8 of 8 samples, \\x1b[2J\\x0a step ");
  EXPECT_EQ(Text(At(0, 0, 0), 10), "[.........");
}

}  // namespace
}  // namespace deeppcr
