// SPDX-License-Identifier: Apache-2.0
// Random step programs on every instruction set, compared with their evaluation in double: states,
// matrices, and whether the probes know how large the rounding is.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <numbers>
#include <random>
#include <vector>

#include "kernels/cpu/program/system.h"
#include "kernels/program/builder.h"
#include "kernels/program/evaluate.h"
#include "tests/kernels/cpu/diffusion/plain_diffusion.h"
#include "tests/kernels/program/random_process.h"
#include "tests/kernels/program/step_judge.h"
#include "tests/testing/larger.h"

namespace deeppcr::cpu {
namespace {

using program::Doubles;
using program::Evaluation;
using program::LargestOf;
using program::Program;

// The number of programs to draw; the slow run of this test asks for more.
int NumPrograms() {
  const char* text = std::getenv("DEEPPCR_TEST_PROGRAMS");
  return text == nullptr ? 400 : std::atoi(text);
}

// A random process of three steps, packed.
class System : public program::RandomProcess {
 public:
  System(int seed, const KernelSet& set) : RandomProcess(seed, kSteps) {
    auto packed = PackProgramSystem(spec(), set, {.backward = true});
    status_ = packed.status();
    if (packed.ok()) packed_ = *std::move(packed);
  }

  const absl::Status& status() const { return status_; }
  int64_t width() const { return packed_->width; }
  int64_t input_dim() const { return static_cast<int64_t>(condition().size()); }
  std::unique_ptr<Recurrence> NewRecurrence() const { return packed_->NewRecurrence(); }
  std::unique_ptr<BackwardRecurrence> NewBackwardRecurrence(int64_t columns) const {
    return packed_->NewBackwardRecurrence({.columns = columns});
  }
  SampleInput input() const {
    SampleInput input;
    input.inputs = condition().data();
    input.label = label();
    input.initial_noise = state().data();
    input.step_noise = step_noise().data();
    return input;
  }

  static constexpr int kSteps = 3;

 private:
  absl::Status status_;
  std::unique_ptr<PackedSystem> packed_;
};

// The result of one pass over three intervals of a step each, all from the same state.
struct Pass {
  std::vector<float> states, propagated, matrices;

