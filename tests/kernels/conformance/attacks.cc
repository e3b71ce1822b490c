// SPDX-License-Identifier: Apache-2.0
// Systems made by hand to be got wrong, and the same verdict in other units.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
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

// How many claims were made, and how many of them were false.
struct Claims {
  int made = 0, wrong = 0;
};

void Count(StackAttack& attack, double rtol, int64_t interval, Claims* claims) {
  const SolverRig rig(*cpu::NewCpuBackend(), attack.spec());
  const Solved sequential = rig.Solve({.solver = "sequential"}, attack.inputs);
  if (!sequential.reports[0].converged) return;
  attack.options = OptionsFor("newton", attack.num_steps, interval, rtol);
  attack.options.on_no_convergence = OnNoConvergence::kReturn;
  const Solved solved = rig.Solve(attack.options, attack.inputs);
  if (!solved.reports[0].converged) return;
  ++claims->made;
  if (Judge(attack, solved.trajectory, sequential.trajectory).to_single > 1) ++claims->wrong;
}

// Two channels that are always equal, read together by a unit which the sequential trajectory only
// just wakes; later layers grow what it lets through. Whatever displaces the two against each
// other does not wake it.
TEST(CertificateCasesTest, AUnitThatReadsTwins) {
  constexpr int kRead = 5, kSteps = 18;
  constexpr float kWeights[kRead] = {-.15F, -.25F, -.1F, -.05F, .15F};
  constexpr float kBiases[kRead] = {-.35F, .35F, .4F, .15F, -.45F};
  Claims claims;
  std::mt19937_64 random(5);
  for (int draw = 0; draw < 12000; ++draw) {
    StackAttack attack;
    attack.num_steps = kSteps;
    attack.state_dim = 3;
    attack.residual = true;
    attack.weights.assign(9 * kSteps, 0.0F);
    attack.biases.assign(3 * kSteps, 0.0F);
    attack.inputs = {2.9F, 2.9F, 0};
    std::uniform_real_distribution<float> jitter(-0.1F * (draw % 4), 0.1F * (draw % 4) + 1e-9F);
    double z = attack.inputs[0];
    for (int l = 0; l < kRead; ++l) {
      const float w = kWeights[l] + jitter(random), b = kBiases[l] + jitter(random);
      attack.weights[9 * l] = attack.weights[9 * l + 4] = w;
      attack.biases[3 * l] = attack.biases[3 * l + 1] = b;
      z += std::max(0.0, w * z + b);
    }
    attack.weights[9 * kRead + 6] = attack.weights[9 * kRead + 7] = 1;
    const double gap = std::exp2(-4 - static_cast<double>(draw % 97) / 6);
    attack.biases[3 * kRead + 2] = static_cast<float>(-2 * z * (1 - gap));
    for (int l = kRead + 1; l < kSteps; ++l) attack.weights[9 * l + 8] = 3;
    Count(attack, draw % 2 == 0 ? 1e-2 : 1e-3, 1, &claims);
  }
  std::printf("twins: %d of %d\n", claims.wrong, claims.made);
  EXPECT_EQ(claims.wrong, 0);
  EXPECT_GT(claims.made, 500);
}

// Within an interval: relu(relu(z - a) - 4 relu(z - b)) is open in a window only, somewhere near
// the sequential trajectory, and what it lets through grows.
TEST(CertificateCasesTest, AWindowWithinAnInterval) {
  constexpr int64_t kSteps = 150, kWindow = 32;
  Claims claims;
  for (const Activation activation : {Activation::kRelu, Activation::kTanh, Activation::kSoftplus})
    for (int draw = 0; draw < 2000; ++draw) {
      StackAttack attack;
      attack.num_steps = kSteps;
      attack.state_dim = 4;
      attack.activation = activation;
      attack.weights.assign(16 * kSteps, 0.0F);
      attack.biases.assign(4 * kSteps, 0.0F);
      attack.inputs = {5, 0, 0, 0};
      const double phase = 0.37 * draw;
      for (int64_t l = 0; l < kSteps; ++l) {
        attack.weights[16 * l] = static_cast<float>(1 + 0.02 * std::sin(l + phase));
        attack.biases[4 * l] = static_cast<float>(0.3 * std::sin(1.7 * l + phase));
      }
      const SolverRig rig(*cpu::NewCpuBackend(), attack.spec());
      const Solved sequential = rig.Solve({.solver = "sequential"}, attack.inputs);
      const float t = sequential.trajectory[4 * kWindow];
      const float y =
          t * static_cast<float>(1 + (draw % 2 == 0 ? 1 : -1) * std::exp2(-5 - draw % 50 / 3.0));
      float* w = attack.weights.data() + 16 * kWindow;
      const float sign = t > y ? 1 : -1;
      w[4] = w[8] = sign;
      attack.biases[4 * kWindow + 1] = -sign * y;
      attack.biases[4 * kWindow + 2] = -sign * (y + 2 * (t - y));
      w[16 + 13] = 1;
      w[16 + 14] = -4;
      for (int64_t l = kWindow + 2; l < kWindow + 90; ++l) attack.weights[16 * l + 15] = 1.25F;
      Count(attack, 1e-2, 2, &claims);
    }
  std::printf("windows: %d of %d\n", claims.wrong, claims.made);
  EXPECT_EQ(claims.wrong, 0);
  EXPECT_GT(claims.made, 500);
}

