// SPDX-License-Identifier: Apache-2.0
// The backward pass of random step programs over whole processes, both ways, on every backend,
// compared with products of Jacobians in double at the same states.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "tests/kernels/program/random_process.h"
#include "tests/testing/backward_rig.h"
#include "tests/testing/larger.h"
#include "tests/testing/solver_rig.h"

namespace deeppcr::testing {
namespace {

using program::Doubles;
using program::LargestOf;

// The number of programs to draw; the slow run of this test asks for more.
int NumPrograms() {
  const char* text = std::getenv("DEEPPCR_TEST_PROGRAMS");
  return text == nullptr ? 200 : std::atoi(text);
}

constexpr int64_t kColumnsBack = 2;
constexpr double kTolerance = 1e-5;
// Programs cancel inside of what they make of the condition alone: one of 9474 is off by 1.3e-5.
constexpr double kConditionTolerance = 1e-4;

// Gradients in double, and the sizes that the errors of float32 are measured by: of a vector that
// is pushed back through matrices, the sum over the steps of the sizes of the vector before the
// step, of the step's Jacobian, and of what is multiplied after it.
struct Exact {
  std::vector<double> initial, condition, step_noise;
  double initial_size = 0, condition_size = 0, noise_size = 0;
  double growth = 0;  // the largest element of the product of all Jacobians
};

using Matrix = std::vector<double>;  // row-major

// Derivatives of a step by the state [D, D] and by the condition [D, C], or empty.
struct Slopes {
  Matrix state, condition;
};

Slopes SlopesOf(program::RandomProcess& process, program::Evaluation& evaluation, int64_t step) {
  Slopes slopes{.state = process.JacobianAt(evaluation, 1, step)};
  const program::ValueId condition = process.program().condition;
  if (condition == program::kNoValue) return slopes;
  std::vector<double> unit(static_cast<size_t>(process.dim()));
  for (double& one : unit) {
    one = 1;
    const std::vector<double> row = evaluation.Cotangent(unit, condition);
    slopes.condition.insert(slopes.condition.end(), row.begin(), row.end());
    one = 0;
  }
  return slopes;
}

Matrix Multiply(const Matrix& a, const Matrix& b, size_t dim) {
  Matrix c(dim * dim);
  for (size_t i = 0; i < dim; ++i)
    for (size_t k = 0; k < dim; ++k)
      for (size_t j = 0; j < dim; ++j) c[i * dim + j] += a[i * dim + k] * b[k * dim + j];
  return c;
}

// Adds a^T g.
void AddTransposed(const Matrix& a, std::span<const double> g, std::vector<double>* to) {
  const size_t columns = a.size() / g.size();
  for (size_t i = 0; i < g.size(); ++i)
    for (size_t j = 0; j < columns; ++j) (*to)[j] += g[i] * a[i * columns + j];
}

// Gradients of one cotangent of the final state, by the slopes of all steps.
Exact GoBack(const program::RandomProcess& process, std::span<const double> of_final,
             const std::vector<Slopes>& slopes) {
  const auto dim = static_cast<size_t>(process.dim());
  std::vector<Matrix> before;  // products of the Jacobians of the steps before each
  Matrix product(dim * dim);
  for (size_t i = 0; i < dim; ++i) product[i * dim + i] = 1;
  for (const Slopes& step : slopes) {
    before.push_back(product);
    product = Multiply(step.state, product, dim);
  }
  Exact exact{.condition = std::vector<double>(process.condition().size()),
              .step_noise = std::vector<double>(slopes.size() * dim),
              .growth = LargestOf(product)};
  std::vector<double> g(of_final.begin(), of_final.end());
  const double sigma = process.spec().steps[0].sigma;
  for (size_t l = slopes.size(); l-- > 0;) {
    const double size = LargestOf(g), slope = LargestOf(slopes[l].state);
    for (size_t i = 0; i < dim; ++i) exact.step_noise[l * dim + i] = sigma * g[i];
    exact.noise_size = Larger(exact.noise_size, size * slope);
    exact.initial_size += size * slope * LargestOf(before[l]);
    exact.condition_size += size * LargestOf(slopes[l].condition);
    AddTransposed(slopes[l].condition, g, &exact.condition);
    std::vector<double> next(dim);
    AddTransposed(slopes[l].state, g, &next);
    g = next;
  }
  exact.initial = g;
  return exact;
}

class ProgramGradientsTest : public ::testing::TestWithParam<size_t> {
 protected:
  const BackendCase& backend() const { return BackendCases()[GetParam()]; }
};

// What came of many programs.
struct Tally {
  int compared = 0, refused = 0, at_a_kink = 0, by_condition = 0, expansive = 0;
  double initial = 0, condition = 0, noise = 0;  // largest errors by their sizes
};

// True if a step's cotangent of the condition jumps around it.
bool ConditionJumps(program::RandomProcess& process, program::Evaluation& evaluation,
                    std::span<const double> of_output) {
  if (process.program().condition == program::kNoValue) return false;
  for (int64_t l = 0; l < process.num_steps(); ++l)
    if (process.ConditionChangesSides(evaluation, of_output, l)) return true;
  return false;
}

void Compare(const Gradients& got, const Exact& exact, size_t column, bool with_condition,
             Tally* tally) {
  const auto error = [&](const std::vector<float>& all, const std::vector<double>& want) {
    double largest = 0;
    for (size_t i = 0; i < want.size(); ++i)
      largest = Larger(largest, std::fabs(all[column * want.size() + i] - want[i]));
    return largest;
  };
  const double initial = error(got.initial, exact.initial) / exact.initial_size;
  tally->initial = Larger(tally->initial, initial);
  EXPECT_LE(initial, kTolerance);
  const double noise = error(got.step_noise, exact.step_noise) / exact.noise_size;
  tally->noise = Larger(tally->noise, noise);
  EXPECT_LE(noise, kTolerance);
  if (!with_condition) return;
  const double condition = error(got.inputs, exact.condition);
  tally->condition = Larger(tally->condition, condition / (exact.condition_size + 1e-6));
  EXPECT_LE(condition, kConditionTolerance * exact.condition_size + 1e-6);
}

TEST_P(ProgramGradientsTest, BothWaysAreProductsOfJacobians) {
  if (backend().name.ends_with("_programs")) GTEST_SKIP() << "the same programs once more";
  Tally tally;
  for (int seed = 1; seed <= NumPrograms(); ++seed) {
    SCOPED_TRACE(seed);
    const int64_t steps = 1 + seed % 9;
    program::RandomProcess process(seed, steps);
    const DiffusionProgramSpec spec = process.spec();
    const absl::Status made = backend().create()->NewSystem(spec, {.backward = true}).status();
    if (absl::IsUnimplemented(made)) {
      ++tally.refused;  // a floor or a lookup of the state
      continue;
    }
    ASSERT_TRUE(made.ok()) << made;
    program::Evaluation evaluation(process.program());
    std::vector<Slopes> slopes;
    bool jumps = false;
    for (int64_t l = 0; l < steps; ++l) {
      jumps = jumps || process.ChangesSides(evaluation, l);
      slopes.push_back(SlopesOf(process, evaluation, l));
    }
    if (jumps) {
      ++tally.at_a_kink;
      continue;
    }

    const std::array<int32_t, 1> labels{process.label()};
    BackwardRequest request{.samples = {.num_samples = 1,
                                        .inputs = process.condition(),
                                        .labels = labels,
                                        .initial_noise = process.state(),
                                        .step_noise = process.step_noise()},
                            .columns = kColumnsBack};
    for (int64_t l = 0; l <= steps; ++l)
      request.states.insert(request.states.end(), process.state().begin(), process.state().end());
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < kColumnsBack * process.dim(); ++i)
      request.of_outputs.push_back(normal(random));

    const BackwardRig rig(backend().create(), spec);
    std::vector<Gradients> ways{rig.Sequential(request)};
    for (const int64_t interval : {int64_t{1}, int64_t{2}, steps})
      ways.push_back(rig.Parallel(request, std::min(interval, steps)));
    for (int64_t j = 0; j < kColumnsBack; ++j) {
      const std::vector<double> of_output =
          Doubles(std::span(request.of_outputs).subspan(j * process.dim(), process.dim()));
      const Exact exact = GoBack(process, of_output, slopes);
      const bool with_condition =
          exact.condition_size > 0 && !ConditionJumps(process, evaluation, of_output);
      for (const Gradients& way : ways)
        Compare(way, exact, static_cast<size_t>(j), with_condition, &tally);
      tally.by_condition += with_condition ? 1 : 0;
      tally.expansive += exact.growth > 100 ? 1 : 0;
    }
    tally.compared++;
  }
  std::printf(
      "%d programs both ways, %d refused, %d at a kink; %d gradients by conditions, %d of "
      "products above 100; off by at most %.1e, by conditions %.1e, by noise %.1e\n",
      tally.compared, tally.refused, tally.at_a_kink, tally.by_condition, tally.expansive,
      tally.initial, tally.condition, tally.noise);
  EXPECT_GT(tally.compared, NumPrograms() * 3 / 4);
  EXPECT_GT(tally.by_condition, NumPrograms() / 2);
  EXPECT_GT(tally.expansive, NumPrograms() / 20);
}

INSTANTIATE_TEST_SUITE_P(Backends, ProgramGradientsTest,
                         ::testing::Range(size_t{0}, BackendCases().size()),
                         [](const auto& test) { return BackendCases()[test.param].name; });

}  // namespace
}  // namespace deeppcr::testing
