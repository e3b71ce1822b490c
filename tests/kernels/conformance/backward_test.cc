// SPDX-License-Identifier: Apache-2.0
// The backward pass of every backend, by both ways, compared with the reference in double at the
// same states, and the reference with differences of the forward map.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "kernels/program/denoiser_program.h"
#include "kernels/reference/diffusion_ops.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/reference/reference_ops.h"
#include "tests/testing/backward_rig.h"
#include "tests/testing/larger.h"
#include "tests/testing/plain_backward.h"
#include "tests/testing/random_diffusion.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

std::vector<float> Normals(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(n);
  for (float& x : numbers) x = normal(random);
  return numbers;
}

// The largest |a - b| / max |b| of rows of `size` numbers.
double Difference(const std::vector<float>& a, const std::vector<float>& b, int64_t size) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t at = 0; at < a.size() && size > 0; at += static_cast<size_t>(size)) {
    double error = 0, scale = 0;
    for (size_t i = at; i < at + static_cast<size_t>(size); ++i) {
      error = Larger(error, std::fabs(double{a[i]} - b[i]));
      scale = Larger(scale, std::fabs(double{b[i]}));
      if (!std::isfinite(a[i])) return INFINITY;
    }
    if (error > 0) worst = Larger(worst, error / scale);
  }
  return worst;
}

double Difference(const Gradients& a, const Gradients& b, const SystemShape& shape) {
  return std::max({Difference(a.inputs, b.inputs, shape.input_dim),
                   Difference(a.initial, b.initial, shape.state_dim),
                   Difference(a.step_noise, b.step_noise, shape.num_steps * shape.state_dim),
                   Difference(a.deltas, b.deltas, shape.num_steps * shape.state_dim)});
}

class BackwardTest : public ::testing::TestWithParam<size_t> {
 protected:
  const BackendCase& backend() const { return BackendCases()[GetParam()]; }
  bool TooDeep(int64_t steps) const { return steps > backend().max_steps; }
  // Checks both ways against the reference at the states of the sequential solver.
  void Check(const SystemSpec& spec, const SampleInputs& samples, int64_t columns, bool deltas) {
    const SystemShape shape = ShapeOf(spec);
    const int64_t n = samples.num_samples;
    BackwardRequest request = {.samples = samples, .columns = columns, .deltas = deltas};
    const SolverRig forward(backend().create(), spec, 1, shape.num_steps);
    request.states = forward.Solve({.solver = "sequential"}, samples).trajectory;
    request.of_outputs = Normals(n * columns * shape.output_dim, 7);
    const BackwardRig rig(backend().create(), spec);
    const BackwardRig oracle(reference::NewReferenceBackend(), spec);
    const Gradients expected = oracle.Sequential(request);
    const auto check = [&](const Gradients& got, int64_t interval) {
      const double difference = Difference(got, expected, shape);
      if (difference > kFloor) {
        EXPECT_LE(difference, kFactor * ErrorOfPlain(spec, request, interval));
      }
      worst_ = std::max(worst_, difference);
    };
    check(rig.Sequential(request), 0);
    for (const int64_t interval : {int64_t{1}, int64_t{5}, int64_t{32}}) {
      if (interval > shape.num_steps) continue;
      SCOPED_TRACE("interval " + std::to_string(interval));
      const Gradients parallel = rig.Parallel(request, interval);
      check(parallel, interval);
      EXPECT_TRUE(parallel.SameBits(rig.Parallel(request, interval)));
      if (rig.ScansTogether()) {
        EXPECT_TRUE(parallel.SameBits(rig.ScannedTogether(request, interval)));
      }
    }
  }

  // Residual and adaLN denoisers, as what they are and as programs.
  void CheckDiffusions(int64_t steps) {
    for (const auto& options : {ResidualDdpm(steps, 3), AdaLnWithDecoder(steps, 4)}) {
      SCOPED_TRACE("blocks " + std::to_string(options.num_blocks) + ", steps " +
                   std::to_string(steps));
      const RandomDiffusion process(options);
      const auto program = *program::ProgramOfDenoiser(process.spec());
      std::vector<float> inputs = Normals(3 * process.spec().input_dim(), 9);
      std::vector<int32_t> labels;
      if (options.num_classes > 0) labels = {0, 2, 1};
      const SampleInputs samples = {
          .num_samples = 3, .inputs = inputs, .seed = 5, .labels = labels};
      for (const int64_t columns : {1, 4}) {
        Check(program::WithProgram(process.spec(), program), samples, columns, false);
        Check(process.spec(), samples, columns, false);
      }
    }
    std::printf("%s: at most %.2g of the largest element\n", backend().name.c_str(), worst_);
  }

