// SPDX-License-Identifier: Apache-2.0
// The stopping rule on the device is the host's: the same columns beside a state, the same norms of
// an update, and as many iterations, corrections and confirmations of small systems. The SIMT
// executor has the CPU's arithmetic; between the executor and a vectorised kernel only the order of
// sums differs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/loop/interval_norms.h"
#include "kernels/solver/registry.h"
#include "tests/testing/gpu_under_test.h"
#include "tests/testing/packed_layers.h"
#include "tests/testing/rounding_gate.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// ---- One update
// An update of four intervals with the same states and columns on both sides; nothing enters.
class UpdateOnBoth {
 public:
  static constexpr int64_t kSteps = 4;

  UpdateOnBoth(int64_t dim, uint32_t seed)
      : system_({.num_steps = kSteps, .state_dim = dim}),
        layers_(system_.spec()),
        buffers_(layers_.view(), 1) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t p = 0; p < kSteps; ++p)
      for (int64_t v = 0; v < cpu::kColumns; ++v)
        for (int64_t i = 0; i < dim; ++i) {
          State(p, v)[i] = normal(random);
          Propagated(p, v)[i] = v == 0 ? normal(random) : 1e-3F * normal(random);
        }
  }

  float* State(int64_t p, int64_t column) { return buffers_.State(p + 1, column); }
  float* Propagated(int64_t p, int64_t column) { return buffers_.Propagated(p, column); }

  // The columns that each side leaves, and its norms.
  struct Outcome {
    std::vector<float> device_states, host_states;
    UpdateNorms device;
    cpu::IntervalNorms host;
  };
  Outcome Run(IterationKind kind, double floor, size_t kernel_set) {
    const int64_t width = layers_.width();
    Outcome outcome;
    for (int64_t p = 0; p < kSteps; ++p) {
      std::vector<float> y(State(p, 0), State(p, 0) + kNumColumns * width);
      cuda::IntervalUpdate update(kind);
      for (int64_t i = 0; i < width; ++i)
        for (int v = 0; v < kind.vectors(); ++v)
          update.Take(v, Propagated(p, v)[i], 0.0F, static_cast<int>(width), &y[i]);
      cuda::Merge(cuda::NormsOf(update.norms(), floor), &outcome.device);
      AddColumns(y.data(), &outcome.device_states);
    }
    if (kind.confirms()) Place(kind.confirmation);
    cpu::UpdateArgs args = buffers_.ToUpdate(IntervalBuffers::Matrices::kNone, kind.probes, floor);
    args.prefix = nullptr;
    args.more_probes = kind.more_probes();
    args.confirms = kind.confirms();
    outcome.host = KernelSets()[kernel_set].kernels(width).update(args);
    for (int64_t p = 0; p < kSteps; ++p) AddColumns(State(p, 0), &outcome.host_states);
    return outcome;
  }

 private:
  // Adds the columns of a state that both sides have.
  void AddColumns(const float* y, std::vector<float>* to) const {
    for (const int column : {0, kUpdateColumn, kBallColumn, kRoundingColumn}) {
      const float* const from = y + column * layers_.width();
      to->insert(to->end(), from, from + layers_.width());
    }
  }
  // Puts the states that a confirmation tries in the place of the states, as the host expects; the
  // device computes them where it needs them.
  void Place(Confirmation confirmation) {
    const int64_t width = layers_.width();
    for (int64_t p = 0; p < kSteps; ++p) {
      std::copy_n(State(p, 0), width, State(p, cpu::kKeptColumn));
      for (int64_t i = 0; i < system_.spec().state_dim; ++i)
        State(p, 0)[i] = TriedAt(confirmation, State(p, 0)[i], State(p, kUpdateColumn)[i],
                                 State(p, kBallColumn)[i]);
    }
  }

  const RandomSystem system_;
  const PackedLayers layers_;
  IntervalBuffers buffers_;
};

// Calls f(kernel set, D, kind) for every combination.
template <class F>
void ForEveryUpdate(const F& f) {
  for (size_t set = 0; set < KernelSets().size(); ++set)
    for (const int64_t dim : {1, 5, 16, 33, 80})
      for (IterationKind kind : {IterationKind{.probes = false},
                                 {.probes = true},
                                 {.probes = true, .draw = 1},
                                 {.confirmation = Confirmation::kStates},
                                 {.confirmation = Confirmation::kUpdated},
                                 {.confirmation = Confirmation::kDisplaced}}) {
        kind.linearization = Linearization::kZero;
        f(set, dim, kind);
      }
}