  Pass(const System& system, Recurrence& recurrence, bool probes) {
    const int64_t width = system.width(), dim = system.dim(), row = kColumns * width;
    states.resize(static_cast<size_t>((System::kSteps + 1) * row));
    for (int p = 0; p <= System::kSteps; ++p)
      std::copy_n(system.state().data(), dim, states.data() + p * row);
    propagated.resize(static_cast<size_t>(System::kSteps * row));
    matrices.resize(static_cast<size_t>(System::kSteps * width * width));
    recurrence.Propagate({.interval = 1,
                          .num_intervals = System::kSteps,
                          .states = states.data(),
                          .propagated = propagated.data(),
                          .matrices = matrices.data(),
                          .diagonal = false,
                          .probes = probes,
                          .token = nullptr});
  }
};

class RandomProgramsTest : public ::testing::TestWithParam<size_t> {
 protected:
  const KernelSet& set() const { return testing::KernelsOfThisMachine()[GetParam()].set; }
};

// True if the Jacobian of the first or the second step jumps around the state.
bool ChangesSides(System& system, Evaluation& evaluation) {
  return system.ChangesSides(evaluation, 0) || system.ChangesSides(evaluation, 1);
}

TEST_P(RandomProgramsTest, StepsAndMatricesAreThoseInDouble) {
  program::StepJudge judge;
  int refused = 0, at_a_kink = 0;
  for (int seed = 1; seed <= NumPrograms(); ++seed) {
    SCOPED_TRACE(seed);
    System system(seed, set());
    if (absl::IsUnimplemented(system.status())) {
      ++refused;  // a floor or a lookup of the state
      continue;
    }
    ASSERT_TRUE(system.status().ok()) << system.status();
    Evaluation evaluation(system.program());
    if (ChangesSides(system, evaluation)) {
      ++at_a_kink;
      continue;
    }
    system.Evaluate(evaluation, Doubles(system.state()));
    const auto value = evaluation.at(system.program().output);
    const std::vector<double> want(value.begin(), value.end());
    const int64_t width = system.width();
    // The matrix is that of the second interval, which has a layer of its own.
    const std::vector<double> jacobian = system.JacobianAt(evaluation, 1, 1);

    const auto recurrence = system.NewRecurrence();
    ASSERT_NE(recurrence, nullptr);
    std::vector<float> z(static_cast<size_t>(width));
    recurrence->Encode(0, system.input(), z.data());
    recurrence->Advance(z.data(), 1, 0, 1, nullptr);
    const Pass pass(system, *recurrence, true);
    const float* propagated = pass.propagated.data();
    const float* matrix = pass.matrices.data() + width * width;  // of the second interval
    ASSERT_NO_FATAL_FAILURE(judge.Judge(
        z, propagated, width, [&](int64_t i, int64_t k) { return matrix[k * width + i]; }, want,
        jacobian));
  }
  judge.ExpectMostJudged(NumPrograms(), refused, at_a_kink);
}

// The cotangents of the state and of the condition, of the second step, by any number of columns.
TEST_P(RandomProgramsTest, CotangentsAreThoseInDouble) {
  constexpr int64_t kColumnsBack = 3;
  int compared = 0, with_condition = 0, at_a_kink = 0;
  double worst = 0;
  for (int seed = 1; seed <= NumPrograms(); ++seed) {
    SCOPED_TRACE(seed);
    System system(seed, set());
    if (absl::IsUnimplemented(system.status())) continue;
    ASSERT_TRUE(system.status().ok()) << system.status();
    Evaluation evaluation(system.program());
    if (ChangesSides(system, evaluation)) continue;
    const int64_t dim = system.dim(), width = system.width();
    const SampleInput input = system.input();
    const int64_t inputs = system.input_dim();
    std::vector<float> states, of_final, g(static_cast<size_t>(kColumnsBack * width));
    for (int l = 0; l <= System::kSteps; ++l)
      states.insert(states.end(), system.state().begin(), system.state().end());
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < kColumnsBack * dim; ++i) of_final.push_back(normal(random));
    std::vector<float> initial(of_final.size());
    std::vector<float> of_inputs(static_cast<size_t>(kColumnsBack * inputs));
    const BackwardSample sample = {.input = &input,
                                   .states = states.data(),
                                   .columns = kColumnsBack,
                                   .of_final = of_final.data(),
                                   .inputs = inputs > 0 ? of_inputs.data() : nullptr,
                                   .initial = initial.data()};
    const auto backward = system.NewBackwardRecurrence(kColumnsBack);
    ASSERT_NE(backward, nullptr);
    backward->Begin(0, sample, g.data());
    backward->Retreat(
        {.columns = kColumnsBack, .begin = 1, .end = 2, .samples = &sample, .g = g.data()});
    backward->Finish(0, sample, g.data());
    const double slope = LargestOf(system.JacobianAt(evaluation, 1, 1));
    for (int64_t j = 0; j < kColumnsBack; ++j) {
      const std::vector<double> of_output(of_final.begin() + j * dim,
                                          of_final.begin() + (j + 1) * dim);
      const std::vector<double> want = evaluation.Cotangent(of_output);
      for (int64_t k = 0; k < dim; ++k) {
        const double off =
            std::fabs(initial[j * dim + k] - want[k]) / (slope * LargestOf(of_output));
        worst = std::max(worst, off);
        ASSERT_LE(off, 2e-4) << "state " << j << " " << k;
        ++compared;
      }
      const program::ValueId condition = system.program().condition;
      if (inputs == 0 || condition == program::kNoValue) continue;
      if (system.ConditionChangesSides(evaluation, of_output, 1)) {
        ++at_a_kink;
        continue;
      }
      const std::vector<double> by_condition = evaluation.Cotangent(of_output, condition);
      const double scale = LargestOf(by_condition);
      with_condition += scale > 0 ? 1 : 0;
      for (int64_t k = 0; k < inputs; ++k)
        ASSERT_NEAR(of_inputs[j * inputs + k], by_condition[k], 2e-4 * scale + 1e-6)
            << "condition " << j << " " << k;
    }
  }
  std::printf("%d elements, %d columns by conditions (%d at a kink), off by at most %.1e\n",
              compared, with_condition, at_a_kink, worst);
  EXPECT_LE(at_a_kink, with_condition / 10);
  EXPECT_GT(compared, NumPrograms());
  EXPECT_GT(with_condition, NumPrograms() / 2);
}

TEST_P(RandomProgramsTest, BitsDependOnNeitherTheBatchNorTangents) {
  for (int seed = 1; seed <= NumPrograms() / 4; ++seed) {
    SCOPED_TRACE(seed);
    System system(seed, set());
    if (!system.status().ok()) continue;
    const auto together = system.NewRecurrence(), alone = system.NewRecurrence();
    constexpr int32_t kSamples = 7;
    const int64_t width = system.width(), dim = system.dim();
    std::vector<float> states(static_cast<size_t>(kSamples * width)),
        one(static_cast<size_t>(width));
    std::vector<std::vector<float>> noise(kSamples, system.state());
    for (int32_t b = 0; b < kSamples; ++b) {
      SampleInput input = system.input();
      noise[b][static_cast<size_t>(b % dim)] *= 0.5F;
      input.initial_noise = noise[b].data();
      together->Encode(b, input, states.data() + b * width);
    }
    together->Advance(states.data(), kSamples, 0, System::kSteps, nullptr);
    for (int32_t b = 0; b < kSamples; ++b) {
      SampleInput input = system.input();
      input.initial_noise = noise[b].data();
      alone->Encode(0, input, one.data());
      alone->Advance(one.data(), 1, 0, System::kSteps, nullptr);
      for (int64_t i = 0; i < dim; ++i) ASSERT_EQ(one[i], states[b * width + i]) << b << " " << i;
    }
    const Pass with(system, *alone, true), without(system, *alone, false);
    for (int p = 0; p < System::kSteps; ++p)
      for (int64_t i = 0; i < dim; ++i)
        ASSERT_EQ(with.propagated[p * kColumns * width + i],
                  without.propagated[p * kColumns * width + i]);
  }
}

// A program of two elements with one prediction, on two steps.
struct SmallProgram {
  program::ProgramBuilder builder;
  program::ValueId z = *builder.AddState(2);

