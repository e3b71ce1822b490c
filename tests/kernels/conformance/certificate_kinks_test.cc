// SPDX-License-Identifier: Apache-2.0
// Attacks on the claims of step programs that bend otherwise than by one relu: the largest of a
// few, near ties; sums in which two sides of a kink cancel; choices by a comparison; clips at a
// bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numbers>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/strings.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/program/builder.h"
#include "kernels/program/cost.h"
#include "kernels/program/optimize.h"
#include "kernels/solver/registry.h"
#include "tests/testing/larger.h"
#include "tests/testing/solver_rig.h"

namespace deeppcr::testing {
namespace {

using program::Op;
using program::ValueId;
using Random = std::mt19937_64;

// The number of stacks to draw of each kind; the slow run of this test asks for more.
int NumStacks() {
  const char* text = std::getenv("DEEPPCR_TEST_KINKS");
  return text == nullptr ? 100 : std::atoi(text);
}

double Normal(Random& random) { return std::normal_distribution<double>()(random); }
double Uniform(Random& random, double low, double high) {
  return low + (high - low) * std::uniform_real_distribution<double>()(random);
}

// Writes a program whose sizes are known to fit.
class Writer {
 public:
  ValueId State(int64_t size) { return *builder_.AddState(size); }
  ValueId All(int64_t size, double value) {
    return *builder_.AddConstant(std::vector<double>(static_cast<size_t>(size), value));
  }
  ValueId Do(Op op, std::initializer_list<ValueId> operands) {
    return *builder_.AddElementwise(op, operands);
  }
  ValueId Along(Op op, ValueId x, const program::Axis& axis) {
    return *builder_.AddAlongAxis(op, x, axis);
  }
  ValueId Slice(ValueId x, int64_t begin, int64_t size) {
    std::vector<program::Element> elements;
    for (int64_t i = 0; i < size; ++i) elements.push_back({0, begin + i});
    return Arrange(x, std::move(elements));
  }
  ValueId Concatenate(const std::vector<ValueId>& pieces) {
    std::vector<program::Element> elements;
    for (size_t k = 0; k < pieces.size(); ++k)
      for (int64_t i = 0; i < SizeOf(pieces[k]); ++i)
        elements.push_back({static_cast<int32_t>(k), i});
    return *builder_.AddArrange(pieces, std::move(elements));
  }
  ValueId Arrange(ValueId x, std::vector<program::Element> elements) {
    return *builder_.AddArrange({&x, 1}, std::move(elements));
  }
  ValueId Stacked(std::vector<float> rows, int64_t size) {
    return *builder_.AddStacked(std::make_shared<const std::vector<float>>(std::move(rows)), size);
  }
  ValueId Product(ValueId x, ValueId matrix, ValueId bias, int64_t rows, int64_t cols) {
    return *builder_.AddProduct(x, matrix, bias, {.rows = rows, .cols = cols});
  }
  int64_t SizeOf(ValueId id) const { return builder_.at(id).size; }
  program::Program Finish(ValueId output) { return *builder_.Finish(output); }