void ExpectSame(const UpdateOnBoth::Outcome& outcome, const std::string& what) {
  EXPECT_EQ(outcome.device_states, outcome.host_states) << what;
  EXPECT_EQ(outcome.device.update, outcome.host.update) << what;
  EXPECT_EQ(outcome.device.rounding, outcome.host.rounding) << what;
  EXPECT_EQ(outcome.device.combined, outcome.host.combined) << what;
  EXPECT_EQ(outcome.device.share, outcome.host.share) << what;
  EXPECT_EQ(outcome.device.finite != 0, outcome.host.finite) << what;
}

TEST(DeviceRuleTest, AnUpdateLeavesTheSameColumnsAndNorms) {
  ForEveryUpdate([](size_t set, int64_t dim, IterationKind kind) {
    for (const double floor : {1e-2, 0x1p-126 / 1e-4}) {
      UpdateOnBoth both(dim, 7);
      const UpdateOnBoth::Outcome outcome = both.Run(kind, floor, set);
      ExpectSame(outcome, "D " + std::to_string(dim));
      EXPECT_GT(outcome.device.update, 0);
      EXPECT_EQ(outcome.device.share > 0, kind.probes || kind.confirms());
      EXPECT_EQ(outcome.device.rounding > 0, kind.probes);
    }
  });
}

// Values at the ends of ranges: zero balls, errors below the least normal float, and very large
// values.
TEST(DeviceRuleTest, AnUpdateOfExtremesHasTheSameNorms) {
  const float values[] = {0.0F, -0.0F, 0x1p-149F, 0x1p-126F, 0x1.8p-126F, 1.0F, -3.0F, 1e30F};
  ForEveryUpdate([&](size_t set, int64_t dim, IterationKind kind) {
    for (uint32_t seed = 0; seed < 40; ++seed) {
      UpdateOnBoth both(dim, 7);
      std::mt19937 random(seed);
      const auto any = [&] { return values[random() % std::size(values)]; };
      for (int64_t p = 0; p < UpdateOnBoth::kSteps; ++p)
        for (int64_t i = 0; i < dim; ++i) {
          both.State(p, 0)[i] = any();
          both.State(p, kUpdateColumn)[i] = any();
          both.State(p, kBallColumn)[i] = any();
          both.State(p, kRoundingColumn)[i] = std::fabs(any());
          for (int64_t v = 0; v < cpu::kColumns; ++v) both.Propagated(p, v)[i] = any();
        }
      ExpectSame(both.Run(kind, 1e-2, set), "seed " + std::to_string(seed));
    }
  });
}

// The largest probe counts, whichever draw has met it; with the first draw, none has been met.
TEST(DeviceRuleTest, ProbesOfAllDrawsCountInAnUpdate) {
  constexpr float kLarge = 0.5F;
  for (const int32_t draw : {0, 1, 2}) {
    UpdateOnBoth both(5, 7);
    both.State(2, kRoundingColumn)[3] = kLarge;
    const UpdateOnBoth::Outcome outcome =
        both.Run({.linearization = Linearization::kZero, .probes = true, .draw = draw}, 1e-2, 0);
    ExpectSame(outcome, "draw " + std::to_string(draw));
    const bool counts =
        std::ranges::find(outcome.device_states, kLarge) != outcome.device_states.end();
    EXPECT_EQ(counts, draw > 0);
  }
}

// The share is not defined if a state or a probe is not finite.
TEST(DeviceRuleTest, WhatIsNotFiniteIsToldByBoth) {
  ForEveryUpdate([](size_t set, int64_t dim, IterationKind kind) {
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      for (const int column : {0, 3}) {
        if (column > 0 && !kind.probes) continue;
        for (int64_t lane = 0; lane < dim; lane += 3) {
          UpdateOnBoth both(dim, 7);
          both.Propagated(lane % 4, column)[lane] = bad;
          const UpdateOnBoth::Outcome outcome = both.Run(kind, 1e-2, set);
          EXPECT_EQ(outcome.device.finite != 0, column > 0);
          EXPECT_EQ(outcome.host.finite, column > 0);
          if (column == 0) continue;
          EXPECT_EQ(outcome.device.combined, kInfinity);
          EXPECT_EQ(outcome.host.combined, kInfinity);
        }
      }
    }
  });
}

