// SPDX-License-Identifier: Apache-2.0
// The diffusion family as the spaces see it: encode, sequential and iterative modes, guesses,
// decode, against plain loops; and the bits that must agree.
#include "kernels/cpu/diffusion_recurrence.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "kernels/base/philox.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels/cpu/plain_diffusion.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using cpu::kColumns;

// A model with a recurrence and one encoded sample.
class Process {
 public:
  Process(const DiffusionOptions& options, const cpu::KernelSet& set,
          int64_t max_modulation_bytes = cpu::kMaxModulationBytes)
      : random(options),
        packed(*cpu::PackDiffusion(random.spec(), set, {}, max_modulation_bytes)),
        recurrence(packed->NewRecurrence()),
        dim(options.state_dim),
        steps(options.num_steps),
        width(packed->width) {}

  std::vector<float> Encode(const SampleInput& input, int32_t sample = 0) {
    std::vector<float> z(width);
    recurrence->Encode(sample, input, z.data());
    return z;
  }
  // z_0 .. z_L [L + 1, D] of sample 0.
  std::vector<float> Trajectory(const SampleInput& input) {
    std::vector<float> z = Encode(input), trajectory((steps + 1) * dim);
    std::copy_n(z.begin(), dim, trajectory.begin());
    float* to = trajectory.data();
    EXPECT_EQ(recurrence->Advance(z.data(), 1, 0, steps, &to), steps);
    return trajectory;
  }
  std::vector<float> FinalState(const SampleInput& input) {
    const std::vector<float> trajectory = Trajectory(input);
    return {trajectory.end() - dim, trajectory.end()};
  }
  // The noise of step i as the generator makes it.
  std::vector<float> Noise(const SampleInput& input, int64_t i) const {
    std::vector<float> noise(dim);
    FillNormals(input.seed, input.sample, static_cast<uint32_t>(i), dim, noise.data());
    return noise;
  }
  // Plain steps (begin, end] of a sample of that seed.
  template <class T>
  Values<T> Plain(const SampleInput& input, int64_t begin, int64_t end, Values<T> z,
                  const auto& modulation) const {
    for (int64_t l = begin; l < end; ++l)
      z = PlainStep(random.spec(), l, modulation(l), Noise(input, l).data(), z);
    return z;
  }
  template <class T>
  Values<T> PlainFrom(const SampleInput& input, int64_t begin, int64_t end, const Values<T>& z,
                      const Values<T>& condition = {}) const {
    return Plain(input, begin, end, z,
                 [&](int64_t l) { return PlainModulation<T>(random.spec(), l, condition); });
  }

  RandomDiffusion random;
  std::unique_ptr<cpu::PackedSystem> packed;
  std::unique_ptr<cpu::Recurrence> recurrence;
  const int64_t dim, steps, width;
};

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

class DiffusionTest : public ::testing::TestWithParam<std::tuple<size_t, DenoiserKind>> {
 protected:
  const cpu::KernelSet& set() const { return KernelsOfThisMachine()[std::get<0>(GetParam())].set; }
  DenoiserKind kind() const { return std::get<1>(GetParam()); }
};

TEST_P(DiffusionTest, AdvanceRunsThePlainProcessFromDrawnNoise) {
  for (const int64_t dim : {1, 3, 17}) {
    Process process({.kind = kind(), .state_dim = dim, .num_steps = 4}, set());
    const SampleInput input = {.seed = 11, .sample = 1234567890123};
    const std::vector<float> trajectory = process.Trajectory(input);
    std::vector<float> z0(dim);
    FillNormals(input.seed, input.sample, kInitialNoiseStep, dim, z0.data());
    ASSERT_TRUE(SameFloats(trajectory.data(), z0.data(), dim));
    Values<Bounded> z = Exactly<Bounded>(z0.data(), dim);
    for (int64_t l = 1; l <= process.steps; ++l) {
      z = process.PlainFrom(input, l - 1, l, z);
      for (int64_t i = 0; i < dim; ++i)
        ASSERT_NEAR(trajectory[l * dim + i], z[i].value, 2 * z[i].error) << "z_" << l;
    }
  }
}