 private:
  program::ProgramBuilder builder_;
};

// x has three elements for each unit.
constexpr int64_t kOfUnit = 3;

ValueId Largest(Writer& w, ValueId x) {
  return w.Along(Op::kLargest, x, {w.SizeOf(x) / kOfUnit, kOfUnit, 1});
}
// How far the largest of three is above their mean: of ties, rounding alone.
ValueId LargestAboveMean(Writer& w, ValueId x) {
  return w.Do(Op::kSubtract,
              {Largest(w, x), w.Along(Op::kMean, x, {w.SizeOf(x) / kOfUnit, kOfUnit, 1})});
}
ValueId PlusAbs(Writer& w, ValueId x) { return w.Do(Op::kAdd, {x, w.Do(Op::kAbs, {x})}); }
ValueId MaxOfBothSigns(Writer& w, ValueId x) {
  return w.Do(Op::kMaximum, {x, w.Do(Op::kNegate, {x})});
}
ValueId ReluOfBothSigns(Writer& w, ValueId x) {
  return w.Do(Op::kAdd, {w.Do(Op::kRelu, {x}), w.Do(Op::kRelu, {w.Do(Op::kNegate, {x})})});
}
// A leaky relu by comparison: the value does not jump.
ValueId WhereBends(Writer& w, ValueId x) {
  const int64_t n = w.SizeOf(x);
  return w.Do(Op::kSelect,
              {w.Do(Op::kLess, {x, w.All(n, 0)}), w.Do(Op::kMultiply, {x, w.All(n, -0.5)}), x});
}
ValueId WhereJumps(Writer& w, ValueId x) {
  const int64_t n = w.SizeOf(x);
  return w.Do(Op::kSelect, {w.Do(Op::kLess, {x, w.All(n, 0)}), w.All(n, -0.5), x});
}
ValueId Clip(Writer& w, ValueId x) {
  const int64_t n = w.SizeOf(x);
  return w.Do(Op::kMinimum, {w.Do(Op::kMaximum, {x, w.All(n, -1)}), w.All(n, 1)});
}
// What a clip cuts off.
ValueId BeyondClip(Writer& w, ValueId x) { return w.Do(Op::kSubtract, {x, Clip(w, x)}); }

// What is left of a value beside its relu, beside the largest of it and its neighbours, and beside
// the larger of it and its negative.
ValueId BeyondRelu(Writer& w, ValueId x) { return w.Do(Op::kSubtract, {x, w.Do(Op::kRelu, {x})}); }
ValueId BelowLargest(Writer& w, ValueId x) {
  std::vector<program::Element> first;
  for (int64_t unit = 0; unit < w.SizeOf(x) / kOfUnit; ++unit) first.push_back({0, unit * kOfUnit});
  return w.Do(Op::kSubtract, {Largest(w, x), w.Arrange(x, std::move(first))});
}
ValueId BeyondMaxOfBothSigns(Writer& w, ValueId x) {
  return w.Do(Op::kSubtract, {x, MaxOfBothSigns(w, x)});
}

// x sign(x), where sign is 0 at 0; sqrt(x^2); and how far the largest is above the smallest.
ValueId TimesSign(Writer& w, ValueId x) {
  const ValueId zero = w.All(w.SizeOf(x), 0);
  const ValueId sign =
      w.Do(Op::kSubtract, {w.Do(Op::kLess, {zero, x}), w.Do(Op::kLess, {x, zero})});
  return w.Do(Op::kMultiply, {x, sign});
}
ValueId RootOfSquare(Writer& w, ValueId x) { return w.Do(Op::kSqrt, {w.Do(Op::kSquare, {x})}); }
ValueId LargestAndNegated(Writer& w, ValueId x) {
  return w.Do(Op::kAdd, {Largest(w, x), Largest(w, w.Do(Op::kNegate, {x}))});
}

struct KinkRow {
  const char* name;
  ValueId (*write)(Writer& w, ValueId x);