  // The largest error of plain float32 in a few draws, by intervals unless there is none, from a
  // cotangent of z_L.
  double ErrorOfPlain(const SystemSpec& spec, const BackwardRequest& request, int64_t interval) {
    const auto family = std::visit([](const auto& s) { return reference::NewFamily(s); }, spec);
    const int64_t dim = family->shape.state_dim, floats = (family->shape.num_steps + 1) * dim;
    // The root of the tree has a matrix of half the steps.
    const int64_t half = (family->shape.num_steps + 1) / 2;
    double worst = 0;
    for (int64_t b = 0; b < request.samples.num_samples; ++b) {
      BackwardRequest one = {.samples = SamplesOf(request.samples, b, 1),
                             .columns = request.columns};
      one.states.assign(request.states.begin() + b * floats,
                        request.states.begin() + (b + 1) * floats);
      const int64_t outputs = request.columns * family->shape.output_dim;
      one.of_outputs.assign(request.of_outputs.begin() + b * outputs,
                            request.of_outputs.begin() + (b + 1) * outputs);
      const Gradients exact = BackwardRig(reference::NewReferenceBackend(), spec).Sequential(one);
      const SampleInput input = InputOf(one.samples, 0, nullptr);
      PlainBackward plain(*family, input, one.states.data());
      const std::vector<double> last(one.states.end() - dim, one.states.end());
      const std::vector<double> decode = family->DecodeJacobian(last);
      for (uint64_t seed = 1; seed <= 6; ++seed) {
        plain.Draw(seed);
        std::vector<float> made;
        for (int64_t j = 0; j < request.columns; ++j) {
          std::vector<float> g(dim);
          for (int64_t i = 0; i < family->shape.output_dim; ++i)
            for (int64_t k = 0; k < dim; ++k)
              g[k] += static_cast<float>(decode[i * dim + k]) *
                      one.of_outputs[j * family->shape.output_dim + i];
          const std::vector<float> back =
              interval == 0 ? plain.Sequential(g) : plain.ByIntervals(g, std::max(interval, half));
          made.insert(made.end(), back.begin(), back.end());
        }
        worst = std::max(worst, Difference(made, exact.initial, dim));
      }
    }
    return worst;
  }

  // An answer is as right as this, relative to the largest element of a cotangent, or as plain
  // float32 would be by the same way, times a factor.
  static constexpr double kFloor = 1e-5, kFactor = 4;
  double worst_ = 0;
};

TEST_P(BackwardTest, StacksOfEverySizeAgreeWithTheReference) {
  uint64_t seed = 1;
  for (const int64_t steps : {1, 2, 33, 1024}) {
    for (const int64_t width : {1, 7, 16, 64}) {
      if (TooDeep(steps) || (backend().name == "reference" && steps * width > 2000)) continue;
      for (const int64_t columns : {int64_t{1}, int64_t{4}, width}) {
        const StackOptions options = {
            .num_steps = steps,
            .state_dim = width,
            .residual = seed % 2 == 0,
            .activation = kActivationNames[seed % std::size(kActivationNames)].activation,
            .gain = seed % 2 == 0 ? 0.5 / std::sqrt(steps) : 1.0,
            .input_dim = seed % 3 == 0 ? 5 : 0,
            .output_dim = seed % 4 == 1 ? 9 : 0,
            .seed = seed};
        if (steps * width > 30000 && columns > 4) continue;  // seconds in the reference
        SCOPED_TRACE(Describe(options) + ", m = " + std::to_string(columns));
        const RandomSystem system(options);
        const int64_t n = seed % 2 == 0 ? 3 : 1;
        const std::vector<float> inputs = system.Inputs(n, seed);
        Check(system.spec(), {.num_samples = n, .inputs = inputs}, columns,
              columns == 1 && !backend().name.ends_with("_programs"));
        ++seed;
      }
    }
  }
  std::printf("%s: at most %.2g of the largest element\n", backend().name.c_str(), worst_);
}

TEST_P(BackwardTest, EveryActivationAgreesWithTheReference) {
  for (const ActivationName& activation : kActivationNames) {
    for (const bool residual : {false, true}) {
      const StackOptions options = {.num_steps = 60,
                                    .state_dim = 6,
                                    .residual = residual,
                                    .activation = activation.activation,
                                    .gain = residual ? 0.1 : 1.0,
                                    .input_dim = 4,
                                    .output_dim = 3,
                                    .seed = 77};
      SCOPED_TRACE(Describe(options));
      const RandomSystem system(options);
      const std::vector<float> inputs = system.Inputs(2, 5);
      Check(system.spec(), {.num_samples = 2, .inputs = inputs}, 3, false);
    }
  }
}

