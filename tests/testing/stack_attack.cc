// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/stack_attack.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/base/strings.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/plan/calibration.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/solver/registry.h"
#include "tests/testing/program_backend.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

using Random = std::mt19937_64;

double Normal(Random& random) { return std::normal_distribution<double>()(random); }
double Uniform(Random& random) { return std::uniform_real_distribution<double>()(random); }
template <class T, size_t N>
T OneOf(Random& random, const std::array<T, N>& values) {
  return values[random() % N];
}

enum class Structure { kDense, kSparse, kLowRank, kOrthogonal, kZeroRows };
constexpr std::array kStructures = {Structure::kDense, Structure::kSparse, Structure::kLowRank,
                                    Structure::kOrthogonal, Structure::kZeroRows};

// A random matrix whose rows are made orthonormal one after the other.
std::vector<double> Orthogonal(Random& random, int64_t dim) {
  std::vector<double> m(dim * dim);
  for (double& x : m) x = Normal(random);
  for (int64_t i = 0; i < dim; ++i) {
    double* const row = m.data() + i * dim;
    for (int64_t j = 0; j < i; ++j) {
      const double* const other = m.data() + j * dim;
      double along = 0;
      for (int64_t k = 0; k < dim; ++k) along += row[k] * other[k];
      for (int64_t k = 0; k < dim; ++k) row[k] -= along * other[k];
    }
    double length = 0;
    for (int64_t k = 0; k < dim; ++k) length += row[k] * row[k];
    for (int64_t k = 0; k < dim; ++k) row[k] /= std::sqrt(length);
  }
  return m;
}

std::vector<double> LowRank(Random& random, int64_t dim) {
  const int64_t rank = std::max<int64_t>(1, dim / 4);
  std::vector<double> m(dim * dim), left(dim * rank), right(dim * rank);
  for (double& x : left) x = Normal(random);
  for (double& x : right) x = Normal(random);
  for (int64_t i = 0; i < dim; ++i)
    for (int64_t j = 0; j < dim; ++j)
      for (int64_t k = 0; k < rank; ++k)
        m[i * dim + j] += left[i * rank + k] * right[j * rank + k] / std::sqrt(double(dim * rank));
  return m;
}

// A random matrix of gain 1: a row has length about 1.
std::vector<double> Weights(Random& random, Structure structure, int64_t dim) {
  if (structure == Structure::kOrthogonal) return Orthogonal(random, dim);
  if (structure == Structure::kLowRank) return LowRank(random, dim);
  std::vector<double> m(dim * dim);
  for (int64_t i = 0; i < dim; ++i) {
    if (structure == Structure::kSparse) {
      for (int t = 0; t < 2; ++t) m[i * dim + random() % dim] = Normal(random) / std::sqrt(2.0);
      continue;
    }
    if (structure == Structure::kZeroRows && Uniform(random) < 0.25) continue;
    for (int64_t j = 0; j < dim; ++j) m[i * dim + j] = Normal(random) / std::sqrt(double(dim));
  }
  return m;
}

// The gain, roughly, at which a random MLP of this activation neither grows nor forgets.
double CriticalGain(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
    case Activation::kLeakyRelu:
      return 1.41;
    case Activation::kTanh:
    case Activation::kElu:
    case Activation::kIdentity:
      return 1.0;
    case Activation::kSigmoid:
    case Activation::kSoftplus:
      return 2.5;
    case Activation::kSilu:
    case Activation::kGelu:
    case Activation::kGeluTanh:
    case Activation::kMish:
      return 1.7;
  }
  return 1.0;
}

void DrawNetwork(Random& random, Structure structure, double gain, double bias,
                 StackAttack* attack) {
  const int64_t dim = attack->state_dim;
  for (int64_t l = 0; l < attack->num_steps; ++l)
    for (const double w : Weights(random, structure, dim))
      attack->weights.push_back(static_cast<float>(gain * w));
  for (int64_t i = 0; i < attack->num_steps * dim; ++i)
    attack->biases.push_back(static_cast<float>(bias * Normal(random)));
}

std::vector<float> DrawInputs(Random& random, int64_t dim) {
  const int kind = static_cast<int>(random() % 4);  // dense, half zero, tiny, huge
  const double size = kind == 2 ? 1e-6 : kind == 3 ? 1e6 : 1;
  std::vector<float> inputs(dim);
  for (int64_t i = 0; i < dim; ++i)
    inputs[i] = kind == 1 && 2 * i >= dim ? 0.0F : static_cast<float>(size * Normal(random));
  return inputs;
}

std::vector<float> TrajectoryOf(const StackAttack& attack, const std::vector<float>& inputs) {
  const std::vector<double> exact =
      reference::Trajectory(attack.spec(), std::vector<double>(inputs.begin(), inputs.end()));
  return {exact.begin(), exact.end()};
}

