// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/cancel_token.h"

#include <gtest/gtest.h>

#include "kernels/solver/registry.h"
#include "tests/testing/random_diffusion.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

CancelToken::Clock::time_point InSeconds(int seconds) {
  return CancelToken::Clock::now() + std::chrono::seconds(seconds);
}

TEST(CancelTokenTest, TellsWhyToStop) {
  CancelToken token(InSeconds(3600));
  EXPECT_EQ(token.stop_reason(), StopReason::kNone);
  token.Cancel();
  EXPECT_EQ(token.stop_reason(), StopReason::kCancelled);
  EXPECT_EQ(CancelToken(InSeconds(-1)).stop_reason(), StopReason::kDeadline);
  EXPECT_EQ(CancelToken().stop_reason(), StopReason::kNone);
}

TEST(CancelTokenTest, ADeadlineThatAlsoCancelledIsADeadline) {
  CancelToken token(InSeconds(-1));
  token.Cancel();
  EXPECT_EQ(token.stop_reason(), StopReason::kDeadline);
}

TEST(CancelTokenTest, FiresWithItsParent) {
  CancelToken parent;
  const CancelToken child(InSeconds(3600), &parent);
  EXPECT_EQ(child.stop_reason(), StopReason::kNone);
  parent.Cancel();
  EXPECT_EQ(child.stop_reason(), StopReason::kCancelled);
  const CancelToken late(InSeconds(-1));
  EXPECT_EQ(CancelToken(InSeconds(3600), &late).stop_reason(), StopReason::kCancelled);
  EXPECT_EQ(CancelToken(InSeconds(-1), &parent).stop_reason(), StopReason::kDeadline);
}

// Three samples of one run: the first is late and cancelled, the second cancelled, the third fine.
TEST(CancelTokenTest, EverySolverReportsTheReasonOfEachSample) {
  constexpr int64_t kSteps = 40, kSamples = 3;
  const RandomSystem system({.num_steps = kSteps, .state_dim = 3});
  const SolverRig rig(BackendCases().front().create(), system.spec());
  const std::vector<float> inputs = system.Inputs(kSamples, 2);
  std::vector<float> outputs(inputs.size());
  CancelToken late(InSeconds(-1)), cancelled(InSeconds(3600)), fine(InSeconds(3600));
  late.Cancel();
  cancelled.Cancel();
  for (const SolverRow& row : Solvers()) {
    std::vector<SampleReport> reports(kSamples);
    std::vector<RunItem> items;
    for (const CancelToken* token : {&late, &cancelled, &fine}) {
      const size_t i = items.size();
      items.push_back({.samples = {.num_samples = 1, .inputs = std::span(inputs).subspan(3 * i, 3)},
                       .outputs = std::span(outputs).subspan(3 * i, 3),
                       .reports = std::span(reports).subspan(i, 1),
                       .token = token});
    }
    ASSERT_TRUE(rig.runner().Run(OptionsFor(row.name, kSteps, 8, 1e-4), items, nullptr).ok());
    EXPECT_EQ(reports[0].termination, Termination::kDeadline) << row.name;
    EXPECT_EQ(reports[1].termination, Termination::kCancelled) << row.name;
    EXPECT_TRUE(reports[2].converged) << row.name;
  }
}

// Long passes look at the token; a pass that they leave undone is never judged.
TEST(CancelTokenTest, APassOfASampleWhoseTokenHasFiredIsLeftUndone) {
  const RandomSystem stack({.num_steps = 30, .state_dim = 4});
  const RandomDiffusion process({.num_steps = 30});
  const std::vector<float> inputs = stack.Inputs(1, 3);
  const CancelToken idle;
  CancelToken fired;
  fired.Cancel();
  for (const SystemSpec& spec : {SystemSpec(stack.spec()), SystemSpec(process.spec())}) {
    for (const BackendCase& backend : BackendCases()) {
      if (backend.name == "reference") continue;  // the reference always finishes
      const std::unique_ptr<Backend> owner = backend.create();
      const std::unique_ptr<System> system = *owner->NewSystem(spec);
      const std::unique_ptr<SolveSpace> space = *system->NewSpace({});
      space->SetShootingInterval(5);
      const std::vector<int32_t> members = {0};
      for (const CancelToken* token : {&idle, static_cast<const CancelToken*>(&fired)}) {
        space->Encode(0, {.inputs = inputs.data(), .token = token});
        space->GuessConstant(0);
        auto* passes = std::get<IterationPasses*>(space->iteration({}));
        passes->Propagate(members, {});
        EXPECT_EQ(passes->interrupted(0), token == &fired) << backend.name;
      }
    }
  }
}

TEST(CancelTokenTest, ACoarseGuessIsLeftUndone) {
  const RandomDiffusion process({.num_steps = 64});
  const std::unique_ptr<Backend> backend = BackendCases().front().create();
  const std::unique_ptr<System> system = *backend->NewSystem(process.spec());
  const std::unique_ptr<SolveSpace> space = *system->NewSpace({});
  CancelToken token;
  space->SetShootingInterval(4);
  space->Encode(0, {.token = &token});
  EXPECT_EQ(space->GuessCoarse(0).stages, 16);
  token.Cancel();
  EXPECT_EQ(space->GuessCoarse(0).stages, 0);
}

TEST(CancelTokenTest, PackingIsLeftUndone) {
  const RandomDiffusion process({.num_steps = 64});
  const std::unique_ptr<Backend> backend = BackendCases().front().create();
  CancelToken token;
  EXPECT_TRUE(backend->NewSystem(process.spec(), {.token = &token}).ok());
  token.Cancel();
  EXPECT_EQ(backend->NewSystem(process.spec(), {.token = &token}).status().code(),
            absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace deeppcr::testing
