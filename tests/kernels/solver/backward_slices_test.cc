// SPDX-License-Identifier: Apache-2.0
#include "kernels/solver/backward_slices.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/solver/backward_runner.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

// A request with the memory of its item.
struct Request {
  Request(const SystemShape& shape, const RandomSystem& system, const SolverRig& forward, int64_t n,
          int64_t m, bool with_deltas)
      : inputs(system.Inputs(n, 3)),
        of_outputs(system.Inputs(n * m, 4)),
        by_inputs(n * m * shape.input_dim),
        initial(n * m * shape.state_dim),
        deltas(with_deltas ? n * shape.num_steps * shape.state_dim : 0),
        state_cotangents(deltas.size()),
        reports(n) {
    of_outputs.resize(n * m * shape.output_dim, 0.3F);
    const SampleInputs samples = {.num_samples = n, .inputs = inputs};
    states = forward.Solve({.solver = "sequential"}, samples).trajectory;
    item = {.samples = samples,
            .states = states,
            .columns = m,
            .of_outputs = of_outputs,
            .inputs = by_inputs,
            .initial = initial,
            .deltas = deltas,
            .state_cotangents = state_cotangents,
            .reports = reports};
  }

  std::vector<float> inputs, states, of_outputs, by_inputs, initial, deltas, state_cotangents;
  std::vector<BackwardReport> reports;
  BackwardItem item;
};

bool Same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

class BackwardSlicesTest : public ::testing::Test {
 protected:
  BackwardSlicesTest()
      : system_({.num_steps = 20,
                 .state_dim = 5,
                 .residual = true,
                 .gain = 0.3,
                 .input_dim = 4,
                 .output_dim = 4}),
        shape_(ShapeOf(SystemSpec(system_.spec()))),
        forward_(*cpu::NewCpuBackend(), system_.spec()),
        backend_(*cpu::NewCpuBackend()),
        packed_(*backend_->NewSystem(system_.spec(), {.backward = true})),
        runner_(*BackwardRunner::Create(
            *packed_, shape_, *ChooseBackwardLimits(*packed_, 20, int64_t{1} << 28), &pool_, 1)) {}

  Request NewRequest(int64_t n, int64_t m, bool with_deltas = false) const {
    return {shape_, system_, forward_, n, m, with_deltas};
  }

  const RandomSystem system_;
  const SystemShape shape_;
  const SolverRig forward_;
  const std::unique_ptr<Backend> backend_;
  const std::unique_ptr<System> packed_;
  ThreadPool pool_{1};
  const std::unique_ptr<BackwardRunner> runner_;
};

TEST_F(BackwardSlicesTest, GiveWhatOneCallGives) {
  for (const BackwardOptions& options :
       {BackwardOptions{},
        BackwardOptions{.way = BackwardWay::kParallel, .shooting_interval = 3}}) {
    for (const double seconds : {0.0, 0.1}) {  // of a slice: they grow, or stay as small as may be
      for (const auto& [n, m] : std::vector<std::pair<int64_t, int64_t>>{
               {1, 1}, {3, 1}, {100, 1}, {1, 32}, {1, 33}, {1, 700}, {5, 40}, {7, 9}, {40, 20}}) {
        SCOPED_TRACE(std::to_string(n) + " samples, " + std::to_string(m) + " cotangents");
        if (seconds > 0 && n * m > 250) continue;
        Request a = NewRequest(n, m, m == 1), b = NewRequest(2, 3);
        Request want_a = NewRequest(n, m, m == 1), want_b = NewRequest(2, 3);
        BackwardItem items[] = {b.item, a.item}, want_items[] = {want_b.item, want_a.item};
        int calls = 0, pauses = 0;
        const auto go_back = [&](std::span<BackwardItem> slice) {
          ++calls;
          std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
          return runner_->Run(options, slice);
        };

        EXPECT_TRUE(GoBackInSlices(items, 32, go_back, [&](double) { ++pauses; }).ok());

        ASSERT_TRUE(runner_->Run(options, want_items).ok());
        EXPECT_EQ(pauses, calls - 1);
        EXPECT_EQ(calls > 1, n * m + 6 > 32);
        for (const auto& [got, want] : {std::pair(&a, &want_a), std::pair(&b, &want_b)}) {
          EXPECT_TRUE(Same(got->by_inputs, want->by_inputs));
          EXPECT_TRUE(Same(got->initial, want->initial));
          EXPECT_TRUE(Same(got->deltas, want->deltas));
          EXPECT_TRUE(Same(got->state_cotangents, want->state_cotangents));
          for (size_t i = 0; i < got->reports.size(); ++i) {
            EXPECT_EQ(got->reports[i].termination, want->reports[i].termination);
            EXPECT_EQ(got->reports[i].dependent_stages, want->reports[i].dependent_stages);
            EXPECT_EQ(got->reports[i].column_passes, want->reports[i].column_passes);
          }
        }
      }
    }
  }
}

// The kernel keeps no cotangents of states, so that it goes step by step for them.
TEST_F(BackwardSlicesTest, CotangentsOfStatesChangeNoOtherBits) {
  for (const BackwardOptions& options :
       {BackwardOptions{},
        BackwardOptions{.way = BackwardWay::kParallel, .shooting_interval = 3}}) {
    Request with = NewRequest(9, 1, true), without = NewRequest(9, 1, true);
    without.item.state_cotangents = {};
    ASSERT_TRUE(runner_->Run(options, {&with.item, 1}).ok());
    ASSERT_TRUE(runner_->Run(options, {&without.item, 1}).ok());
    EXPECT_TRUE(Same(with.by_inputs, without.by_inputs));
    EXPECT_TRUE(Same(with.initial, without.initial));
    EXPECT_TRUE(Same(with.deltas, without.deltas));
    EXPECT_FALSE(Same(with.state_cotangents, without.state_cotangents));
  }
}

TEST_F(BackwardSlicesTest, EndWithAnError) {
  Request request = NewRequest(1, 500);
  int calls = 0;
  const auto fail = [&](std::span<BackwardItem>) {
    ++calls;
    return absl::UnavailableError("gone");
  };

  EXPECT_TRUE(
      absl::IsUnavailable(GoBackInSlices({&request.item, 1}, 32, fail, [](double) { FAIL(); })));

  EXPECT_EQ(calls, 1);
}

TEST_F(BackwardSlicesTest, ReportWhatHasFired) {
  Request request = NewRequest(1, 500);
  CancelToken token;
  request.item.token = &token;
  const auto go_back = [&](std::span<BackwardItem> slice) { return runner_->Run({}, slice); };

  EXPECT_TRUE(
      GoBackInSlices({&request.item, 1}, 32, go_back, [&](double) { token.Cancel(); }).ok());

  EXPECT_EQ(request.reports[0].termination, Termination::kCancelled);
}

}  // namespace
}  // namespace deeppcr::testing