// Draws a previous trajectory: the answer itself, the answer off by a thousandth, the answer for a
// nearby input, or the answer for another input.
void DrawPrevious(Random& random, StackAttack* attack) {
  attack->options.initial_guess = InitialGuess::kPrevious;
  std::vector<float> inputs = attack->inputs;
  const int kind = static_cast<int>(random() % 4);
  if (kind == 2)
    for (float& x : inputs) x *= static_cast<float>(1 + 0.3 * Normal(random));
  if (kind == 3)
    for (float& x : inputs) x = static_cast<float>(Normal(random));
  attack->previous = TrajectoryOf(*attack, inputs);
  if (kind == 1)
    for (float& x : attack->previous) x *= static_cast<float>(1 + 1e-3 * Normal(random));
  for (float& x : attack->previous)
    if (!std::isfinite(x)) x = 0;
}

std::string_view DrawSolver(Random& random) {
  for (;;) {
    const SolverRow& row = Solvers()[random() % Solvers().size()];
    if (row.iterative) return row.name;
  }
}

}  // namespace

DenseStackSpec StackAttack::spec() const {
  return {.num_steps = num_steps,
          .state_dim = state_dim,
          .residual = residual,
          .residual_scale = residual_scale,
          .activation = activation,
          .weights = weights,
          .biases = biases};
}

bool StackAttack::smooth() const {
  switch (activation) {
    case Activation::kRelu:
    case Activation::kLeakyRelu:
      return false;
    case Activation::kIdentity:
    case Activation::kTanh:
    case Activation::kSigmoid:
    case Activation::kSilu:
    case Activation::kGelu:
    case Activation::kGeluTanh:
    case Activation::kElu:
    case Activation::kSoftplus:
    case Activation::kMish:
      return true;
  }
  return true;
}

StackAttack ZeroStack(int64_t num_steps, int64_t state_dim, Activation activation) {
  StackAttack attack;
  attack.num_steps = num_steps;
  attack.state_dim = state_dim;
  attack.activation = activation;
  attack.weights.assign(num_steps * state_dim * state_dim, 0.0F);
  attack.biases.assign(num_steps * state_dim, 0.0F);
  return attack;
}

StackAttack DrawStackAttack(uint64_t seed, std::string_view solver, double rtol) {
  Random random(seed * 0x9E3779B97F4A7C15ULL + 1);
  StackAttack attack;
  attack.state_dim = OneOf(random, std::array{2, 3, 5, 8, 16});
  attack.num_steps = OneOf(random, std::array{16, 64, 96, 160, 256});
  attack.residual = random() % 4 == 0;
  // Half of the attacks are kinked.
  attack.activation = random() % 2 == 0
                          ? OneOf(random, std::array{Activation::kRelu, Activation::kLeakyRelu})
                          : kActivationNames[random() % std::size(kActivationNames)].activation;
  const double bias = OneOf(random, std::array{0.0, 0.0, 0.1, 1.0});
  double gain = CriticalGain(attack.activation) * (0.6 + 0.6 * Uniform(random));
  if (attack.residual) {
    gain *= 1.5;
    attack.residual_scale = static_cast<float>(1 / std::sqrt(double(attack.num_steps)));
  }
  DrawNetwork(random, OneOf(random, kStructures), gain, bias, &attack);
  attack.inputs = DrawInputs(random, attack.state_dim);
  if (solver.empty()) solver = DrawSolver(random);
  if (rtol == 0) rtol = OneOf(random, std::array{1e-2, 1e-3, 1e-4, 1e-4, 1e-5, 1e-6});
  attack.options =
      OptionsFor(solver, attack.num_steps, OneOf(random, std::array{1, 1, 4, 16, 64}), rtol);
  attack.options.atol = OneOf(random, std::array{0.0, 1e-6, 1e-6});
  attack.options.warm_sweeps = OneOf(random, std::array{0, 0, 3});
  attack.options.jacobian_refresh =
      OneOf(random, std::array{JacobianRefresh::kEveryIteration, JacobianRefresh::kEveryIteration,
                               JacobianRefresh::kWhileContracting});
  attack.options.on_no_convergence = OnNoConvergence::kReturn;
  switch (random() % 4) {
    case 0:
    case 1:
      DrawPrevious(random, &attack);
      break;
    case 2:
      attack.options.initial_guess = InitialGuess::kCalibrated;
      break;
    default:
      break;  // keeps the constant guess
  }
  attack.family = StrCat(attack.smooth() ? "smooth" : "kinked", bias == 0 ? ", no bias" : ", bias",
                         attack.residual ? ", resnet" : ", mlp");
  LimitIterations(random, &attack.options);
  return attack;
}

SolverRig RigOf(StackAttack* attack) {
  std::unique_ptr<Backend> backend = *cpu::NewCpuBackend();
  if (attack->as_program) backend = WithProgramsForStacks(std::move(backend));
  SolverRig rig(std::move(backend), attack->spec());
  if (attack->options.initial_guess != InitialGuess::kCalibrated) return rig;
  const int64_t dim = attack->state_dim;
  const absl::StatusOr<AffineGuess> guess =
      FitAffineGuess(rig.runner(), SyntheticInputs(2 * dim + 4, dim), 1 << 16);
  if (guess.ok() && rig.system().SetAffineGuess(*guess).ok()) return rig;
  attack->options.initial_guess = InitialGuess::kConstant;
  return rig;
}