// ---- Whole solves
using NewBackend = std::unique_ptr<Backend> (*)();
// Backends with the loop on the device, and on the host.
const std::vector<NewBackend> kDevices = {&NewBackendUnderTest, &NewBackendWithoutClusters};

// Expects both to be absent, or to be within this factor of each other.
void ExpectWithin(double factor, std::optional<double> got, std::optional<double> want) {
  ASSERT_EQ(got.has_value(), want.has_value());
  if (!got.has_value()) return;
  EXPECT_LE(*got, factor * *want);
  EXPECT_GE(*got, *want / factor);
}

// Dependent stages are not among the counts: the loop on the device goes through a chain where the
// others go up and down a tree (NewtonKernelTest.CountsItsStages).
bool SameCounts(const SampleReport& a, const SampleReport& b) {
  return a.iterations == b.iterations && a.chord_corrections == b.chord_corrections &&
         a.confirmations == b.confirmations && a.warm_sweeps == b.warm_sweeps &&
         a.column_passes == b.column_passes && a.termination == b.termination &&
         a.fallback == b.fallback;
}

// A system on the CPU backend, and on some of the others.
class SystemOnBoth {
 public:
  explicit SystemOnBoth(const SystemSpec& spec, const std::vector<NewBackend>& backends = kDevices)
      : cpu_(BackendCases().front().create(), spec) {
    for (const NewBackend create : backends) devices_.emplace_back(create(), spec);
  }

  // Returns the CPU's report. `others` counts the devices whose rounding decided otherwise; if
  // null, no device may differ.
  SampleReport ExpectSame(const ResolvedOptions& options, const std::vector<float>& inputs,
                          int* others = nullptr) const {
    const Solved cpu = cpu_.Solve(options, inputs);
    const SampleReport& want = cpu.reports[0];
    const std::vector<double> states(cpu.trajectory.begin(), cpu.trajectory.end());
    const auto dim = static_cast<int64_t>(inputs.size());
    for (const SolverRig& device : devices_) {
      const Solved solved = device.Solve(options, inputs);
      const SampleReport& got = solved.reports[0];
      const bool same = SameCounts(got, want);
      if (others != nullptr && !same) {
        ++*others;
      } else {
        EXPECT_TRUE(same) << got.iterations << " " << got.chord_corrections << " "
                          << got.confirmations << " " << ToString(got.termination)
                          << ", on the CPU " << want.iterations << " " << want.chord_corrections
                          << " " << want.confirmations << " " << ToString(want.termination);
        // These estimates are of the order of rounding.
        ExpectWithin(2, got.rounding_estimate, want.rounding_estimate);
        ExpectWithin(4, got.error_estimate, want.error_estimate);
      }
      if (got.converged) {
        // Each trajectory is within the tolerance of its own sequential solver.
        EXPECT_LE(RelativeError(solved.trajectory, states, dim,
                                options.atol / options.rtol + 0x1p-126 / options.rtol),
                  2 * options.rtol);
      }
    }
    return want;
  }

 private:
  const SolverRig cpu_;
  std::vector<SolverRig> devices_;
};

struct Tally {
  int confirmed = 0, exact = 0, beyond = 0, gave_up = 0;
  int others = 0;  // devices whose passes differ from the CPU's

  void Add(const SampleReport& report) {
    const bool converged = report.termination == Termination::kConverged;
    const bool is_exact = converged && report.confirmations == 0;
    confirmed += converged && report.confirmations > 0 ? 1 : 0;
    exact += is_exact ? 1 : 0;
    // A correction was too large, or moved an element beyond its ball.
    beyond +=
        report.confirmations > 0 && 2 * report.chord_corrections > report.confirmations ? 1 : 0;
    gave_up += converged ? 0 : 1;
  }
};