TEST_P(BackwardTest, DiffusionsAgreeWithTheReference) {
  for (const int64_t steps : {1, 2, 33}) CheckDiffusions(steps);
}

TEST_P(BackwardTest, LongDiffusionsAgreeWithTheReference) { CheckDiffusions(100); }

// Rows [first, first + n) of `size` numbers each.
std::vector<float> Rows(const std::vector<float>& all, int64_t first, int64_t n, int64_t size) {
  return {all.begin() + first * size, all.begin() + (first + n) * size};
}

// What goes back together: few columns of some samples, or more than a vector has lanes, of which
// some are left over, through intervals that are long enough for lanes.
struct Together {
  int64_t samples, columns, interval;
};

// The same bits whatever goes back beside a sample, or beside a column of it.
TEST_P(BackwardTest, BitsDependOnNeitherOtherSamplesNorOtherColumns) {
  for (const auto& [samples, columns, interval] : {Together{7, 5, 4}, Together{2, 35, 12}}) {
    for (const int64_t width : {3, 8, 16, 40}) {
      const RandomSystem stack({.num_steps = 37,
                                .state_dim = width,
                                .residual = width != 16,
                                .activation = width == 8 ? Activation::kRelu : Activation::kSilu,
                                .gain = 0.3,
                                .input_dim = 4,
                                .output_dim = 6,
                                .seed = 3});
      const RandomDiffusion process(AdaLnWithDecoder(37, static_cast<uint64_t>(width)));
      const auto program = *program::ProgramOfDenoiser(process.spec());
      for (const SystemSpec& spec :
           {SystemSpec(stack.spec()), SystemSpec(program::WithProgram(process.spec(), program))}) {
        const SystemShape shape = ShapeOf(spec);
        const std::vector<float> inputs = Normals(samples * shape.input_dim, 4);
        const int64_t floats = (shape.num_steps + 1) * shape.state_dim, outputs = shape.output_dim;
        BackwardRequest all = {.samples = {.num_samples = samples, .inputs = inputs, .seed = 8},
                               .columns = columns};
        const SolverRig forward(backend().create(), spec, 1, shape.num_steps);
        all.states = forward.Solve({.solver = "sequential"}, all.samples).trajectory;
        all.of_outputs = Normals(samples * columns * outputs, 6);
        const BackwardRig rig(backend().create(), spec);
        const Gradients together = rig.Sequential(all), scanned = rig.Parallel(all, interval);
        for (int64_t b = 0; b < samples; ++b) {
          for (int64_t j = 0; j < columns; ++j) {
            const int64_t row = b * columns + j;
            const BackwardRequest one = {.samples = SamplesOf(all.samples, b, 1),
                                         .states = Rows(all.states, b, 1, floats),
                                         .of_outputs = Rows(all.of_outputs, row, 1, outputs)};
            const auto same = [&](const Gradients& alone, const Gradients& among) {
              const int64_t dim = shape.state_dim;
              EXPECT_EQ(alone.initial, Rows(among.initial, row, 1, dim)) << b << " " << j;
              EXPECT_EQ(alone.inputs, Rows(among.inputs, row, 1, shape.input_dim));
              const int64_t noise = shape.draws_noise ? shape.num_steps * dim : 0;
              EXPECT_EQ(alone.step_noise, Rows(among.step_noise, row, 1, noise));
            };
            same(rig.Sequential(one), together);
            same(rig.Parallel(one, interval), scanned);
          }
        }
      }
    }
  }
}

// Two passes through the intervals and two walks through the tree, counted as the loops ran.
TEST_P(BackwardTest, StagesOfTheScanAreLogarithmic) {
  for (const int64_t steps : {33, 64, 1000, 65536}) {
    if (TooDeep(steps) || (backend().name == "reference" && steps > 1000)) continue;
    const RandomSystem system(
        {.num_steps = steps, .state_dim = 2, .residual = true, .gain = 1e-3, .seed = 2});
    const std::vector<float> inputs = system.Inputs(1, 1);
    BackwardRequest request = {.samples = {.num_samples = 1, .inputs = inputs},
                               .states = std::vector<float>(2 * (steps + 1), 0.5F),
                               .of_outputs = {1, 2}};
    const BackwardRig rig(backend().create(), system.spec());
    for (const int64_t interval : {int64_t{1}, int64_t{16}, steps}) {
      const int64_t intervals = (steps - 1) / interval + 1;
      const auto levels = static_cast<int64_t>(std::ceil(std::log2(intervals)));
      const PassCount count = rig.Parallel(request, interval).count;
      // A scan on a device goes through up to 16 roots one after another, and forms matrices first.
      const bool on_device = rig.ScansTogether();
      const int64_t stages = intervals == 1 ? steps : 2 * interval + 2 * levels - 1;
      EXPECT_GE(count.stages, on_device ? std::min(steps, 2 * interval) : stages);
      EXPECT_LE(count.stages, on_device ? 2 * interval + 2 * levels + 16 : stages)
          << steps << " by " << interval;
      EXPECT_EQ(count.columns, intervals == 1 ? 1 : 3);
    }
    EXPECT_EQ(rig.Sequential(request).count.stages, steps);
  }
}

