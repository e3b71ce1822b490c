// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_WEAKER_RULES_H_
#define DEEPPCR_TESTS_TESTING_WEAKER_RULES_H_

// Stopping rules that are known to make false claims, run on the passes of the CPU backend. Tests
// of claims have to catch these rules.

#include <string_view>
#include <vector>

#include "kernels/backend/backend.h"
#include "tests/testing/stack_attack.h"

namespace deeppcr::testing {

enum class WeakRule {
  kChord,       // one chord correction with 2 |c| + rho <= rtol, whatever came before it
  kRate,        // kChord, and |c| < 0.5 |d| or 2 |c| <= rho
  kTwoChords,   // two chord corrections with 2 |c| + rho <= rtol, the second one contracting
  kFront,       // the whole certificate without its confirmations
  kUnfollowed,  // the whole certificate without the confirmation that follows what is left
};
// Rules that a search finds false claims of; kUnfollowed needs systems made on purpose.
inline constexpr WeakRule kWeakRules[] = {WeakRule::kChord, WeakRule::kRate, WeakRule::kTwoChords,
                                          WeakRule::kFront};
std::string_view NameOf(WeakRule rule);

struct WeakClaim {
  bool claimed = false;
  int iterations = 0, corrections = 0;
  std::vector<float> trajectory;  // [L + 1, D] if claimed
};

// Runs Newton on the attack's system, input and guess under `rule`.
WeakClaim SolveByWeakRule(const StackAttack& attack, System& system, WeakRule rule);

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_WEAKER_RULES_H_