TEST(DeviceRuleTest, SolvesTakeAsManyPassesOfEveryKind) {
  Tally tally;
  for (const Activation activation : {Activation::kTanh, Activation::kRelu, Activation::kGelu}) {
    for (const bool residual : {false, true}) {
      for (uint64_t seed = 0; seed < 4; ++seed) {
        const StackOptions stack{.num_steps = 40,
                                 .state_dim = 1 + static_cast<int64_t>(3 * seed),
                                 .residual = residual,
                                 .activation = activation,
                                 .gain = (residual ? 1.0 : 0.6) + 0.25 * static_cast<double>(seed),
                                 .seed = seed};
        const RandomSystem system(stack);
        const SystemOnBoth both(system.spec());
        for (const SolverRow& row : Solvers()) {
          if (!row.iterative) continue;
          SCOPED_TRACE(Describe(stack) + " " + std::string(row.name));
          for (const double rtol : {1e-4, 3e-2}) {
            ResolvedOptions options = OptionsFor(row.name, 40, 3, rtol);
            options.on_no_convergence = OnNoConvergence::kReturn;
            tally.Add(both.ExpectSame(options, system.Inputs(1, 3), &tally.others));
          }
        }
      }
    }
  }
  EXPECT_GE(tally.confirmed, 50);
  EXPECT_GE(tally.exact, 20);
  EXPECT_GE(tally.beyond, 4);
  EXPECT_GE(tally.gave_up, 5);
  // `others` counts devices in 384 solves. At the edge of stability a return to a quarter of the
  // ball may depend on rounding.
  EXPECT_LE(tally.others, 6);
}

// Layers made by hand: one layer repeated, or those of another system with biases in another unit.
struct OwnSystem {
  std::vector<float> weights, biases;
  DenseStackSpec spec;

  OwnSystem(const DenseStackSpec& shape, const std::vector<float>& weight,
            const std::vector<float>& bias)
      : spec(shape) {
    for (int64_t l = 0; l < shape.num_steps; ++l) {
      weights.insert(weights.end(), weight.begin(), weight.end());
      biases.insert(biases.end(), bias.begin(), bias.end());
    }
    spec.weights = weights;
    spec.biases = biases;
  }
  OwnSystem(const DenseStackSpec& from, float unit)
      : weights(from.weights.begin(), from.weights.end()), spec(from) {
    for (const float b : from.biases) biases.push_back(b * unit);
    spec.weights = weights;
    spec.biases = biases;
  }
  OwnSystem(const OwnSystem&) = delete;
};

// A unit at rest, `gap` behind its kink, reads a state that stays 1. The ball of that state is at
// least 2^-15, and within it a confirmation switches the unit on. The matrices do not know of the
// unit.
OwnSystem AtRestBehindAKink(float gap) {
  const float gain = 64;
  return OwnSystem({.num_steps = 24, .state_dim = 3, .activation = Activation::kRelu},
                   {1, 0, 0, gain, 0, 0, 0, 1, 0.5F}, {0, -gain * (1 + gap), 0.125F});
}

TEST(DeviceRuleTest, AKinkWithinTheBallIsSeenByBothAndOneBeyondItByNeither) {
  const std::vector<float> inputs = {1, 0, 0.5F};
  for (const int interval : {1, 2}) {
    SCOPED_TRACE(interval);
    const ResolvedOptions options = OptionsFor("newton", 24, interval, 1e-4);
    const OwnSystem within = AtRestBehindAKink(0x1p-19F), beyond = AtRestBehindAKink(0x1p-10F);
    const SampleReport refuted = SystemOnBoth(within.spec).ExpectSame(options, inputs);
    // Only causality ends this solve.
    EXPECT_GE(refuted.confirmations, 2);
    EXPECT_GE(refuted.iterations + refuted.chord_corrections, 24 / interval);
    const SampleReport confirmed = SystemOnBoth(beyond.spec).ExpectSame(options, inputs);
    EXPECT_EQ(confirmed.confirmations, 2);
    EXPECT_LE(confirmed.iterations + confirmed.chord_corrections, 4);
  }
}

// Terms of a thousand cancel, so that a unit rests on its kink, without a slope, and their rounding
// exceeds the tolerance: where the unit rests, and behind a second unit that passes the rounding on
// and rests too.
TEST(DeviceRuleTest, TheRoundingOfTermsThatCancelIsSeenByBoth) {
  constexpr int64_t kSteps = 24, kDim = 4;
  for (const int interval : {1, 2}) {
    SCOPED_TRACE(interval);
    OwnSystem system({.num_steps = kSteps, .state_dim = kDim, .activation = Activation::kRelu},
                     std::vector<float>(kDim * kDim), std::vector<float>(kDim));
    for (int64_t l = 0; l < kSteps; ++l) {
      float* const weights = system.weights.data() + l * kDim * kDim;
      weights[0] = weights[kDim + 1] = 1;
      if (l % 2 == 0) {
        weights[2 * kDim] = 1000;
        weights[2 * kDim + 1] = -1000;
      } else {
        weights[3 * kDim + 2] = 1;
      }
    }
    const SampleReport report =
        SystemOnBoth(system.spec)
            .ExpectSame(OptionsFor("newton", kSteps, interval, 1e-4), {1, 1, 0, 0});
    EXPECT_EQ(report.attempt.termination, Termination::kPrecisionLimited);
  }
}