// Memory of the scan: a matrix and a vector for each interval; nothing for each step.
TEST_P(BackwardTest, MemoryIsThatOfTheIntervals) {
  constexpr int64_t kDim = 32, kSteps = 4096;
  if (TooDeep(kSteps) || backend().name == "reference") return;
  const RandomSystem system({.num_steps = kSteps, .state_dim = kDim, .residual = true, .seed = 2});
  const BackwardRig rig(backend().create(), system.spec());
  if (rig.ScansTogether()) return;  // on a device the states take more than that
  for (const int64_t interval : {1, 16, 64}) {
    const int64_t intervals = kSteps / interval;
    const auto expected =
        static_cast<double>((intervals * kDim * kDim + intervals * kDim) * sizeof(float));
    const auto bytes =
        static_cast<double>(rig.system().BackwardSpaceBytes({.min_shooting_interval = interval}));
    // And what the steps of one interval take, whatever their number.
    EXPECT_NEAR(bytes, expected, 0.05 * expected + 64 * 1024) << interval;
  }
}

// What the checks above would see, if it happened.
TEST_P(BackwardTest, PlantedFaultsAreSeen) {
  const auto see = [&](const SystemSpec& right, const SystemSpec& wrong,
                       const SampleInputs& samples) {
    const SystemShape shape = ShapeOf(right);
    const SolverRig forward(backend().create(), right, 1, shape.num_steps);
    const BackwardRequest request = {
        .samples = samples,
        .states = forward.Solve({.solver = "sequential"}, samples).trajectory,
        .of_outputs = Normals(samples.num_samples * shape.output_dim, 6)};
    const Gradients expected =
        BackwardRig(reference::NewReferenceBackend(), right).Sequential(request);
    const BackwardRig rig(backend().create(), wrong);
    EXPECT_GT(Difference(rig.Sequential(request), expected, shape), 1e-3);
    EXPECT_GT(Difference(rig.Parallel(request, 4), expected, shape), 1e-3);
  };
  // Matrices that are transposed once more.
  const RandomSystem system({.num_steps = 20, .state_dim = 5, .residual = true, .gain = 0.2});
  DenseStackSpec transposed = system.spec();
  std::vector<float> weights(transposed.weights.begin(), transposed.weights.end());
  for (int64_t l = 0; l < 20; ++l)
    for (int64_t i = 0; i < 5; ++i)
      for (int64_t k = 0; k < i; ++k)
        std::swap(weights[(l * 5 + i) * 5 + k], weights[(l * 5 + k) * 5 + i]);
  transposed.weights = weights;
  const std::vector<float> inputs = system.Inputs(2, 1);
  see(system.spec(), transposed, {.num_samples = 2, .inputs = inputs});
  // A clip that is lost.
  const RandomDiffusion process(AdaLnWithDecoder(20, 4));
  const auto program = *program::ProgramOfDenoiser(process.spec());
  DiffusionProgramSpec clipped = program::WithProgram(process.spec(), program);
  DiffusionProgramSpec lost = clipped;
  lost.clip_range = std::numeric_limits<double>::infinity();
  const std::vector<float> conditions = Normals(2 * process.spec().input_dim(), 3);
  see(clipped, lost, {.num_samples = 2, .inputs = conditions, .seed = 5});
}

INSTANTIATE_TEST_SUITE_P(Backends, BackwardTest, ::testing::Range<size_t>(0, BackendCases().size()),
                         [](const auto& c) { return BackendCases()[c.param].name; });

// ---- The reference against differences of the forward map, which no derivative enters.

