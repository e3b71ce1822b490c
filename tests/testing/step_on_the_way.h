// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_STEP_ON_THE_WAY_H_
#define DEEPPCR_TESTS_TESTING_STEP_ON_THE_WAY_H_

// A certified state, and a step of the network between it and the answer.

#include <cstdint>
#include <random>

#include "tests/testing/stack_attack.h"

namespace deeppcr::testing {

// Two channels of a tanh ResNet, and then a step so steep that it lies between the state that is
// certified without it and the sequential one. A copy is independent: one of each Plant call.
class StepOnTheWay {
 public:
  static constexpr int kDim = 5;  // two channels, two that make a window of them, what they move

  // `stale`: from the trajectory of inputs that differ by this.
  StepOnTheWay(uint64_t seed, double rtol, int64_t interval, float stale = 0);

  const StackAttack& attack() const { return attack_; }
  double rtol() const { return rtol_; }
  int64_t interval() const { return interval_; }
  // True if the two are so far from each other, relatively: by default there is room for a step
  // between them that is none to rounding.
  bool has_error(double least = 2e-6) const;

  // A unit that sees the first channel, less `other` of the second one, pass `at` of the way. Steep
  // for the way that is left: none, and false, where the second channel cancels most of it.
  bool PlantGate(double at, double other);
  // A window that the first channel enters there, and leaves after `wide` more of half the error.
  void PlantWindow(double at, double wide);
  // A step of this height in the fourth channel, which a stale guess has moved too: it fits into
  // that channel's ball. Within one interval of two, whose end does not show the channel before.
  void PlantLowStep(double at, double height);

 private:
  float Any();
  float& Weight(int64_t l, int to, int from);
  double Steepness(double at) const;
  void SetRow(int64_t l, int to, double first, double second, double bias);

  std::mt19937_64 random_;
  double rtol_;
  int64_t interval_;
  int64_t step_;  // the first one that reads what is certified
  StackAttack attack_;
  double claim_[2] = {}, error_[2] = {};  // of the two channels there
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_STEP_ON_THE_WAY_H_