// z + relu(-z) is z, but where rounding may take z across the kink, the largest slope makes nothing
// of a probe.
TEST(DeviceRuleTest, WhatAResidualPathBringsIsSeenByBoth) {
  OwnSystem system({.num_steps = 2, .state_dim = 2, .activation = Activation::kRelu}, {0, 0, 0, 0},
                   {0, 0});
  system.spec.residual = true;
  system.weights[1] = 1000;
  system.biases[0] = -1000;
  system.weights[4] = -1;
  const SampleReport report =
      SystemOnBoth(system.spec).ExpectSame(OptionsFor("newton", 2, 1, 1e-3), {1e-6F, 1});
  EXPECT_GT(report.rounding_estimate.value_or(0), 2e-5);
}

// The same of denoisers, in blocks and by products.
TEST(DeviceRuleTest, TheRoundingOfTermsThatCancelInADenoiserIsSeenByBoth) {
  std::vector<NewBackend> backends = kDevices;
  backends.push_back(BackendCases().front().create);
  for (const DenoiserKind kind : {DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp})
    for (const int64_t hidden : {16, 250}) {
      // Not so much that it fills the next norm, where tangents see nothing of it.
      const double gain = kind == DenoiserKind::kAdaLnMlp ? 0x1p8 : 0x1p28;
      const RoundingGate gate({.kind = kind,
                               .state_dim = 2,
                               .hidden_dim = hidden,
                               .num_steps = 6,
                               .clip = false,
                               .seed = 1},
                              gain, 100);
      for (const NewBackend create : backends) {
        const SolverRig rig(create(), gate.spec());
        for (uint64_t sample = 0; sample < 4; ++sample) {
          const SampleReport report =
              rig.Solve(OptionsFor("newton", 6, 1, 1e-4),
                        {.num_samples = 1, .seed = 5, .first_sample = sample})
                  .reports[0];
          EXPECT_EQ(report.attempt.termination, Termination::kPrecisionLimited)
              << hidden << " " << static_cast<int>(kind) << " "
              << report.rounding_estimate.value_or(-1);
        }
      }
    }
}

// The state that a pass on the device enters with, computed from the columns beside the state.
TEST(DeviceRuleTest, AnEntryIsWhatItsConfirmationTries) {
  constexpr int kWidth = 2;
  std::vector<float> y(kNumColumns * kWidth, 100.0F);
  for (const int i : {0, 1}) {
    y[i] = 3 + i;
    y[kUpdateColumn * kWidth + i] = 0.5F + i;
    y[kBallColumn * kWidth + i] = -0.25F - i;
  }
  for (const int i : {0, 1}) {
    EXPECT_EQ(cuda::EntryAt(Confirmation::kNone, y.data(), kWidth, 1, i), 3 + i);
    EXPECT_EQ(cuda::EntryAt(Confirmation::kStates, y.data(), kWidth, 1, i), 3 + i);
    EXPECT_EQ(cuda::EntryAt(Confirmation::kUpdated, y.data(), kWidth, 1, i), 3.5F + 2 * i);
    EXPECT_EQ(cuda::EntryAt(Confirmation::kDisplaced, y.data(), kWidth, 1, i), 2.75F);
    for (const Confirmation any : {Confirmation::kUpdated, Confirmation::kDisplaced})
      EXPECT_EQ(cuda::EntryAt(any, y.data(), kWidth, 0, i), 3 + i) << "z_0 is given";
  }
}

