// SPDX-License-Identifier: Apache-2.0
// The diffusion family in the iterative mode: states, matrices and probes propagated through
// intervals, compared with plain loops and with the bits of the sequential mode.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels/cpu/diffusion/diffusion_process.h"
#include "tests/testing/larger.h"

namespace deeppcr::testing {
namespace {

using cpu::kColumns;

// Buffers of Propagate with the states of a trajectory at the interval ends.
struct Intervals {
  Intervals(const Process& process, int64_t interval, const std::vector<float>& trajectory)
      : steps(interval), count((process.steps - 1) / interval + 1), width(process.width) {
    const int64_t dim = process.dim;
    states.resize((count + 1) * kColumns * width);
    propagated.resize(count * kColumns * width, 77.0F);
    matrices.resize(count * width * width);
    for (int64_t p = 0; p <= count; ++p)
      std::copy_n(trajectory.begin() + std::min(p * interval, process.steps) * dim, dim,
                  states.begin() + p * kColumns * width);
  }
  cpu::IntervalPass Pass(bool with_matrices, bool probes) {
    return {.interval = steps,
            .num_intervals = count,
            .states = states.data(),
            .propagated = propagated.data(),
            .matrices = with_matrices ? matrices.data() : nullptr,
            .diagonal = false,
            .probes = probes};
  }
  const float* Propagated(int64_t p, int64_t column = 0) const {
    return propagated.data() + (p * kColumns + column) * width;
  }

