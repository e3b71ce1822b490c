// SPDX-License-Identifier: Apache-2.0
// Systems made by hand to be got wrong, and the same verdict in other units.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/solver/registry.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/stack_attack.h"

namespace deeppcr {
namespace {

using testing::Judge;
using testing::OptionsFor;
using testing::Solved;
using testing::SolverRig;
using testing::StackAttack;

// A width-2 MLP of the same layer throughout, [to][from].
StackAttack Narrow(Activation activation, int64_t steps, const float (&layer)[2][2]) {
  StackAttack attack;
  attack.num_steps = steps;
  attack.state_dim = 2;
  attack.activation = activation;
  for (int64_t l = 0; l < steps; ++l)
    for (const auto& row : layer) attack.weights.insert(attack.weights.end(), row, row + 2);
  attack.biases.assign(2 * steps, 0.0F);
  return attack;
}

// A channel that one small weight feeds early on and that later layers grow: the correction of an
// iterate in which it is at rest does not see it.
StackAttack DormantChannel(Activation activation) {
  StackAttack attack = Narrow(activation, 256, {{1, 0}, {0, 1}});
  attack.weights[2] = 3.8e-5F;
  for (int64_t l = 32; l < 256; ++l) attack.weights[4 * l + 3] = 1.05F;
  attack.inputs = {1, 0};
  return attack;
}

// z_2' = act(3 z_2 - 4e-6), which 2.5e-6 enters: at rest at the iterate, a hundred thousand in the
// end.
StackAttack GrowthBehindAKink(Activation activation, float size) {
  StackAttack attack = Narrow(activation, 25, {{1, 0}, {0, 3}});
  for (int64_t l = 0; l < 25; ++l) attack.biases[2 * l + 1] = -4 * size;
  attack.inputs = {1, 2.5F * size};
  return attack;
}

void ExpectNoFalseClaim(StackAttack attack, const std::string& what) {
  const SolverRig rig(*cpu::NewCpuBackend(), attack.spec());
  const Solved sequential = rig.Solve({.solver = "sequential"}, attack.inputs);
  ASSERT_TRUE(sequential.reports[0].converged) << what;
  for (const SolverRow& row : Solvers()) {
    if (!row.iterative) continue;
    for (const double rtol : {1e-2, 1e-3, 1e-4, 1e-5, 1e-6}) {
      for (const int64_t interval : {1, 3, 4, 16}) {
        for (const JacobianRefresh refresh :
             {JacobianRefresh::kEveryIteration, JacobianRefresh::kWhileContracting}) {
          attack.options = OptionsFor(row.name, attack.num_steps, interval, rtol);
          attack.options.jacobian_refresh = refresh;
          attack.options.on_no_convergence = OnNoConvergence::kReturn;
          const Solved solved = rig.Solve(attack.options, attack.inputs);
          if (!solved.reports[0].converged) continue;
          EXPECT_LE(Judge(attack, solved.trajectory, sequential.trajectory).to_single, 1)
              << what << ", " << row.name << ", rtol " << rtol << ", C " << interval;
        }
      }
    }
  }
}

TEST(CertificateCasesTest, ADormantChannelThatGrows) {
  ExpectNoFalseClaim(DormantChannel(Activation::kRelu), "relu");
  ExpectNoFalseClaim(DormantChannel(Activation::kLeakyRelu), "leaky_relu");
}

TEST(CertificateCasesTest, GrowthBehindAKink) {
  for (const float size : {1e-6F, 1e-5F, 1e-4F, 1e-3F}) {
    ExpectNoFalseClaim(GrowthBehindAKink(Activation::kRelu, size), "relu");
    ExpectNoFalseClaim(GrowthBehindAKink(Activation::kLeakyRelu, size), "leaky_relu");
  }
}

// A bend so sharp that it is a kink to float32: smooth activations behind steep weights.
TEST(CertificateCasesTest, GrowthBehindASharpBend) {
  for (const Activation activation : {Activation::kTanh, Activation::kSoftplus, Activation::kSilu,
                                      Activation::kElu, Activation::kGelu}) {
    StackAttack attack = Narrow(activation, 24, {{1, 0}, {0, 3}});
    for (int64_t l = 0; l < 24; ++l) {
      attack.weights[4 * l + 3] = l % 2 == 0 ? 3e4F : 1e-4F;
      attack.biases[2 * l + 1] = l % 2 == 0 ? -4 : 0;
    }
    attack.inputs = {1, 2.5e-4F};
    ExpectNoFalseClaim(attack, "steep");
  }
}

// Every state, here and in the other unit, is so far from both ends of float32 that errors of a
// rounding's size are normal numbers too.
bool StaysNormal(const std::vector<float>& trajectory, int64_t dim, double unit) {
  for (size_t at = 0; at < trajectory.size(); at += dim) {
    double size = 0;
    for (int64_t i = 0; i < dim; ++i) {
      const double z = std::fabs(trajectory[at + i]);
      if (z != 0 && std::min(z, z * unit) < 1e-26) return false;
      size = std::max(size, z);
    }
    if (std::min(size, size * unit) < 1e-22 || std::max(size, size * unit) > 1e34) return false;
  }
  return true;
}

// What is converged in one unit is so in all.
TEST(CertificateCasesTest, TheUnitOfAHomogeneousNetworkChangesNothing) {
  int converged = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    StackAttack attack = testing::DrawStackAttack(seed, "newton");
    if (attack.smooth() || attack.family.find("no bias") == std::string::npos) continue;
    if (attack.options.initial_guess == InitialGuess::kPrevious) continue;
    const SolverRig rig(*cpu::NewCpuBackend(), attack.spec());
    const Solved sequential = rig.Solve({.solver = "sequential"}, attack.inputs);
    const Solved solved = rig.Solve(attack.options, attack.inputs);
    for (const int exponent : {-100, -50, 50, 100}) {
      const double unit = std::ldexp(1.0, exponent);
      if (!StaysNormal(sequential.trajectory, attack.state_dim, unit)) continue;
      StackAttack scaled = attack;
      for (float& x : scaled.inputs) x = static_cast<float>(x * unit);
      scaled.options.atol *= unit;
      const SampleReport report = rig.Solve(scaled.options, scaled.inputs).reports[0];
      EXPECT_EQ(report.termination, solved.reports[0].termination) << seed << " " << exponent;
      EXPECT_EQ(report.iterations, solved.reports[0].iterations) << seed << " " << exponent;
      EXPECT_EQ(report.confirmations, solved.reports[0].confirmations) << seed << " " << exponent;
      converged += report.converged ? 1 : 0;
    }
  }
  EXPECT_GT(converged, 40);
}

}  // namespace
}  // namespace deeppcr