// A kink in a single step shows that both sides try the same place there. A state that does not
// move is tried above, where it wakes a unit, and not below, where it would put a unit to rest.
TEST(DeviceRuleTest, BothTryTheSamePlace) {
  constexpr int64_t kSteps = 12, kDim = 3, kUnit = 1;
  constexpr float kGain = 64;
  for (const int64_t carrier : {0, 2}) {
    const int64_t other = 2 - carrier;
    std::vector<float> weight(kDim * kDim), bias(kDim), input(kDim);
    weight[carrier * kDim + carrier] = 1;
    weight[kUnit * kDim + carrier] = kGain;
    weight[other * kDim + kUnit] = 1;
    weight[other * kDim + other] = 0.5F;
    bias[kUnit] = -2 * kGain;
    bias[other] = 0.125F;
    input[carrier] = 1;
    input[other] = 0.5F;
    for (int64_t p = 1; p < kSteps - 4; ++p) {
      for (const bool above : {false, true}) {
        SCOPED_TRACE("element " + std::to_string(carrier) + " of state " + std::to_string(p) +
                     (above ? " above" : " below"));
        OwnSystem system({.num_steps = kSteps, .state_dim = kDim, .activation = Activation::kRelu},
                         weight, bias);
        system.biases[p * kDim + kUnit] = -kGain * (above ? 1 + 0x1p-19F : 1 - 0x1p-19F);
        const SampleReport report =
            SystemOnBoth(system.spec).ExpectSame(OptionsFor("newton", kSteps, 1, 1e-4), input);
        EXPECT_TRUE(report.converged);
        EXPECT_EQ(report.confirmations > 2 || report.iterations + report.chord_corrections > 6,
                  above);
      }
    }
  }
}

// Solves have many intervals on several blocks of a cluster: the state tried at the end of one
// block is the state that enters the next block.
TEST(DeviceRuleTest, DeepSolvesTakeAsManyPassesOfEveryKind) {
  for (const Activation activation : {Activation::kRelu, Activation::kLeakyRelu}) {
    for (uint64_t seed = 0; seed < 3; ++seed) {
      const StackOptions stack{.num_steps = 700,
                               .state_dim = 4,
                               .activation = activation,
                               .gain = 1.0,
                               .bias = 1.0,
                               .seed = seed};
      SCOPED_TRACE(Describe(stack));
      const RandomSystem system(stack);
      ResolvedOptions options = OptionsFor("newton", 700, 1, 1e-3);
      options.on_no_convergence = OnNoConvergence::kReturn;
      const SampleReport report =
          SystemOnBoth(system.spec()).ExpectSame(options, system.Inputs(1, 3));
      EXPECT_GE(report.confirmations, 2);
    }
  }
}

// The rule depends on the unit of the states on neither side.
void ExpectCountsInEveryUnit(const StackOptions& stack, NewBackend device) {
  const RandomSystem system(stack);
  ResolvedOptions options = OptionsFor("newton", stack.num_steps, 2, 1e-4);
  options.atol = 0;
  const std::vector<float> inputs = system.Inputs(1, 3);
  const SampleReport plain = SystemOnBoth(system.spec(), {device}).ExpectSame(options, inputs);
  EXPECT_TRUE(plain.converged && plain.confirmations > 0);
  for (const int exponent : {-80, -40, 40, 80}) {
    SCOPED_TRACE(Describe(stack) + " 2^" + std::to_string(exponent));
    const float unit = std::ldexp(1.0F, exponent);
    const OwnSystem scaled(system.spec(), unit);
    std::vector<float> scaled_inputs = inputs;
    for (float& x : scaled_inputs) x *= unit;
    const SampleReport report =
        SystemOnBoth(scaled.spec, {device}).ExpectSame(options, scaled_inputs);
    EXPECT_EQ(report.iterations, plain.iterations);
    EXPECT_EQ(report.chord_corrections, plain.chord_corrections);
    EXPECT_EQ(report.confirmations, plain.confirmations);
    EXPECT_NEAR(*report.error_estimate, *plain.error_estimate, 1e-3 * *plain.error_estimate);
    EXPECT_NEAR(*report.rounding_estimate, *plain.rounding_estimate,
                1e-3 * *plain.rounding_estimate);
  }
}

constexpr StackOptions kHomogeneous = {
    .num_steps = 30, .state_dim = 6, .activation = Activation::kRelu, .gain = 1.0, .seed = 3};
constexpr StackOptions kHomogeneousResidual = {.num_steps = 30,
                                               .state_dim = 6,
                                               .residual = true,
                                               .activation = Activation::kRelu,
                                               .gain = 1.5,
                                               .seed = 3};

TEST(DeviceRuleTest, CountsDoNotDependOnTheUnitOfTheStates) {
  ExpectCountsInEveryUnit(kHomogeneous, &NewBackendUnderTest);
  ExpectCountsInEveryUnit(kHomogeneousResidual, &NewBackendUnderTest);
}

}  // namespace
}  // namespace deeppcr::testing