StackAttack DrawSearchStart(uint64_t seed) {
  Random random(seed * 0xD1B54A32D192ED03ULL + 7);
  StackAttack attack;
  attack.state_dim = OneOf(random, std::array{2, 2, 3, 5, 8});
  attack.num_steps =
      std::min<int64_t>(OneOf(random, std::array{24, 48, 96, 160}), 400 / attack.state_dim);
  attack.residual = random() % 6 == 0;
  if (attack.residual)
    attack.residual_scale = static_cast<float>(1 / std::sqrt(double(attack.num_steps)));
  attack.activation =
      OneOf(random, std::array{Activation::kRelu, Activation::kLeakyRelu, Activation::kLeakyRelu,
                               Activation::kElu, Activation::kTanh});
  const double gain = CriticalGain(attack.activation) * (0.6 + 0.6 * Uniform(random));
  DrawNetwork(random, OneOf(random, kStructures), gain, random() % 2 == 0 ? 0.0 : 0.1, &attack);
  attack.inputs = DrawInputs(random, attack.state_dim);
  attack.options = OptionsFor("newton", attack.num_steps, OneOf(random, std::array{1, 1, 4}),
                              OneOf(random, std::array{1e-2, 1e-3, 1e-4}));
  attack.options.on_no_convergence = OnNoConvergence::kReturn;
  LimitIterations(random, &attack.options);
  return attack;
}

void Mutate(Random& random, StackAttack* attack) {
  const int64_t dim = attack->state_dim;
  const auto change = [&](float* x) {
    const double kind = Uniform(random);
    const double m = Normal(random);
    *x = kind < 0.25  ? static_cast<float>(m)
         : kind < 0.5 ? static_cast<float>(*x * (1 + 0.3 * m))
         : kind < 0.7 ? 0.0F
                      : static_cast<float>(*x * std::exp(2 * m));
  };
  for (int64_t count = 1 + static_cast<int64_t>(random() % 3); count > 0; --count) {
    const int kind = static_cast<int>(random() % 8);
    if (kind < 4) {
      change(&attack->weights[random() % attack->weights.size()]);
    } else if (kind == 4) {
      const double size = std::pow(10, -6 * Uniform(random));
      attack->biases[random() % attack->biases.size()] =
          random() % 2 == 0 ? 0.0F : static_cast<float>(size * Normal(random));
    } else if (kind == 5) {
      const double size = std::pow(10, -7 * Uniform(random));
      attack->inputs[random() % dim] =
          random() % 3 == 0 ? 0.0F : static_cast<float>(size * Normal(random));
    } else {
      const int64_t at = static_cast<int64_t>(random() % (dim * dim));
      const int64_t begin = static_cast<int64_t>(random() % attack->num_steps);
      const int64_t end = begin + 1 + static_cast<int64_t>(random() % (attack->num_steps - begin));
      const auto factor = static_cast<float>(std::exp(0.3 * Normal(random)));
      const auto value = static_cast<float>(Normal(random));
      for (int64_t l = begin; l < end; ++l) {
        float& weight = attack->weights[l * dim * dim + at];
        weight = kind == 6 ? weight * factor : value;
      }
    }
  }
}

Distance Judge(const StackAttack& attack, const std::vector<float>& trajectory,
               const std::vector<float>& sequential) {
  const int64_t dim = attack.state_dim, interval = std::max(attack.options.shooting_interval, 1);
  const double rtol = attack.options.rtol;
  const double atol = std::max<double>(attack.options.atol, 0x1p-126);
  const std::vector<double> exact = reference::Trajectory(
      attack.spec(), std::vector<double>(attack.inputs.begin(), attack.inputs.end()));
  const auto larger = [](double a, double b) {
    return std::isnan(b) ? std::numeric_limits<double>::infinity() : std::max(a, b);
  };
  Distance worst;
  for (int64_t l = 1; l <= attack.num_steps; ++l) {
    double size = 0, to_single = 0, to_double = 0, rounding = 0;
    for (int64_t i = l * dim; i < (l + 1) * dim; ++i) {
      size = larger(size, std::fabs(trajectory[i]));
      to_single = larger(to_single, std::fabs(double{trajectory[i]} - sequential[i]));
      to_double = larger(to_double, std::fabs(trajectory[i] - exact[i]));
      rounding = larger(rounding, std::fabs(sequential[i] - exact[i]));
    }
    const double allowed = rtol * size + atol;
    worst.rounding = larger(worst.rounding, rounding / allowed);
    if (l % interval != 0 && l != attack.num_steps) continue;
    worst.to_single = larger(worst.to_single, to_single / allowed);
    worst.to_double = larger(worst.to_double, to_double / allowed);
  }
  return worst;
}

}  // namespace deeppcr::testing
