// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_WEAKER_RULES_H_
#define DEEPPCR_TESTS_TESTING_WEAKER_RULES_H_

// Stopping rules that are known to claim what is not so, run on the passes of the CPU backend: what
// tests of a claim have to catch.

#include <string_view>
#include <vector>

#include "kernels/backend/backend.h"
#include "tests/testing/stack_attack.h"

namespace deeppcr::testing {

enum class WeakRule {
  kChord,       // 2 |c| + rho <= rtol of one chord correction, whatever it went through
  kRate,        // the same, and |c| < 0.5 |d|
  kTwoChords,   // the same, then of a second one too, which contracts
  kFront,       // the whole certificate, but for its confirmations
  kUnfollowed,  // the whole certificate, but for the confirmation that follows what is left
};
// Those that a search finds false claims of; the last one needs systems made on purpose.
inline constexpr WeakRule kWeakRules[] = {WeakRule::kChord, WeakRule::kRate, WeakRule::kTwoChords,
                                          WeakRule::kFront};
std::string_view NameOf(WeakRule rule);

struct WeakClaim {
  bool claimed = false;
  int iterations = 0, corrections = 0;
  std::vector<float> trajectory;  // [L + 1, D] where it claims
};

// Newton on the attack's system, input and guess by this rule.
WeakClaim SolveByWeakRule(const StackAttack& attack, System& system, WeakRule rule);

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_WEAKER_RULES_H_
