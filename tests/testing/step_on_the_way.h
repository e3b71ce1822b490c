// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_STEP_ON_THE_WAY_H_
#define DEEPPCR_TESTS_TESTING_STEP_ON_THE_WAY_H_

// A certified state, and a step of the network between it and the answer.

#include <cstdint>
#include <random>

#include "tests/testing/stack_attack.h"

namespace deeppcr::testing {

// Two channels of a tanh ResNet, followed by a step so steep that it lies between the state that is
// certified without the step and the sequential state. Copies are independent: each Plant call
// takes a copy of its own.
class StepOnTheWay {
 public:
  static constexpr int kDim = 5;  // two channels, two that make a window, and one that these move

  // `stale`: by how much the inputs of the previous trajectory, the guess, differ.
  StepOnTheWay(uint64_t seed, double rtol, int64_t interval, float stale = 0);

  const StackAttack& attack() const { return attack_; }
  double rtol() const { return rtol_; }
  int64_t interval() const { return interval_; }
  // True if the certified and the sequential state are at least `least` apart, relatively: by
  // default there is room between them for a step that is more than rounding.
  bool has_error(double least = 2e-6) const;

  // Plants a unit that reads the first channel less `other` times the second one, and steps at the
  // fraction `at` of the way, steeply for the way that is left. Plants nothing and returns false if
  // the second channel cancels most of the way.
  bool PlantGate(double at, double other);
  // Plants a window that the first channel enters at the fraction `at` of the way, and leaves
  // `wide` times half the error past the end of the way.
  void PlantWindow(double at, double wide);
  // Plants a step of this height in the last channel, which a stale guess has moved too: the step
  // fits into that channel's ball. For use within one interval of two steps, whose end does not
  // show the channel before.
  void PlantLowStep(double at, double height);

 private:
  float Any();
  float& Weight(int64_t l, int to, int from);
  double Steepness(double at) const;
  void SetRow(int64_t l, int to, double first, double second, double bias);

  std::mt19937_64 random_;
  double rtol_;
  int64_t interval_;
  int64_t step_;  // the first step that reads the certified state
  StackAttack attack_;
  double claim_[2] = {}, error_[2] = {};  // states and errors of the two channels at step_
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_STEP_ON_THE_WAY_H_