  friend void PrintTo(const KinkRow& row, std::ostream* out) { *out << row.name; }
};
constexpr KinkRow kKinks[] = {
    {"Largest", Largest},
    {"LargestAboveMean", LargestAboveMean},
    {"PlusAbs", PlusAbs},
    {"MaxOfBothSigns", MaxOfBothSigns},
    {"ReluOfBothSigns", ReluOfBothSigns},
    {"WhereBends", WhereBends},
    {"WhereJumps", WhereJumps},
    {"Clip", Clip},
    {"BeyondClip", BeyondClip},
    {"BeyondRelu", BeyondRelu},
    {"BelowLargest", BelowLargest},
    {"BeyondMaxOfBothSigns", BeyondMaxOfBothSigns},
    {"TimesSign", TimesSign},
    {"RootOfSquare", RootOfSquare},
    {"LargestAndNegated", LargestAndNegated},
};

// A stack of layers z' = s z + V kink(W z + b). With `gain`, also + V' kink(gain (P W z)), where
// P W is zero exactly: the kink reads nothing but rounding.
struct KinkedStack {
  int64_t num_steps = 16, dim = 2, units = 2;
  double keep = 0;              // s
  double weight = 1, bias = 0;  // sizes of W and V, and of b
  bool integers = false;        // of W and b, times their sizes: terms cancel
  bool ties = false;            // the elements of a unit differ in their last bits
  double gain = 0;
};

KinkedStack DrawStack(Random& random) {
  KinkedStack stack;
  stack.dim = 2 + static_cast<int64_t>(random() % 5);
  stack.num_steps = std::array{16, 48, 96}[random() % 3];
  stack.units = 1 + static_cast<int64_t>(random() % 4);
  stack.keep = std::array{0.0, 0.9, 1.0}[random() % 3];
  stack.weight = Uniform(random, 0.3, 1.2);
  if (stack.keep == 1) stack.weight /= std::sqrt(double(stack.num_steps));
  stack.bias = std::array{0.0, 0.1, 1.0}[random() % 3];
  stack.integers = random() % 3 == 0;
  stack.ties = random() % 3 == 0;
  if (random() % 3 == 0) stack.gain = std::exp2(4 + static_cast<int>(random() % 20));
  return stack;
}

std::vector<float> DrawWeights(Random& random, int64_t count, double size, bool integers) {
  std::vector<float> weights(static_cast<size_t>(count));
  for (float& x : weights)
    x = static_cast<float>(size * (integers ? static_cast<int>(random() % 3) - 1 : Normal(random)));
  return weights;
}

// The three rows of a unit: W of the inner layer.
std::vector<float> InnerWeights(Random& random, const KinkedStack& stack) {
  const int64_t rows = kOfUnit * stack.units;
  std::vector<float> weights =
      DrawWeights(random, stack.num_steps * rows * stack.dim, stack.weight, stack.integers);
  if (!stack.ties) return weights;
  for (int64_t at = 0; at < std::ssize(weights); ++at) {
    const int64_t row = at / stack.dim;
    if (row % kOfUnit == 0) continue;
    const float first = weights[static_cast<size_t>(at - row % kOfUnit * stack.dim)];
    weights[static_cast<size_t>(at)] =
        first * static_cast<float>(1 + std::ldexp(Normal(random), -20));
  }
  return weights;
}

// Rows whose third is the sum of the first two, exactly.
std::vector<float> CancellingWeights(Random& random, const KinkedStack& stack) {
  const int64_t of_step = kOfUnit * stack.dim;
  std::vector<float> weights(static_cast<size_t>(stack.num_steps * of_step));
  const auto draw = [&] { return std::round(64 * stack.weight * Normal(random)) / 64; };
  for (int64_t l = 0; l < stack.num_steps; ++l)
    for (int64_t k = 0; k < stack.dim; ++k) {
      float* row = weights.data() + l * of_step + k;
      row[0] = static_cast<float>(draw());
      row[stack.dim] = static_cast<float>(draw());
      row[2 * stack.dim] = row[0] + row[stack.dim];
    }
  return weights;
}

program::Program ProgramOf(const KinkRow& kink, const KinkedStack& stack, Random& random) {
  Writer w;
  const int64_t dim = stack.dim, steps = stack.num_steps, rows = kOfUnit * stack.units;
  const ValueId z = w.State(dim);
  const ValueId bias =
      w.Stacked(DrawWeights(random, steps * rows, stack.bias, stack.integers), rows);
  const ValueId inner =
      w.Product(z, w.Stacked(InnerWeights(random, stack), rows * dim), bias, rows, dim);
  const auto outer = [&](ValueId x) {
    const int64_t cols = w.SizeOf(x);
    const double size = stack.weight / std::sqrt(double(cols));
    return w.Product(x, w.Stacked(DrawWeights(random, steps * dim * cols, size, false), dim * cols),
                     program::kNoValue, dim, cols);
  };
  ValueId next = outer(kink.write(w, inner));
  if (stack.gain > 0) {
    const ValueId terms = w.Product(z, w.Stacked(CancellingWeights(random, stack), kOfUnit * dim),
                                    program::kNoValue, kOfUnit, dim);
    std::vector<float> signs;
    for (int64_t l = 0; l < steps; ++l)
      for (int64_t unit = 0; unit < kOfUnit; ++unit) signs.insert(signs.end(), {1, 1, -1});
    const ValueId rounding = w.Product(terms, w.Stacked(std::move(signs), kOfUnit * kOfUnit),
                                       program::kNoValue, kOfUnit, kOfUnit);
    const ValueId grown = w.Do(Op::kMultiply, {rounding, w.All(kOfUnit, stack.gain)});
    next = w.Do(Op::kAdd, {next, outer(kink.write(w, grown))});
  }
  if (stack.keep > 0)
    next = w.Do(Op::kAdd, {w.Do(Op::kMultiply, {z, w.All(dim, stack.keep)}), next});
  return w.Finish(next);
}

// Two ways to compute the same, a' = sin(k a) + q and b' = cos(k b - pi / 2) + q, and what a kink
// leaves of their difference: w' = s w + sum kink(a - b - off), with an offset of some of their
// roundings. Where the kink wakes, w grows from nothing to anything.
constexpr int64_t kDimOfTwins = 2 * kOfUnit + 1;
program::Program TwinsOf(const KinkRow& kink, Random& random) {
  Writer w;
  const ValueId z = w.State(kDimOfTwins);
  const ValueId a = w.Slice(z, 0, kOfUnit), b = w.Slice(z, kOfUnit, kOfUnit);
  const auto by = [&](Op op, ValueId x, double number) {
    return w.Do(op, {x, w.All(w.SizeOf(x), double{static_cast<float>(number)})});
  };
  const double factor = Uniform(random, 0.5, 2.6), shift = Uniform(random, 0.1, 0.9);
  const double off = random() % 2 == 0 ? 0 : std::ldexp(Uniform(random, -1, 6), -24);
  const ValueId next_a = by(Op::kAdd, w.Do(Op::kSin, {by(Op::kMultiply, a, factor)}), shift);
  const ValueId turned =
      w.Do(Op::kSubtract, {by(Op::kMultiply, b, factor), w.All(kOfUnit, std::numbers::pi / 2)});
  const ValueId next_b = by(Op::kAdd, w.Do(Op::kCos, {turned}), shift);
  const ValueId bent = kink.write(w, by(Op::kSubtract, w.Do(Op::kSubtract, {a, b}), off));
  const ValueId left = w.Along(Op::kSum, bent, {1, w.SizeOf(bent), 1});
  const ValueId grown = by(Op::kMultiply, w.Slice(z, 2 * kOfUnit, 1), Uniform(random, 0.5, 1.7));
  return w.Finish(w.Concatenate({next_a, next_b, w.Do(Op::kAdd, {grown, left})}));
}

ResolvedOptions DrawOptions(Random& random, const SystemShape& shape) {
  const SolverRow* row = nullptr;
  while (row == nullptr || !row->iterative || !Suits(*row, shape))
    row = &Solvers()[random() % Solvers().size()];
  ResolvedOptions options =
      OptionsFor(row->name, shape.num_steps, std::array{1, 1, 4, 16}[random() % 4],
                 std::array{1e-2, 1e-3, 1e-4, 1e-5}[random() % 4]);
  options.initial_guess = random() % 2 == 0 ? InitialGuess::kConstant : InitialGuess::kPrevious;
  options.warm_sweeps = std::array{0, 0, 3}[random() % 3];
  if (random() % 3 == 0) options.jacobian_refresh = JacobianRefresh::kWhileContracting;
  options.on_no_convergence = OnNoConvergence::kReturn;
  LimitIterations(random, &options);
  return options;
}

// The largest error at the ends of intervals, in tolerances.
double ErrorOf(const std::vector<float>& a, const std::vector<float>& b, const SystemShape& shape,
               const ResolvedOptions& options) {
  double worst = 0;
  for (int64_t l = 1; l <= shape.num_steps; ++l) {
    if (l % options.shooting_interval != 0 && l != shape.num_steps) continue;
    double size = 0, error = 0;
    for (int64_t i = l * shape.state_dim; i < (l + 1) * shape.state_dim; ++i) {
      size = Larger(size, std::fabs(double{a[i]}));
      error = Larger(error, std::fabs(double{a[i]} - b[i]));
    }
    worst = Larger(worst, error / (options.rtol * size + options.atol));
  }
  return worst;
}

struct Claims {
  int stacks = 0, solves = 0, made = 0;
  double worst = 0;
};

class CertificateKinksTest : public ::testing::TestWithParam<KinkRow> {};

// As written, or compiled.
program::Program Drawn(program::Program made, Random& random) {
  return random() % 2 == 0 ? *program::Optimize(made) : made;
}

// Counts the claims of eight solves of a program, from the constant guess and from the answers for
// other inputs, near and far; of every second program, two with a loose tolerance.
void Count(const program::Program& made, int64_t num_steps, const std::vector<float>& inputs,
           int index, const std::string& what, Random& random, Claims* claims) {
  const StackProgramSpec spec = {.num_steps = num_steps,
                                 .state_dim = std::ssize(inputs),
                                 .program = &made,
                                 .step_weights = program::StepWeights(made)};
  const SystemShape shape = ShapeOf(spec);
  const SolverRig rig(*cpu::NewCpuBackend(), spec);
  const Solved sequential = rig.Solve({.solver = "sequential"}, inputs);
  if (!sequential.reports[0].converged) return;
  ++claims->stacks;
  for (int trial = 0; trial < 8; ++trial) {
    std::vector<float> others = inputs;
    const double off = std::array{0.0, 1e-6, 1e-3, 1.0}[random() % 4];
    for (float& x : others) x += static_cast<float>(off * Normal(random));
    const Solved stale = rig.Solve({.solver = "sequential"}, others);
    ResolvedOptions options = DrawOptions(random, shape);
    if (index % 2 == 1 && trial >= 6) options.rtol = 3e-2;
    SampleInputs request{.num_samples = 1, .inputs = inputs};
    if (options.initial_guess == InitialGuess::kPrevious) request.initial_states = stale.trajectory;
    const Solved solved = rig.Solve(options, request);
    ++claims->solves;
    if (!solved.reports[0].converged) continue;
    ++claims->made;
    const double error = ErrorOf(solved.trajectory, sequential.trajectory, shape, options);
    claims->worst = std::max(claims->worst, error);
    EXPECT_LE(error, 1) << what << ", trial " << trial << ", " << options.solver << ", rtol "
                        << options.rtol << ", C " << options.shooting_interval << ", off " << off;
  }
}

void CountStack(const KinkRow& kink, int index, Claims* claims) {
  Random random(index);
  const KinkedStack drawn = DrawStack(random);
  const program::Program made = Drawn(ProgramOf(kink, drawn, random), random);
  std::vector<float> inputs(drawn.dim);
  for (float& x : inputs) x = static_cast<float>(Normal(random));
  Count(
      made, drawn.num_steps, inputs, index,
      StrCat("stack ", index, ", gain ", drawn.gain, ", ties ", drawn.ties, ", keep ", drawn.keep),
      random, claims);
}

void CountTwins(const KinkRow& kink, int index, Claims* claims) {
  Random random(index + 5'000'000);
  const program::Program made = Drawn(TwinsOf(kink, random), random);
  std::vector<float> inputs(kDimOfTwins);
  for (int64_t i = 0; i < kOfUnit; ++i)
    inputs[i] = inputs[kOfUnit + i] = static_cast<float>(Uniform(random, -1, 1));
  const int64_t num_steps = std::array{16, 40, 96}[random() % 3];
  Count(made, num_steps, inputs, index, StrCat("twins ", index), random, claims);
}

void Print(const KinkRow& kink, const char* what, const Claims& claims) {
  std::printf("%s: %d claims of %d solves of %d %s, the worst %.2f rtol off\n", kink.name,
              claims.made, claims.solves, claims.stacks, what, claims.worst);
}

TEST_P(CertificateKinksTest, NoClaimIsFalse) {
  Claims claims;
  for (int index = 0; index < NumStacks(); ++index) CountStack(GetParam(), index, &claims);
  Print(GetParam(), "stacks", claims);
  EXPECT_GT(claims.made, 2 * NumStacks());
}

TEST_P(CertificateKinksTest, NoClaimIsFalseWhereRoundingAloneWakes) {
  Claims claims;
  for (int index = 0; index < NumStacks(); ++index) CountTwins(GetParam(), index, &claims);
  Print(GetParam(), "twins", claims);
  EXPECT_GT(claims.made, NumStacks() / 2);
}

// A difference in which the probe of the larger of two operands cancelled: 4.8 rtol off, once.
TEST(CertificateKinksCaseTest, RoundingThatCrossesABoundOfAClip) {
  Claims claims;
  CountStack({"BeyondClip", BeyondClip}, 2714, &claims);
  EXPECT_EQ(claims.solves, 8);
}

INSTANTIATE_TEST_SUITE_P(Kinks, CertificateKinksTest, ::testing::ValuesIn(kKinks),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace deeppcr::testing