// The outputs in double as a function of the inputs.
template <class Outputs>
void CheckDifferences(const std::vector<double>& at, const std::vector<float>& of_outputs,
                      const float* gradient, const Outputs& outputs) {
  constexpr double kDistance = 1e-6;
  double scale = 0;
  for (size_t k = 0; k < at.size(); ++k) scale = Larger(scale, std::fabs(double{gradient[k]}));
  for (size_t k = 0; k < at.size(); ++k) {
    std::vector<double> above = at, below = at;
    above[k] += kDistance;
    below[k] -= kDistance;
    const std::vector<double> high = outputs(above), low = outputs(below);
    double difference = 0;
    for (size_t i = 0; i < high.size(); ++i)
      difference += of_outputs[i] * (high[i] - low[i]) / (2 * kDistance);
    EXPECT_NEAR(gradient[k], difference, 1e-6 * scale) << "element " << k;
  }
}

TEST(ReferenceBackwardTest, IsTheDerivativeOfStacks) {
  for (const Activation activation : {Activation::kTanh, Activation::kGelu, Activation::kRelu}) {
    const RandomSystem system({.num_steps = 12,
                               .state_dim = 4,
                               .residual = true,
                               .activation = activation,
                               .gain = 0.7,
                               .input_dim = 3,
                               .output_dim = 2,
                               .seed = 21});
    const DenseStackSpec& spec = system.spec();
    const std::vector<float> inputs = system.Inputs(1, 3);
    const SampleInputs samples = {.num_samples = 1, .inputs = inputs};
    BackwardRequest request = {.samples = samples, .of_outputs = {0.3F, -1.2F}};
    const auto outputs = [&](const std::vector<double>& x) {
      const std::vector<double> states = reference::Trajectory(spec, reference::Encode(spec, x));
      return reference::Decode(spec, std::span(states).last(4));
    };
    const std::vector<double> at(inputs.begin(), inputs.end());
    const std::vector<double> states = reference::Trajectory(spec, reference::Encode(spec, at));
    request.states.assign(states.begin(), states.end());
    const BackwardRig rig(reference::NewReferenceBackend(), spec);
    const Gradients gradients = rig.Sequential(request);
    CheckDifferences(at, request.of_outputs, gradients.inputs.data(), outputs);
  }
}

TEST(ReferenceBackwardTest, IsTheDerivativeOfDiffusions) {
  for (const bool as_program : {false, true}) {
    const RandomDiffusion process(AdaLnWithDecoder(9, 4));
    const DiffusionSpec& spec = process.spec();
    const auto program = *program::ProgramOfDenoiser(spec);
    const SystemSpec system =
        as_program ? SystemSpec(program::WithProgram(spec, program)) : SystemSpec(spec);
    const int64_t dim = spec.state_dim, inputs = spec.input_dim();
    // The inputs, z_0, and the noise of all steps as one vector.
    std::vector<float> all = Normals(inputs + dim + 9 * dim, 12);
    for (float& x : all) x *= 0.3F;
    const auto states_at = [&](const std::vector<double>& x) {
      const std::vector<double> vector(x.begin(), x.begin() + inputs);
      const std::vector<double> condition = reference::Dense(spec.condition, vector);
      std::vector<double> states(x.begin() + inputs, x.begin() + inputs + dim);
      for (int64_t i = 0; i < 9; ++i) {
        const std::vector<double> z(states.end() - dim, states.end());
        // The reference takes noise in float32, so that its effect is added here.
        const std::vector<float> none(dim);
        std::vector<double> next = reference::Step(spec, i, condition, none, z);
        for (int64_t k = 0; k < dim; ++k)
          next[k] += spec.steps[i].sigma * x[inputs + dim + i * dim + k];
        states.insert(states.end(), next.begin(), next.end());
      }
      return states;
    };
    const auto outputs = [&](const std::vector<double>& x) {
      const std::vector<double> states = states_at(x);
      return reference::Decode(spec, std::span(states).last(dim));
    };
    const std::vector<double> at(all.begin(), all.end());
    const std::vector<double> states = states_at(at);
    BackwardRequest request = {
        .samples = {.num_samples = 1, .inputs = std::span(all).first(inputs)},
        .states = {states.begin(), states.end()},
        .of_outputs = Normals(spec.output_dim(), 3)};
    const Gradients gradients =
        BackwardRig(reference::NewReferenceBackend(), system).Sequential(request);
    std::vector<float> gradient = gradients.inputs;
    gradient.insert(gradient.end(), gradients.initial.begin(), gradients.initial.end());
    gradient.insert(gradient.end(), gradients.step_noise.begin(), gradients.step_noise.end());
    CheckDifferences(at, request.of_outputs, gradient.data(), outputs);
  }
}

}  // namespace
}  // namespace deeppcr::testing