// An error too small to be a normal number counts as none, until later layers grow it.
TEST(CertificateCasesTest, ATinyErrorThatGrows) {
  StackAttack attack = Narrow(Activation::kRelu, 80, {{1, 0}, {0, 3}});
  attack.weights[2] = 1e-39F;
  attack.inputs = {1, 0};
  ExpectNoFalseClaim(attack, "tiny");
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


struct Found { int made = 0, wrong = 0, clean = 0; };
double TryOne(StackAttack& a, const char* what, Found* f, int* shown) {
  const SolverRig rig(*cpu::NewCpuBackend(), a.spec());
  const Solved seq = rig.Solve({.solver = "sequential"}, a.inputs);
  if (!seq.reports[0].converged) return -1;
  a.options.on_no_convergence = OnNoConvergence::kReturn;
  const Solved s = rig.Solve(a.options, RunItem{.num_samples = 1, .inputs = a.inputs, .initial_states = a.previous});
  if (s.reports.empty() || !s.reports[0].converged) return -1;
  ++f->made;
  const auto j = Judge(a, s.trajectory, seq.trajectory);
  if (j.to_single > 1) {
    ++f->wrong;
    const bool tidy = j.rounding < 0.05 * j.to_single && j.to_double > 1;
    if (tidy) ++f->clean;
    if (tidy && (*shown)++ < 3)
      std::printf("  FALSE %s rtol %g C %d: err %.3g rtol, to_double %.3g rtol, rounding %.3g rtol, est %.3g rtol, it %d corr %d conf %d\n", what,
                  a.options.rtol, a.options.shooting_interval, j.to_single, j.to_double, j.rounding, *s.reports[0].error_estimate / a.options.rtol,
                  s.reports[0].iterations, s.reports[0].chord_corrections, s.reports[0].confirmations);
  }
  return j.to_single;
}

// A: constant channel masks: U reads z1 - beta (g2 - const)
TEST(Attack, ConstMask) {
  constexpr int kRead = 5, kSteps = 18;
  constexpr float kW[kRead] = {-.15F, -.25F, -.1F, -.05F, .15F};
  constexpr float kB[kRead] = {-.35F, .35F, .4F, .15F, -.45F};
  for (const float beta : {0.0F, -1.0F, -2.0F, -30.0F, -1000.0F}) {
    Found f; int shown = 0;
    std::mt19937_64 random(5);
    for (int draw = 0; draw < 3000; ++draw) {
      StackAttack a;
      a.num_steps = kSteps; a.state_dim = 3; a.residual = true;
      a.weights.assign(9 * kSteps, 0.0F); a.biases.assign(3 * kSteps, 0.0F);
      a.inputs = {2.9F, 1, 0};
      std::uniform_real_distribution<float> jitter(-0.1F * (draw % 4), 0.1F * (draw % 4) + 1e-9F);
      double z = a.inputs[0];
      for (int l = 0; l < kRead; ++l) {
        const float w = kW[l] + jitter(random), b = kB[l] + jitter(random);
        a.weights[9 * l] = w; a.biases[3 * l] = b;
        z += std::max(0.0, w * z + b);
      }
      a.weights[9 * kRead + 6] = 1; a.weights[9 * kRead + 7] = beta;
      const double gap = std::exp2(-4 - static_cast<double>(draw % 97) / 6);
      a.biases[3 * kRead + 2] = static_cast<float>(-z * (1 - gap) - beta);
      for (int l = kRead + 1; l < kSteps; ++l) a.weights[9 * l + 8] = 3;
      a.options = OptionsFor("newton", kSteps, 1, draw % 2 == 0 ? 1e-2 : 1e-3);
      TryOne(a, "constmask", &f, &shown);
    }
    std::printf("constmask beta %g: %d of %d\n", beta, f.wrong, f.made);
  }
}


// Two generators; the gate stands between the answer without a gate and the truth, and a second channel pulls the displacement back.
void TwoGenerators(Activation act, double rtol, int draws, bool loud, double size) {
  Found f; int shown = 0, phase = 0;
  std::mt19937_64 random(11);
  std::uniform_real_distribution<float> u(-1, 1);
  for (int draw = 0; draw < draws; ++draw) {
    const int r = 4 + draw % 5, n = r + 14;
    StackAttack a;
    a.num_steps = n; a.state_dim = 4; a.residual = true; a.activation = act;
    a.weights.assign(16 * n, 0.0F); a.biases.assign(4 * n, 0.0F);
    for (int l = 0; l < n; ++l) for (int i = 0; i < 4; ++i) a.biases[4 * l + i] = act == Activation::kRelu ? 0 : act == Activation::kTanh ? 0 : -1e5F;
    a.inputs = {0.5F + u(random) / 4, 0.5F + u(random) / 4, 0, 1};
    for (int l = 0; l < r; ++l) for (int i = 0; i < 2; ++i) {
      a.weights[16 * l + 5 * i] = size * u(random); a.biases[4 * l + i] = .5F * size * u(random);
    }
    a.options = OptionsFor("newton", n, 1, rtol);
    const SolverRig rig(*cpu::NewCpuBackend(), a.spec());
    const Solved seq = rig.Solve({.solver = "sequential"}, a.inputs);
    const Solved s = rig.Solve(a.options, a.inputs);
    if (s.reports.empty() || !s.reports[0].converged) continue;
    const double y1 = s.trajectory[4 * r], t1 = seq.trajectory[4 * r], e1 = t1 - y1;
    const double y2 = s.trajectory[4 * r + 1], t2 = seq.trajectory[4 * r + 1], e2 = t2 - y2;
    if (std::fabs(e1) < (std::getenv("LEAST") ? std::atof(std::getenv("LEAST")) : 2e-6)) continue;
    ++phase;
    const double sg = e1 > 0 ? 1 : -1;
    const double gain = act == Activation::kRelu ? 1 : 3e6;
    for (const double beta : {0.0, -.3, .3, -1., 1., -3., 3., -10., 10., -100., 100.}) {
      if (sg * e1 - beta * e2 < 0.5 * std::fabs(e1)) continue;
      StackAttack g = a;
      g.weights[16 * r + 8] = static_cast<float>(sg * gain); g.weights[16 * r + 9] = static_cast<float>(-beta * gain);
      g.biases[4 * r + 2] = static_cast<float>(gain * (-sg * (y1 + t1) / 2 + beta * (y2 + t2) / 2));
      for (int l = r + 1; l < n; ++l) { g.weights[16 * l + 10] = 4; g.biases[4 * l + 2] = 0; }
      const double err = TryOne(g, "pair", &f, &shown);
      if (loud && !std::getenv("QUIET") && err > 1 && shown <= 2) {
        std::printf("    y1 %.9g t1 %.9g y2 %.9g t2 %.9g beta %g r %d n %d in %.9g %.9g\n", y1, t1, y2, t2, beta, r, n, a.inputs[0], a.inputs[1]);
        for (int l = 0; l < r; ++l) std::printf("    l%d w %.9g %.9g b %.9g %.9g\n", l, a.weights[16*l], a.weights[16*l+5], a.biases[4*l], a.biases[4*l+1]);
        std::printf("    gate w %.9g %.9g b %.9g\n", g.weights[16*r+8], g.weights[16*r+9], g.biases[4*r+2]);
      }
    }
  }
  std::printf("pair act %d rtol %g size %g: generators with error %d of %d; false %d (clean %d) of %d\n", static_cast<int>(act), rtol, size, phase, draws, f.wrong, f.clean, f.made);
}
TEST(Attack, PairRelu) { for (double r : {1e-2, 1e-3, 1e-4}) TwoGenerators(Activation::kRelu, r, 6000, true, 1); }
TEST(Attack, PairSilu) { for (double r : {1e-2, 1e-3, 1e-4}) for (double z : {.3, 1.}) TwoGenerators(Activation::kSilu, r, 3000, true, z); }
TEST(Attack, PairGelu) { for (double r : {1e-2, 1e-3, 1e-4}) for (double z : {.3, 1.}) TwoGenerators(Activation::kGelu, r, 3000, true, z); }
TEST(Attack, PairSoftplus) { for (double r : {1e-2, 1e-3, 1e-4}) for (double z : {.3, 1.}) TwoGenerators(Activation::kSoftplus, r, 3000, true, z); }

// Window in an interval of two: MLP, generator h, q.
TEST(Attack, Window2) {
  for (const double rtol : {1e-2, 1e-3, 1e-4}) {
    Found f; int shown = 0, phase = 0;
    std::mt19937_64 random(13);
    std::uniform_real_distribution<float> u(-1, 1);
    for (int draw = 0; draw < 12000; ++draw) {
      const int r = 12, n = r + 30;  // h, q, a, b, U
      StackAttack a;
      a.num_steps = n; a.state_dim = 5;
      a.weights.assign(25 * n, 0.0F); a.biases.assign(5 * n, 0.0F);
      a.inputs = {1, 0, 0, 0, 0};
      const float k = 0.15F + 0.6F * static_cast<float>(draw % 5) / 5;
      for (int l = 0; l < n; ++l) {
        a.weights[25 * l] = 1;
        if (l < r) {
          a.weights[25 * l + 1] = 2 * k * u(random);                            // h from q
          a.biases[5 * l] = 0.1F * u(random);
          const float s = u(random) > 0 ? 1 : -1;
          a.weights[25 * l + 5] = s; a.biases[5 * l + 1] = -s * (1 + 0.3F * u(random));  // q = relu(+-(h - t))
        }
      }
      a.options = OptionsFor("newton", n, 2, rtol);
      const SolverRig rig(*cpu::NewCpuBackend(), a.spec());
      const Solved seq = rig.Solve({.solver = "sequential"}, a.inputs);
      const Solved s = rig.Solve(a.options, a.inputs);
      if (s.reports.empty() || !s.reports[0].converged) continue;
      const double y = s.trajectory[5 * r], t = seq.trajectory[5 * r], e = t - y;
      if (std::fabs(e) < 2e-6) continue;
      ++phase;
      for (const double at : {0.3, 0.6}) for (const double wide : {0.2, 1.0, 4.0}) {
        StackAttack g = a;
        const float sg = e > 0 ? 1 : -1;
        g.weights[25 * r + 10] = g.weights[25 * r + 15] = sg;
        g.biases[5 * r + 2] = static_cast<float>(-sg * (y + at * e));
        g.biases[5 * r + 3] = static_cast<float>(-sg * (t + wide * e));
        g.weights[25 * (r + 1) + 22] = 1; g.weights[25 * (r + 1) + 23] = -4;
        for (int l = r + 2; l < n; ++l) g.weights[25 * l + 24] = 3;
        const double err = TryOne(g, "window", &f, &shown);
        if (err > 1 && shown <= 2) {
          std::printf("    y %.9g t %.9g at %g wide %g\n", y, t, at, wide);
          for (int l = 0; l < r; ++l) std::printf("    l%d hq %.9g bh %.9g qh %g bq %.9g\n", l, a.weights[25*l+1], a.biases[5*l], a.weights[25*l+5], a.biases[5*l+1]);
        }
      }
    }
    std::printf("window C=2 rtol %g: generators with error %d; false %d (clean %d) of %d\n", rtol, phase, f.wrong, f.clean, f.made);
  }
}


// tanh RESNET; h1, h2, a, b, U. mode 0: gate of h1 alone; 1: pair h1, h2; 2: window within an interval of two.
void Tanh(int mode, double rtol, int draws, const char* solver = "newton", JacobianRefresh refresh = JacobianRefresh::kEveryIteration, int warm = 0) {
  Found f; int shown = 0, phase = 0;
  std::mt19937_64 random(17);
  std::uniform_real_distribution<float> u(-1, 1);
  const int c = mode == 2 ? 2 : 1;
  for (int draw = 0; draw < draws; ++draw) {
    const int r = 6 + 2 * (draw % 5), n = r + 10;
    StackAttack a;
    a.num_steps = n; a.state_dim = 5; a.residual = true; a.activation = Activation::kTanh;
    a.weights.assign(25 * n, 0.0F); a.biases.assign(5 * n, 0.0F);
    a.inputs = {u(random), u(random), 0, 0, 1};
    for (int l = 0; l < r; ++l) for (int i = 0; i < 2; ++i) {
      a.weights[25 * l + 6 * i] = 1.2F * u(random); a.biases[5 * l + i] = u(random);
    }
    a.options = OptionsFor(solver, n, c, rtol);
    a.options.jacobian_refresh = refresh; a.options.warm_sweeps = warm;
    const SolverRig rig(*cpu::NewCpuBackend(), a.spec());
    const Solved seq = rig.Solve({.solver = "sequential"}, a.inputs);
    const Solved s = rig.Solve(a.options, a.inputs);
    if (s.reports.empty() || !s.reports[0].converged) continue;
    const double y1 = s.trajectory[5 * r], t1 = seq.trajectory[5 * r], e1 = t1 - y1;
    const double y2 = s.trajectory[5 * r + 1], t2 = seq.trajectory[5 * r + 1], e2 = t2 - y2;
    if (std::fabs(e1) < (std::getenv("LEAST") ? std::atof(std::getenv("LEAST")) : 2e-6)) continue;
    ++phase;
    const double sg = e1 > 0 ? 1 : -1, at = std::getenv("AT") ? std::atof(std::getenv("AT")) : 0.5, K = 20 / (1 - at) / std::fabs(e1);
    const auto show = [&](const StackAttack& g, double err) {
      if (!(err > 1) || shown > 1 || std::getenv("QUIET")) return;
      std::printf("    y1 %.9g t1 %.9g y2 %.9g t2 %.9g r %d n %d inputs %.9g %.9g\n", y1, t1, y2, t2, r, n, a.inputs[0], a.inputs[1]);
      for (int l = 0; l < r; ++l) std::printf("    l%d w %.9gF %.9gF b %.9gF %.9gF\n", l, a.weights[25*l], a.weights[25*l+6], a.biases[5*l], a.biases[5*l+1]);
      for (int i : {2, 3, 4}) std::printf("    gate row %d w %.9gF %.9gF b %.9gF\n", i, g.weights[25*r+5*i], g.weights[25*r+5*i+1], g.biases[5*r+i]);
    };
    if (mode < 2) {
      for (const double beta : {0.0, -.1, .1, -.3, .3, -1., 1., -3., 3., -10., 10., -30., 30.}) {
        if (mode == 0 && beta != 0) break;
        if (mode == 1 && beta == 0) continue;
        if (sg * e1 - beta * e2 < 0.5 * std::fabs(e1)) continue;
        StackAttack g = a;
        g.weights[25 * r + 20] = static_cast<float>(sg * K); g.weights[25 * r + 21] = static_cast<float>(-beta * K);
        g.biases[5 * r + 4] = static_cast<float>(K * (-sg * (y1 + at * e1) + beta * (y2 + at * e2)));
        show(g, TryOne(g, mode == 0 ? "gate" : "pair", &f, &shown));
      }
    } else {
      for (const double wide : {1.0, 2.0, 4.0}) {
        StackAttack g = a;
        g.weights[25 * r + 10] = g.weights[25 * r + 15] = static_cast<float>(sg * K);
        g.biases[5 * r + 2] = static_cast<float>(-sg * K * (y1 + at * e1));
        g.biases[5 * r + 3] = static_cast<float>(-sg * K * (t1 + wide * e1 / 2));
        float* w = g.weights.data() + 25 * (r + 1);
        w[12] = w[18] = -20;
        w[22] = 20; w[23] = -20; g.biases[5 * (r + 1) + 4] = -20;
        show(g, TryOne(g, "window", &f, &shown));
      }
    }
  }
  std::printf("tanh mode %d %s rtol %g warm %d: generators with error %d of %d; false %d (clean %d) of %d claims\n", mode, solver, rtol, warm, phase, draws, f.wrong, f.clean, f.made);
}
TEST(Attack, TanhGate) { for (double r : {1e-2, 1e-3, 1e-4}) Tanh(0, r, 3000); }
TEST(Attack, TanhPair) { for (double r : {1e-2, 1e-3, 1e-4}) Tanh(1, r, 3000); }
TEST(Attack, TanhWindow) { for (double r : {1e-2, 1e-3, 1e-4}) Tanh(2, r, 3000); }
TEST(Attack, TanhOthers) {
  for (int mode : {0, 1, 2}) for (double r : {1e-2, 1e-3}) {
    Tanh(mode, r, 1500, "newton", JacobianRefresh::kWhileContracting);
    Tanh(mode, r, 1500, "newton", JacobianRefresh::kEveryIteration, 2);
    if (mode < 2) Tanh(mode, r, 1500, "quasi_newton");
    Tanh(mode, r, 1500, "picard");
    Tanh(mode, r, 1500, "jacobi");
  }
}


// harmless: a unit reads noise, later layers forget it.
TEST(Attack, Flicker) {
  for (const double rtol : {1e-2, 1e-3, 1e-4}) for (const float grow : {0.0F, 0.5F, 1.0F}) {
    int ends[8] = {}; long its = 0; double worst = 0; int spin = 0;
    std::mt19937_64 random(3);
    for (int draw = 0; draw < 400; ++draw) {
      const int r = 40, n = 64;
      StackAttack a;
      a.num_steps = n; a.state_dim = 4;
      a.weights.assign(16 * n, 0.0F); a.biases.assign(4 * n, 0.0F);
      std::uniform_real_distribution<float> u(0, 1);
      a.inputs = {1 + u(random), 0, 0, 1};
      a.inputs[1] = a.inputs[0];
      float lg = 1, lh = 1;
      for (int l = 0; l < n; ++l) {
        float* w = a.weights.data() + 16 * l;
        const float g = 0.9F + 0.2F * u(random), h = 0.9F + 0.2F * u(random);
        w[0] = w[5] = w[15] = 1;
        if (l < r) { if (l % 2 == 0) { lg = g; lh = h; w[0] = g; w[5] = h; } else { w[0] = lh; w[5] = lg; } }
        if (l >= r) { w[8] = 1; w[9] = -1; w[10] = grow; }
      }
      a.options = OptionsFor("newton", n, 1, rtol);
      a.options.on_no_convergence = OnNoConvergence::kReturn;
      const SolverRig rig(*cpu::NewCpuBackend(), a.spec());
      const Solved seq = rig.Solve({.solver = "sequential"}, a.inputs);
      const Solved s = rig.Solve(a.options, a.inputs);
      ++ends[static_cast<int>(s.reports[0].termination)];
      its += s.reports[0].iterations;
      if (s.reports[0].iterations > 8) ++spin;
      worst = std::max(worst, Judge(a, s.trajectory, seq.trajectory).to_single);
    }
    std::printf("flicker rtol %g grow %g: converged %d max_iter %d prec %d, mean it %.1f, >8 it: %d, worst err %.3g rtol\n", rtol, grow, ends[1], ends[2], ends[4], its / 400.0, spin, worst);
  }
}
TEST(Attack, NanPrevious) {
  StackAttack a = DormantChannel(Activation::kRelu);
  a.num_steps = 64; a.weights.resize(4 * 64); a.biases.resize(2 * 64);
  const SolverRig rig(*cpu::NewCpuBackend(), a.spec());
  const Solved seq = rig.Solve({.solver = "sequential"}, a.inputs);
  for (float bad : {NAN, INFINITY, 3e38F}) for (int at : {0, 1, 30, 63, 64}) {
    a.previous = seq.trajectory;
    a.previous[2 * at + 1] = bad;
    a.options = OptionsFor("newton", 64, 1, 1e-3);
    a.options.initial_guess = InitialGuess::kPrevious;
    a.options.on_no_convergence = OnNoConvergence::kReturn;
    const Solved s = rig.Solve(a.options, RunItem{.num_samples = 1, .inputs = a.inputs, .initial_states = a.previous});
    if (s.reports.empty()) { std::printf("refused\n"); continue; }
    std::printf("previous %g at %d: termination %d it %d corr %d conf %d err %.3g\n", bad, at, static_cast<int>(s.reports[0].termination), s.reports[0].iterations, s.reports[0].chord_corrections, s.reports[0].confirmations, Judge(a, s.trajectory, seq.trajectory).to_single);
  }
}
// A2: softplus/tanh/... smooth generator in channel 0, const channel 1, unit 2 through steep gate.
TEST(Attack, SmoothMask) {
  for (const Activation act : {Activation::kSilu, Activation::kGelu, Activation::kElu, Activation::kSoftplus})
    for (const float beta : {0.0F, -10.0F, -300.0F, -3000.0F}) {
      Found f; int shown = 0;
      std::mt19937_64 random(7);
      for (int draw = 0; draw < 1500; ++draw) {
        const int r = 8, n = 20;
        StackAttack a;
        a.num_steps = n; a.state_dim = 3; a.residual = true; a.activation = act;
        a.weights.assign(9 * n, 0.0F); a.biases.assign(3 * n, 0.0F);
        a.inputs = {1, 1, 0};
        std::uniform_real_distribution<float> u(-1, 1);
        for (int l = 0; l < n; ++l) {
          a.biases[3 * l] = a.biases[3 * l + 1] = a.biases[3 * l + 2] = -1e5F;  // silu, gelu -> 0
        }
        for (int l = 0; l < r; ++l) { a.weights[9 * l] = u(random); a.biases[3 * l] = u(random); }
        if (act == Activation::kElu)
          for (int l = 0; l < n; ++l) a.biases[3 * l + 1] = a.biases[3 * l + 2] = 0;
        StackAttack probe = a;
        const SolverRig rig(*cpu::NewCpuBackend(), a.spec());
        const Solved seq = rig.Solve({.solver = "sequential"}, a.inputs);
        const double z = seq.trajectory[3 * r];
        const double gap = std::exp2(-4 - static_cast<double>(draw % 97) / 6) * (draw % 3 ? 1 : -1);
        const double sg = gap > 0 ? 1 : -1;
        const float k = act == Activation::kElu ? 1 : 3e5F;
        a.weights[9 * r + 6] = static_cast<float>(sg * k); a.weights[9 * r + 7] = beta * k;
        a.biases[3 * r + 2] = static_cast<float>(k * (-sg * z * (1 - gap) - beta));
        for (int l = r + 1; l < n; ++l) { a.weights[9 * l + 8] = 3; a.biases[3 * l + 2] = 0; }
        if (act == Activation::kElu) continue;
        a.options = OptionsFor("newton", n, 1, draw % 2 == 0 ? 1e-2 : 1e-3);
        TryOne(a, "smooth", &f, &shown);
      }
      std::printf("smooth act %d beta %g: %d of %d\n", static_cast<int>(act), beta, f.wrong, f.made);
    }
}

// B: rounding: two equal values by other ways, read by their difference.
TEST(Attack, RoundingDifference) {
  for (const double rtol : {1e-2, 1e-4, 1e-6}) for (const int c : {1, 4}) {
    Found f; int shown = 0;
    std::mt19937_64 random(3);
    for (int draw = 0; draw < 1500; ++draw) {
      const int r = 40, n = 64;
      StackAttack a;
      a.num_steps = n; a.state_dim = 4;
      a.weights.assign(16 * n, 0.0F); a.biases.assign(4 * n, 0.0F);
      std::uniform_real_distribution<float> u(0, 1);
      a.inputs = {1 + u(random), 0, 0, 1};
      a.inputs[1] = a.inputs[0];
      const bool mix = draw % 2;
      for (int l = 0; l < n; ++l) {
        float* w = a.weights.data() + 16 * l;
        const float g = 0.9F + 0.2F * u(random), h = 0.9F + 0.2F * u(random);
        if (l < r) {  // two layers: g then h; the other one h then g
          static float lg, lh;
          if (l % 2 == 0) { lg = g; lh = h; w[0] = g; w[5] = h; } else { w[0] = lh; w[5] = lg; }
          if (mix) a.biases[4 * l] = a.biases[4 * l + 1] = 0.0F;
        } else { w[0] = w[5] = 1; }
        w[15] = 1;
        if (l == r) { w[8] = 1; w[9] = -1; a.biases[4 * l + 2] = 0; }
        if (l > r) w[10] = 3;
      }
      a.options = OptionsFor("newton", n, c, rtol);
      TryOne(a, "rounding", &f, &shown);
    }
    std::printf("rounding rtol %g C %d: %d of %d\n", rtol, c, f.wrong, f.made);
  }
}
}  // namespace
}  // namespace deeppcr