  Program Finish(program::ValueId prediction) {
    const program::ValueId next = *builder.AddReverseStep(z, prediction);
    return *builder.Finish(next, prediction);
  }
};

DiffusionProgramSpec SpecOf(const Program& program, std::span<const ReverseStep> steps) {
  return {.state_dim = 2,
          .steps = steps,
          .clip_range = std::numeric_limits<double>::infinity(),
          .program = &program,
          .step_weights = 1};
}

constexpr ReverseStep kPlainStep = {.x0_z = 1, .x0_m = 0, .z_z = 0, .z_m = 1, .z_x0 = 0};

TEST_P(RandomProgramsTest, APredictionWithoutTheStateIsRefused) {
  SmallProgram small;
  const program::ValueId time = *small.builder.AddTime();
  const auto both = *small.builder.AddArrange(std::array{time}, {{0, 0}, {0, 0}});
  const Program program = small.Finish(both);
  const std::vector<ReverseStep> steps(2, kPlainStep);
  EXPECT_TRUE(
      absl::IsInvalidArgument(PackProgramSystem(SpecOf(program, steps), set(), {}).status()));
}

// The probes of the second step's first interval, at a state whose two elements are equal, or zero.
std::vector<float> ProbesAt(const Program& program, float first, float second,
                            const KernelSet& set) {
  const std::vector<ReverseStep> steps(2, kPlainStep);
  const auto packed = *PackProgramSystem(SpecOf(program, steps), set, {});
  const auto recurrence = packed->NewRecurrence();
  const int64_t width = packed->width, row = kColumns * width;
  std::vector<float> states(static_cast<size_t>(3 * row)), propagated(static_cast<size_t>(2 * row));
  const float z[] = {first, second};
  SampleInput input;
  input.initial_noise = z;
  std::vector<float> encoded(static_cast<size_t>(width));
  recurrence->Encode(0, input, encoded.data());
  for (int p = 0; p < 3; ++p) std::copy_n(z, 2, states.data() + p * row);
  for (int64_t v = 1; v < kColumns; ++v) states[row + v * width] = 0;
  recurrence->Propagate({.interval = 2,
                         .num_intervals = 1,
                         .states = states.data(),
                         .propagated = propagated.data(),
                         .matrices = nullptr,
                         .diagonal = false,
                         .probes = true,
                         .token = nullptr});
  std::vector<float> probes;
  for (int64_t v = 1; v < kColumns; ++v) probes.push_back(propagated[v * width]);
  return probes;
}

// The elementwise operation and its slope at pairs of numbers, by one pass over as many steps; no
// slopes at the first pair, as nobody needs the matrix of the first interval.
struct Curve {
  std::vector<float> values, slopes;
};

Curve CurveOf(program::Op op, const std::vector<float>& points, const KernelSet& set) {
  SmallProgram small;
  const Program program = small.Finish(*small.builder.AddElementwise(op, std::array{small.z}));
  const std::vector<ReverseStep> steps(points.size() / 2, kPlainStep);
  const auto packed = *PackProgramSystem(SpecOf(program, steps), set, {});
  const auto recurrence = packed->NewRecurrence();
  const size_t width = static_cast<size_t>(packed->width), row = kColumns * width;
  std::vector<float> states((steps.size() + 1) * row), propagated(steps.size() * row);
  std::vector<float> matrices(steps.size() * width * width), encoded(width);
  SampleInput input;
  input.initial_noise = points.data();
  recurrence->Encode(0, input, encoded.data());
  for (size_t p = 0; p < steps.size(); ++p)
    std::copy_n(points.data() + 2 * p, 2, states.data() + p * row);
  recurrence->Propagate({.interval = 1,
                         .num_intervals = static_cast<int64_t>(steps.size()),
                         .states = states.data(),
                         .propagated = propagated.data(),
                         .matrices = matrices.data(),
                         .diagonal = false,
                         .probes = false,
                         .token = nullptr});
  Curve curve;
  for (size_t i = 0; i < points.size(); ++i) {
    curve.values.push_back(propagated[i / 2 * row + i % 2]);
    curve.slopes.push_back(matrices[i / 2 * width * width + i % 2 * (width + 1)]);
  }
  return curve;
}

// Every 140,001st float, and an even grid: to one and a half units of 2^-24 of the result, also
// next to multiples of pi / 2, and where the C library is asked.
TEST_P(RandomProgramsTest, SinesAndCosinesAreGoodToTheLastBit) {
  std::vector<float> points = {1, 1};
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 140'001) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isfinite(x)) points.push_back(x);
  }
  for (int i = -2048; i <= 2048; ++i) {
    points.push_back(static_cast<float>(i) * 0.01F);
    points.push_back(static_cast<float>(i * 97 * std::numbers::pi / 2));
  }
  points.resize(points.size() / 2 * 2);
  const Curve sine = CurveOf(program::Op::kSin, points, set());
  const Curve cosine = CurveOf(program::Op::kCos, points, set());
  const auto expect = [](float got, double exact, float x) {
    const double scale = std::max(std::fabs(exact), double{std::numeric_limits<float>::min()});
    EXPECT_NEAR(got, exact, 1.5 * 0x1p-24 * scale) << x;
  };
  for (size_t i = 2; i < points.size(); ++i) {
    const double x = points[i];
    expect(sine.values[i], std::sin(x), points[i]);
    expect(sine.slopes[i], std::cos(x), points[i]);
    expect(cosine.values[i], std::cos(x), points[i]);
    expect(cosine.slopes[i], -std::sin(x), points[i]);
  }
}

