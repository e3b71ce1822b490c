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
      error = std::max(error, std::fabs(double{a[i]} - b[i]));
      scale = std::max(scale, std::fabs(double{b[i]}));
      if (!std::isfinite(a[i])) return INFINITY;
    }
    if (error > 0) worst = std::max(worst, error / scale);
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
      EXPECT_LE(difference, std::max(kFloor, kFactor * ErrorOfPlain(spec, request, interval)));
      worst_ = std::max(worst_, difference);
    };
    check(rig.Sequential(request), 0);
    for (const int64_t interval : {int64_t{1}, int64_t{5}, int64_t{32}}) {
      if (interval > shape.num_steps) continue;
      SCOPED_TRACE("interval " + std::to_string(interval));
      const Gradients parallel = rig.Parallel(request, interval);
      check(parallel, interval);
      EXPECT_TRUE(parallel.SameBits(rig.Parallel(request, interval)));
    }
  }

  // The largest error of plain float32 in a few draws, by intervals unless there is none, from a cotangent of z_L.
  double ErrorOfPlain(const SystemSpec& spec, const BackwardRequest& request, int64_t interval) {
    const auto family = std::visit([](const auto& s) { return reference::NewFamily(s); }, spec);
    const int64_t dim = family->shape.state_dim, floats = (family->shape.num_steps + 1) * dim;
    // The root of the tree has a matrix of half the steps.
    const int64_t half = (family->shape.num_steps + 1) / 2;
    double worst = 0;
    for (int64_t b = 0; b < request.samples.num_samples; ++b) {
      BackwardRequest one = {.samples = SamplesOf(request.samples, b, 1), .columns = request.columns};
      one.states.assign(request.states.begin() + b * floats,
                        request.states.begin() + (b + 1) * floats);
      const int64_t outputs = request.columns * family->shape.output_dim;
      one.of_outputs.assign(request.of_outputs.begin() + b * outputs,
                            request.of_outputs.begin() + (b + 1) * outputs);
      const Gradients exact =
          BackwardRig(reference::NewReferenceBackend(), spec).Sequential(one);
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
              columns == 1 && backend().name != "cpu_programs");
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
  for (const int64_t steps : {1, 2, 33, 100}) {
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
      }
    }
  }
  std::printf("%s: at most %.2g of the largest element\n", backend().name.c_str(), worst_);
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
  for (size_t k = 0; k < at.size(); ++k) scale = std::max(scale, std::fabs(double{gradient[k]}));
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

}  // namespace
}  // namespace deeppcr::testing
