// SPDX-License-Identifier: Apache-2.0
// Attacks on the promise that claims are true, with systems unlike those that suggested the rule:
// exact zeros, kinks, no bias, sparse and low-rank weights, inputs from 1e-6 to 1e6, guesses that
// are fitted, right, stale or from another input.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "kernels/solver/registry.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/stack_attack.h"
#include "tests/testing/weaker_rules.h"

namespace deeppcr::testing {
namespace {

// The number of claims to judge; the slow run of this test asks for more.
int64_t WantedClaims() {
  const char* text = std::getenv("DEEPPCR_TEST_CLAIMS");
  return text == nullptr ? 4000 : std::atoll(text);
}

Solved SolveAttack(const SolverRig& rig, const StackAttack& attack) {
  return rig.Solve(
      attack.options,
      SampleInputs{.num_samples = 1, .inputs = attack.inputs, .initial_states = attack.previous});
}
Solved SolveInTurn(const SolverRig& rig, const StackAttack& attack) {
  return rig.Solve({.solver = "sequential"}, attack.inputs);
}

std::string DescribeAttack(const StackAttack& a, uint64_t seed) {
  return "attack " + std::to_string(seed) + ": " + a.family + ", " + std::string(a.options.solver) +
         " C=" + std::to_string(a.options.shooting_interval) +
         " rtol=" + std::to_string(a.options.rtol);
}

// The hand-written kernels, and the same stacks as step programs.
class CertificateAttackTest : public ::testing::TestWithParam<bool> {};

// No claim is beyond the tolerance of the sequential solver, nor beyond that of the oracle in
// double if the sequential solver is within it.
TEST_P(CertificateAttackTest, NoClaimIsFalse) {
  struct Row {
    int64_t solves = 0, claims = 0, precise = 0, precise_claims = 0, close = 0;
    double worst = 0;
  };
  std::map<std::string, Row> rows;
  int64_t claims = 0;
  for (uint64_t seed = 0; claims < WantedClaims(); ++seed) {
    StackAttack attack = DrawStackAttack(seed);
    attack.as_program = GetParam();
    const SolverRig rig = RigOf(&attack);
    const Solved sequential = SolveInTurn(rig, attack);
    if (!sequential.reports[0].converged) continue;  // the system overflows
    const Solved solved = SolveAttack(rig, attack);
    const SampleReport& report = solved.reports[0];
    Row& row = rows[attack.family + ", " + std::string(attack.options.solver)];
    const Distance distance = Judge(attack, solved.trajectory, sequential.trajectory);
    ++row.solves;
    const bool precise = distance.rounding < 0.1;
    row.precise += precise ? 1 : 0;
    row.precise_claims += precise && report.converged ? 1 : 0;
    if (!report.converged) continue;
    ++row.claims;
    ++claims;
    row.worst = std::max(row.worst, distance.to_single);
    const double estimate = *report.error_estimate / attack.options.rtol;
    row.close += estimate <= 10 * std::max(distance.to_single, distance.to_double) ? 1 : 0;
    EXPECT_LE(distance.to_single, 1) << DescribeAttack(attack, seed);
    if (distance.rounding > 1) continue;
    EXPECT_LE(distance.to_double, 1) << DescribeAttack(attack, seed);
  }
  std::printf("%-40s %7s %7s %12s %11s %10s\n", "family", "solves", "claims", "precise ok",
              "worst/rtol", "estimate*");
  for (const auto& [family, row] : rows) {
    std::printf("%-40s %7lld %7lld %11.1f%% %11.2f %9.1f%%\n", family.c_str(),
                static_cast<long long>(row.solves), static_cast<long long>(row.claims),
                100.0 * row.precise_claims / std::max<int64_t>(row.precise, 1), row.worst,
                100.0 * row.close / std::max<int64_t>(row.claims, 1));
  }
  std::printf("%lld claims; *: at most ten times the error\n", static_cast<long long>(claims));
  EXPECT_GE(claims, WantedClaims());
}

// Most claims that a single chord correction, one of the weaker rules, certifies rightly at rtol
// 1e-4 are still certified.
TEST_P(CertificateAttackTest, WhatWasCertifiedRightlyStillIs) {
  struct Row {
    int64_t right = 0, kept = 0, iterations_before = 0, iterations = 0, passes_before = 0,
            passes = 0;
  };
  std::map<std::string, Row> rows;
  const int64_t systems = WantedClaims() / 2;
  for (int64_t seed = 0; seed < systems; ++seed) {
    StackAttack attack = DrawStackAttack(1000000 + seed, "newton", 1e-4);
    attack.as_program = GetParam();
    attack.options.max_iterations = 32;
    attack.options.warm_sweeps = 0;
    attack.options.jacobian_refresh = JacobianRefresh::kEveryIteration;
    SolverRig rig = RigOf(&attack);
    const Solved sequential = SolveInTurn(rig, attack);
    if (!sequential.reports[0].converged) continue;
    const WeakClaim before = SolveByWeakRule(attack, rig.system(), WeakRule::kChord);
    if (!before.claimed) continue;
    if (Judge(attack, before.trajectory, sequential.trajectory).to_single > 1) continue;
    const SampleReport report = SolveAttack(rig, attack).reports[0];
    Row& row = rows[attack.family];
    ++row.right;
    if (!report.converged) continue;
    ++row.kept;
    row.iterations_before += before.iterations;
    row.passes_before += before.iterations + before.corrections;
    row.iterations += report.iterations;
    row.passes += report.iterations + report.chord_corrections + report.confirmations;
  }
  std::printf("%-28s %7s %8s   %s\n", "family", "right", "kept",
              "iterations, passes: before -> now (means)");
  for (const auto& [family, row] : rows) {
    const double kept = static_cast<double>(std::max<int64_t>(row.kept, 1));
    std::printf("%-28s %7lld %7.2f%%   %.2f -> %.2f, %.2f -> %.2f\n", family.c_str(),
                static_cast<long long>(row.right), 100.0 * row.kept / row.right,
                row.iterations_before / kept, row.iterations / kept, row.passes_before / kept,
                row.passes / kept);
    const bool hard = family.find("kinked, no bias") == 0;
    EXPECT_GE(100.0 * row.kept, (hard ? 90.0 : 95.0) * row.right) << family;
  }
}

INSTANTIATE_TEST_SUITE_P(Stacks, CertificateAttackTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "AsPrograms" : "Named"; });

}  // namespace
}  // namespace deeppcr::testing