// Units that rest on their kink within rounding: a probe goes through, whatever it is written with.
TEST_P(RandomProgramsTest, ProbesWakeUnitsAtRest) {
  using program::Op;
  const auto weights = std::make_shared<std::vector<float>>(std::vector<float>{1, -1, 1, -1});
  const auto unit = [&](int form, float side) {
    SmallProgram small;
    auto& builder = small.builder;
    // x = z_0 - z_1, which rounds: the two are equal but for `side`.
    const auto x = *builder.AddLinear(small.z, {.rows = 2, .cols = 2, .weight = weights});
    const auto zero = *builder.AddConstant({0, 0});
    program::ValueId y = program::kNoValue;
    if (form == 0) y = *builder.AddElementwise(Op::kRelu, std::array{x});
    if (form == 1) y = *builder.AddElementwise(Op::kMaximum, std::array{x, zero});
    if (form >= 2 && form <= 3) {
      const auto size = *builder.AddElementwise(Op::kAbs, std::array{x});
      y = *builder.AddElementwise(form == 2 ? Op::kAdd : Op::kSubtract, std::array{x, size});
    }
    if (form == 4) {
      const auto both = *builder.AddArrange(std::array{x, zero}, {{0, 0}, {1, 0}, {0, 1}, {1, 1}});
      y = *builder.AddAlongAxis(Op::kLargest, both, {.outer = 2, .length = 2});
    }
    return ProbesAt(small.Finish(y), 1, 1 + side, set());
  };
  for (int form = 0; form <= 4; ++form) {
    for (const float side : {-0x1p-23F, 0.0F, 0x1p-23F}) {
      float largest = 0;
      for (const float probe : unit(form, side))
        largest = testing::Larger(largest, std::fabs(probe));
      EXPECT_GT(largest, 0) << "form " << form << ", side " << side;
    }
  }
}

// What the side that is not chosen would be is nobody's concern, and neither is a bound that is
// infinite.
TEST_P(RandomProgramsTest, ProbesOfWhatIsNotChosenAreNone) {
  using program::Op;
  SmallProgram small;
  auto& builder = small.builder;
  const auto zero = *builder.AddConstant({0, 0});
  const double infinity = std::numeric_limits<double>::infinity();
  const auto lowest = *builder.AddConstant({-infinity, -infinity});
  const auto clipped = *builder.AddElementwise(Op::kMaximum, std::array{small.z, lowest});
  const auto positive = *builder.AddElementwise(Op::kLess, std::array{zero, clipped});
  const auto log = *builder.AddElementwise(Op::kLog, std::array{clipped});
  const auto y = *builder.AddElementwise(Op::kSelect, std::array{positive, log, clipped});
  for (const float probe : ProbesAt(small.Finish(y), -2, -3, set()))
    EXPECT_TRUE(std::isfinite(probe));
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, RandomProgramsTest,
                         ::testing::Range(size_t{0}, testing::KernelsOfThisMachine().size()),
                         [](const auto& test) {
                           return testing::KernelsOfThisMachine()[test.param].name;
                         });

}  // namespace
}  // namespace deeppcr::cpu