TEST_P(DiffusionTest, NoiseOfTheCallerReplacesWhatWouldBeDrawn) {
  Process process({.kind = kind(), .state_dim = 5, .num_steps = 9}, set());
  const SampleInput drawn = {.seed = 7, .sample = 2};
  std::vector<float> initial(5), noise;
  FillNormals(7, 2, kInitialNoiseStep, 5, initial.data());
  for (int64_t i = 0; i < 9; ++i)
    for (const float x : process.Noise(drawn, i)) noise.push_back(x);
  const std::vector<float> expected = process.Trajectory(drawn);
  const SampleInput given = {.initial_noise = initial.data(), .step_noise = noise.data()};
  EXPECT_EQ(process.Trajectory(given), expected);
  noise[0] += 1;
  EXPECT_NE(process.Trajectory(given), expected);
  // Where sigma is 0 no noise is added, whatever the caller gives.
  ASSERT_EQ(process.random.spec().steps[8].sigma, 0);
  noise[0] -= 1;
  noise[8 * 5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(
      process.Trajectory({.initial_noise = initial.data(), .step_noise = noise.data()}).back(),
      process.Trajectory(given).back());
  EXPECT_TRUE(std::isfinite(process.FinalState(given)[0]));
}

TEST_P(DiffusionTest, SamplesOfAGroupHaveTheBitsTheyHaveAlone) {
  Process process({.kind = kind(), .state_dim = 3, .hidden_dim = 70, .num_steps = 6}, set());
  std::vector<std::vector<float>> alone;
  for (uint64_t b = 0; b < 8; ++b) alone.push_back(process.Trajectory({.seed = 5, .sample = b}));
  for (int32_t n = 1; n <= 8; ++n) {
    std::vector<float> states(n * process.width), trajectory(7 * 3);
    for (int32_t b = 0; b < n; ++b)
      process.recurrence->Encode(b, {.seed = 5, .sample = static_cast<uint64_t>(b)},
                                 states.data() + b * process.width);
    std::vector<float*> to(n, nullptr);
    to[n - 1] = trajectory.data();
    // In two parts, of which the second takes up where the first has ended.
    EXPECT_EQ(process.recurrence->Advance(states.data(), n, 0, 2, to.data()), 2);
    EXPECT_EQ(process.recurrence->Advance(states.data(), n, 2, 6, to.data()), 4);
    for (int32_t b = 0; b < n; ++b) {
      ASSERT_TRUE(SameFloats(states.data() + b * process.width, alone[b].data() + 6 * 3, 3));
      for (int64_t i = 3; i < process.width; ++i) ASSERT_EQ(states[b * process.width + i], 0.0F);
    }
    ASSERT_TRUE(SameFloats(trajectory.data() + 3, alone[n - 1].data() + 3, 6 * 3));
  }
}

TEST_P(DiffusionTest, PropagateHasTheBitsOfAdvance) {
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

TEST_P(DiffusionTest, MatricesAreTheJacobiansOfWholeIntervals) {
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

TEST_P(DiffusionTest, ClassTablesAndModulationPerSampleHaveTheSameBits) {
  const DiffusionOptions options = {
      .kind = kind(), .state_dim = 3, .hidden_dim = 20, .num_steps = 70, .num_classes = 4};
  Process tables(options, set()), per_sample(options, set(), 0);
  EXPECT_LT(static_cast<const cpu::PackedDiffusion&>(*per_sample.packed).tables.size(), 1);
  EXPECT_GT(per_sample.packed->RecurrenceBytes(), tables.packed->RecurrenceBytes());
  std::vector<std::vector<float>> seen;
  for (int32_t label = 0; label < 4; ++label) {
    seen.push_back(tables.FinalState({.label = label, .seed = 1}));
    EXPECT_EQ(per_sample.FinalState({.label = label, .seed = 1}), seen.back());
    for (int32_t other = 0; other < label; ++other) EXPECT_NE(seen[other], seen[label]);
  }
  // Of the right class: by plain loops.
  const std::vector<float> trajectory = tables.Trajectory({.label = 2, .seed = 1});
  const auto embedding = Exactly<Bounded>(tables.random.spec().class_embedding.data() + 2 * 20, 20);
  const auto z =
      tables.PlainFrom({.seed = 1}, 0, 2, Exactly<Bounded>(trajectory.data(), 3), embedding);
  for (int64_t i = 0; i < 3; ++i) EXPECT_NEAR(trajectory[2 * 3 + i], z[i].value, 2 * z[i].error);
}

TEST_P(DiffusionTest, AConditionVectorModulatesEverySampleOnItsOwn) {
  Process process(
      {.kind = kind(), .state_dim = 3, .hidden_dim = 20, .num_steps = 3, .condition_dim = 7},
      set());
  std::vector<std::vector<float>> inputs = {process.random.Vector(7), process.random.Vector(7)};
  std::vector<float> states(2 * process.width);
  for (int32_t b = 0; b < 2; ++b)
    process.recurrence->Encode(b, {.inputs = inputs[b].data(), .seed = 4},
                               states.data() + b * process.width);
  const std::vector<float> z0(states.begin(), states.begin() + 3);
  process.recurrence->Advance(states.data(), 2, 0, 3, nullptr);
  for (int32_t b = 0; b < 2; ++b) {
    const auto condition =
        PlainDense(process.random.spec().condition, Exactly<Bounded>(inputs[b].data(), 7));
    const auto z = process.PlainFrom({.seed = 4}, 0, 3, Exactly<Bounded>(z0.data(), 3), condition);
    for (int64_t i = 0; i < 3; ++i)
      EXPECT_NEAR(states[b * process.width + i], z[i].value, 2 * z[i].error) << "sample " << b;
  }
}

TEST_P(DiffusionTest, CoarseGuessHoldsTheDenoisedSample) {
  for (const int64_t steps : {5, 16, 40}) {
    Process process({.kind = kind(), .state_dim = 3, .num_steps = steps}, set());
    const SampleInput input = {.seed = 8};
    const DiffusionSpec& spec = process.random.spec();
    const std::vector<float> z0 = process.Encode(input);
    const int64_t every = (steps + 15) / 16;
    // By plain loops: x0 of every so many steps, and m as far as it follows from x0.
    std::vector<Values<Bounded>> plain = {Exactly<Bounded>(z0.data(), 3)};
    Values<Bounded> x0(3);
    int64_t evaluations = 0;
    for (int64_t l = 0; l < steps; ++l) {
      const ReverseStep& s = spec.steps[l];
      const auto constant = [](double v) { return AsFloat<Bounded>(v); };
      if (l % every == 0) {
        ++evaluations;
        const auto m =
            PlainDenoiser(spec.denoiser, PlainModulation<Bounded>(spec, l, {}), plain[l]);
        for (int64_t i = 0; i < 3; ++i)
          x0[i] = constant(s.x0_z) * plain[l][i] + constant(s.x0_m) * m[i];
      }
      Values<Bounded> next;
      for (int64_t i = 0; i < 3; ++i) {
        const Bounded z = plain[l][i];
        Bounded sum = constant(s.z_z) * z + constant(s.z_x0) * PlainClip(spec.clip_range, x0[i]);
        if (s.z_m != 0)
          sum = sum + constant(s.z_m) * ((x0[i] - constant(s.x0_z) * z) / constant(s.x0_m));
        if (s.sigma != 0) sum = sum + constant(s.sigma) * Bounded(process.Noise(input, l)[i]);
        next.push_back(sum);
      }
      plain.push_back(next);
    }
    for (const int64_t interval : {1, 3, 5}) {
      const int64_t intervals = (steps - 1) / interval + 1, stride = kColumns * process.width;
      std::vector<float> states((intervals + 1) * stride, 77.0F);
      std::copy(z0.begin(), z0.end(), states.begin());
      const PassCount count =
          process.recurrence->GuessCoarse(interval, stride, states.data(), nullptr);
      EXPECT_EQ(count.stages, evaluations);
      EXPECT_EQ(count.columns, 1);
      for (int64_t p = 1; p <= intervals; ++p) {
        const Values<Bounded>& z = plain[std::min(p * interval, steps)];
        for (int64_t i = 0; i < 3; ++i)
          ASSERT_NEAR(states[p * stride + i], z[i].value, 2 * z[i].error) << "interval " << p;
        ASSERT_EQ(states[p * stride + 3], 0.0F) << "padding";
        ASSERT_EQ(states[p * stride + process.width], 77.0F) << "beyond the state";
      }
    }
  }
}

TEST_P(DiffusionTest, CoarseGuessIsFiniteWhateverTheNetworkSays) {
  Process process({.kind = kind(), .state_dim = 3, .num_steps = 20}, set());
  std::vector<float> bad = {std::numeric_limits<float>::max(), 0.5F, -0.5F};
  std::vector<float> states(21 * kColumns * process.width);
  const std::vector<float> z0 = process.Encode({.initial_noise = bad.data()});
  std::copy(z0.begin(), z0.end(), states.begin());
  process.recurrence->GuessCoarse(1, kColumns * process.width, states.data(), nullptr);
  for (const float x : states) ASSERT_TRUE(std::isfinite(x));
}

TEST_P(DiffusionTest, WhatIsNotFiniteReachesTheFinalState) {
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

TEST_P(DiffusionTest, DecodesAndKnowsHowMuchTheDecoderAmplifies) {
  for (const int64_t dim : {1, 3, 20}) {
    Process process({.kind = kind(), .state_dim = dim, .decoder = true}, set());
    const std::vector<float> z = process.Encode({.seed = 1});
    std::vector<float> outputs(9);
    process.recurrence->Decode(z.data(), outputs.data());
    const auto chain = [&](auto x) {
      for (const DenseSpec& layer : process.random.spec().decoder) x = PlainDense(layer, x);
      return x;
    };
    const auto expected = chain(Exactly<Bounded>(z.data(), dim));
    std::vector<Bounded> sums(9);
    for (int64_t i = 0; i < 9; ++i)
      EXPECT_NEAR(outputs[i], expected[i].value, 2 * expected[i].error);
    for (int64_t j = 0; j < dim; ++j) {
      const auto column = chain(Along<Bounded>(z.data(), UnitVector(dim, j)));
      for (int64_t i = 0; i < 9; ++i)
        sums[i] = Bounded(sums[i].value + std::fabs(column[i].slope.value),
                          sums[i].error + column[i].slope.error);
    }
    const Bounded largest = *std::max_element(
        sums.begin(), sums.end(), [](Bounded a, Bounded b) { return a.value < b.value; });
    EXPECT_NEAR(process.recurrence->OutputAmplification(z.data()), largest.value,
                2 * largest.error);
    std::vector<float> nan(z.size(), std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(std::isinf(process.recurrence->OutputAmplification(nan.data())));
  }
}

TEST_P(DiffusionTest, WithoutADecoderTheAnswerIsTheState) {
  Process process({.kind = kind(), .state_dim = 3}, set());
  const std::vector<float> z = {1, 2, 3, 0};
  std::vector<float> outputs(4, 77.0F);
  process.recurrence->Decode(z.data(), outputs.data());
  EXPECT_EQ(outputs, std::vector<float>({1, 2, 3, 77}));
  EXPECT_EQ(process.recurrence->OutputAmplification(z.data()), 1);
}

// The probes measure what float32 does to a trajectory: compared with the same process in double.
// One difference is a random number, and may be small by luck; what the probes promise is its size.
// The last step is left out: where DDPM clips there it makes states without any error.
TEST_P(DiffusionTest, ProbesMeasureTheRoundingOfAWholeTrajectory) {
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
        error = std::max(error, std::fabs(trajectory[end * c.dim + i] - plain[i]));
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

// What the solvers see: after as many iterations as there are intervals every state has the bits of
// the sequential run; where the network is tame, Newton needs far fewer to come close.
TEST_P(DiffusionTest, ASpaceIteratesToTheSequentialStates) {
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
  auto* passes = std::get<IterationPasses*>(space->iteration());
  passes->ResetProbes(0);
  const std::vector<int32_t> samples = {0};
  const IterationKind iteration = {.probes = true};
  const int levels = 4;  // of ceil(log2 10)
  for (int k = 0; k < 10; ++k) {
    UpdateNorms norms;
    passes->Propagate(samples, iteration);
    for (int level = 1; level < levels; ++level) passes->ReduceLevel(samples, level, iteration);
    for (int level = levels - 1; level >= 0; --level)
      passes->DistributeLevel(samples, level, iteration);
    passes->Update(samples, iteration, 1e-6, {&norms, 1});
    ASSERT_TRUE(norms.finite);
    if (k == 5) {
      EXPECT_LT(norms.update, 1e-4);
    }
  }
  passes->ExpandTrajectory(0, iterative.data());
  EXPECT_EQ(iterative, sequential);
  space->Decode(0, outputs.data());
  const double amplified = space->AmplifyError(0, 1e-3, 1e-6, outputs.data());
  EXPECT_TRUE(std::isfinite(amplified) && amplified > 0);
}

// Rows of ten floats take many times as much where they are padded.
TEST_P(DiffusionTest, RefusesWhatDoesNotFitBeforeItAllocates) {
  const RandomDiffusion random({.kind = kind(), .hidden_dim = 10, .num_steps = 100});
  const auto backend = *cpu::NewCpuBackend();
  const std::unique_ptr<System> system = *backend->NewSystem(random.spec());
  const int64_t enough = system->memory_bytes();
  EXPECT_TRUE(backend->NewSystem(random.spec(), {.max_bytes = enough}).ok());
  const int64_t table = 100 * 64;  // at least
  for (const int64_t allowed : {int64_t{0}, int64_t{1000}, table}) {
    testing::ExpectError(backend->NewSystem(random.spec(), {.max_bytes = allowed}),
                         absl::StatusCode::kResourceExhausted,
                         absl::StrCat("bytes; ", allowed, " are left of those allowed"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, DiffusionTest,
    ::testing::Combine(::testing::Range(size_t{0}, KernelsOfThisMachine().size()),
                       ::testing::Values(DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp)),
    [](const auto& test) {
      return absl::StrCat(KernelsOfThisMachine()[std::get<0>(test.param)].name, "_",
                          KindName(std::get<1>(test.param)));
    });

}  // namespace
}  // namespace deeppcr::testing