  int64_t steps, count, width;
  std::vector<float> states, propagated, matrices;
};

class DiffusionIntervalsTest : public SetAndKindTest {};

TEST_P(DiffusionIntervalsTest, PropagateHasTheBitsOfAdvance) {
  for (const int64_t dim : {2, 16, 33}) {
    for (const int64_t steps : {1, 2, 40}) {
      Process process({.kind = kind(), .state_dim = dim, .hidden_dim = 20, .num_steps = steps},
                      set());
      const std::vector<float> trajectory = process.Trajectory({.seed = 3});
      for (const int64_t interval : {int64_t{1}, int64_t{2}, int64_t{7}, steps}) {
        if (interval > steps) continue;
        for (const bool matrices : {false, true})
          for (const bool probes : {false, true}) {
            SCOPED_TRACE(absl::StrCat("D ", dim, " L ", steps, " C ", interval, " matrices ",
                                      matrices, " probes ", probes));
            Intervals intervals(process, interval, trajectory);
            const PassCount count = process.recurrence->Propagate(intervals.Pass(matrices, probes));
            EXPECT_EQ(count.stages, interval);
            EXPECT_EQ(count.columns, 1 + (probes ? kNumProbes : 0) + (matrices ? dim : 0));
            for (int64_t p = 0; p < intervals.count; ++p) {
              const int64_t end = std::min((p + 1) * interval, steps);
              ASSERT_TRUE(SameFloats(intervals.Propagated(p), trajectory.data() + end * dim, dim))
                  << "interval " << p;
              for (int64_t i = dim; i < process.width; ++i)
                ASSERT_EQ(intervals.Propagated(p)[i], 0.0F) << "padding";
              if (!probes) {
                ASSERT_EQ(intervals.Propagated(p, 1)[0], 77.0F) << "not asked for";
              }
            }
          }
      }
    }
  }
}

TEST_P(DiffusionIntervalsTest, MatricesAreTheJacobiansOfWholeIntervals) {
  for (const int64_t dim : {1, 3, 17}) {
    Process process({.kind = kind(), .state_dim = dim, .num_steps = 8}, set());
    const SampleInput input = {.seed = 21};
    const std::vector<float> trajectory = process.Trajectory(input);
    for (const int64_t interval : {1, 3}) {
      for (const bool probes : {false, true}) {
        Intervals intervals(process, interval, trajectory);
        process.recurrence->Propagate(intervals.Pass(true, probes));
        for (int64_t p = 1; p < intervals.count; ++p) {
          const int64_t begin = p * interval, end = std::min(begin + interval, process.steps);
          for (int64_t j = 0; j < dim; j += 1 + dim / 4) {
            const auto z = process.Plain(
                input, begin, end,
                Along<Bounded>(trajectory.data() + begin * dim, UnitVector(dim, j)),
                [&](int64_t l) {
                  return Constants(PlainModulation<Bounded>(process.random.spec(), l, {}));
                });
            const float* column =
                intervals.matrices.data() + (p * process.width + j) * process.width;
            for (int64_t i = 0; i < process.width; ++i) {
              if (i >= dim) {
                ASSERT_EQ(column[i], 0.0F) << "padding";
              } else {
                ASSERT_NEAR(column[i], z[i].slope.value, 2 * z[i].slope.error)
                    << "interval " << p << " column " << j;
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(DiffusionIntervalsTest, WhatIsNotFiniteReachesTheFinalState) {
  Process process({.kind = kind(), .state_dim = 3, .num_steps = 12}, set());
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::vector<float> initial = {0.1F, bad, 0.2F};
    const std::vector<float> trajectory = process.Trajectory({.initial_noise = initial.data()});
    for (int64_t l = 0; l <= 12; ++l)
      EXPECT_FALSE(std::isfinite(trajectory[l * 3]) && std::isfinite(trajectory[l * 3 + 1]) &&
                   std::isfinite(trajectory[l * 3 + 2]));
    Intervals intervals(process, 12, trajectory);
    process.recurrence->Propagate(intervals.Pass(true, true));
    EXPECT_FALSE(std::isfinite(intervals.Propagated(0)[0]));
  }
}

// Compares the probes with the difference between a float32 trajectory and the same process in
// double. A single difference is a random number, and may be small by luck; the probes promise its
// size. The last step is left out: if DDPM clips there, the states have no error at all.
TEST_P(DiffusionIntervalsTest, ProbesMeasureTheRoundingOfAWholeTrajectory) {
  struct Case {
    int64_t dim, hidden, blocks, steps;
    bool ddpm;
  };
  for (const Case c : {Case{2, 32, 2, 200, false}, Case{16, 64, 3, 100, false},
                       Case{16, 128, 3, 50, false}, Case{16, 64, 3, 200, true}}) {
    double actual = 0, estimate = 0, lowest = std::numeric_limits<double>::infinity(), highest = 0;
    constexpr int kModels = 8;
    for (uint64_t seed = 0; seed < kModels; ++seed) {
      Process process({.kind = kind(),
                       .state_dim = c.dim,
                       .hidden_dim = c.hidden,
                       .num_blocks = c.blocks,
                       .num_steps = c.steps,
                       .clip = c.ddpm || seed % 2 == 0,
                       .first_signal = 0.75,
                       .ddpm = c.ddpm,
                       .seed = seed},
                      set());
      const SampleInput input = {.seed = seed};
      const int64_t end = c.steps - 1;
      const std::vector<float> trajectory = process.Trajectory(input);
      const auto plain =
          process.PlainFrom(input, 0, end, Exactly<double>(trajectory.data(), c.dim));
      Intervals intervals(process, end, trajectory);
      process.recurrence->Propagate(intervals.Pass(false, true));
      double error = 0, probe = 0;
      for (int64_t i = 0; i < c.dim; ++i) {
        error = Larger(error, std::fabs(trajectory[end * c.dim + i] - plain[i]));
        for (int64_t j = 1; j < kColumns; ++j)
          probe = std::max(std::fabs(double{intervals.Propagated(0, j)[i]}), probe);
      }
      ASSERT_TRUE(std::isfinite(probe) && error > 0);
      ASSERT_LT(std::fabs(plain[0]), 100) << "the process is to be a reasonable one";
      actual += error * error;
      estimate += probe * probe;
      lowest = std::min(lowest, probe / error);
      highest = std::max(highest, probe / error);
    }
    const double ratio = std::sqrt(estimate / actual);
    const std::string key = absl::StrCat("D", c.dim, "_H", c.hidden, "_L", c.steps);
    RecordProperty(key, absl::StrCat(lowest, " ", ratio, " ", highest));
    EXPECT_LT(ratio, 10) << key;
    EXPECT_GT(lowest, 0.1) << key;
  }
}

// After as many iterations as there are intervals every state has the bits of the sequential run.
// If the network is tame, Newton comes close after far fewer.
TEST_P(DiffusionIntervalsTest, ASpaceIteratesToTheSequentialStates) {
  const RandomDiffusion random({.kind = kind(),
                                .state_dim = 3,
                                .num_steps = 40,
                                .num_classes = 2,
                                .decoder = true,
                                .output_gain = 0.1,
                                .first_signal = 0.75});
  const auto sets = {cpu::InstructionSet::kBaseline, cpu::InstructionSet::kAvx2,
                     cpu::InstructionSet::kAvx512};
  const auto backend = *cpu::NewCpuBackend(sets.begin()[std::get<0>(GetParam())]);
  const std::unique_ptr<System> system = *backend->NewSystem(random.spec());
  EXPECT_GT(system->memory_bytes(), 0);
  const std::unique_ptr<SolveSpace> space = *system->NewSpace({});
  space->Encode(0, {.label = 1, .seed = 5});
  space->Restart(1);
  std::vector<float> sequential(41 * 3), iterative(41 * 3), outputs(9);
  float* to = sequential.data();
  EXPECT_EQ(space->Advance(1, 0, 40, &to), 40);
  space->SetShootingInterval(4);
  EXPECT_EQ(space->GuessCoarse(0).stages, 14);
  auto* passes = std::get<IterationPasses*>(space->iteration({}));
  passes->Begin(1);
  const std::vector<int32_t> samples = {0};
  const IterationKind iteration = {.probes = true};
  const int levels = 4;  // ceil(log2 10)
  for (int k = 0; k < 10; ++k) {
    UpdateNorms norms;
    passes->Propagate(samples, iteration);
    for (int level = 1; level < levels; ++level) passes->UpSweep(samples, level, iteration);
    for (int level = levels - 1; level >= 0; --level) passes->DownSweep(samples, level, iteration);
    passes->Update(samples, iteration, 1e-6, {&norms, 1});
    ASSERT_TRUE(norms.finite);
    if (k == 5) {
      EXPECT_LT(norms.update, 1e-4);
    }
  }
  to = iterative.data();
  passes->Finish(1, &to);
  EXPECT_EQ(iterative, sequential);
  space->Decode(0, outputs.data());
  const double amplified = space->AmplifyError(0, 1e-3, 1e-6, outputs.data());
  EXPECT_TRUE(std::isfinite(amplified) && amplified > 0);
}

INSTANTIATE_TEST_SUITE_P(All, DiffusionIntervalsTest, EverySetAndKind(),
                         [](const auto& test) { return SetAndKindName(test.param); });

}  // namespace
}  // namespace deeppcr::testing
