// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_STACK_ATTACK_H_
#define DEEPPCR_TESTS_TESTING_STACK_ATTACK_H_

// Dense stacks that are hard to get right: every activation, with and without bias, weights of
// every structure, inputs with exact zeros and of every size, guesses that are fitted, right, stale
// or from another input.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/problem/spec.h"
#include "kernels/solver/options.h"
#include "tests/testing/solver_rig.h"

namespace deeppcr::testing {

// A system, one input, and the options of one solve. Owns its arrays; copies are independent.
struct StackAttack {
  int64_t num_steps = 1, state_dim = 1;
  bool residual = false;
  float residual_scale = 1;
  Activation activation = Activation::kRelu;
  std::vector<float> weights;   // [L, D, D]
  std::vector<float> biases;    // [L, D]
  std::vector<float> inputs;    // [D]
  std::vector<float> previous;  // [L + 1, D] if options.initial_guess is kPrevious
  ResolvedOptions options;
  std::string family;       // the row that the attack belongs to in tables
  bool as_program = false;  // the system is a step program

  DenseStackSpec spec() const;
  bool smooth() const;  // true if the activation has no kink
};

// An MLP whose weights and biases are all zero, for tests to put layers into.
StackAttack ZeroStack(int64_t num_steps, int64_t state_dim, Activation activation);

// Draws everything from `seed`: widths 2 to 16, depths 16 to 256, gains around the edge of
// stability, every iterative solver and its options, rtol from 1e-2 to 1e-6. `solver`, unless
// empty, and `rtol`, unless 0, replace what would be drawn.
StackAttack DrawStackAttack(uint64_t seed, std::string_view solver = "", double rtol = 0);

// The attack's system on the CPU backend, with its fitted guess if the attack asks for one. If
// there is no fitted guess, because too many trajectories overflow, the attack asks for the
// constant guess from then on.
SolverRig RigOf(StackAttack* attack);

// A small system, mostly kinked: a start for a search.
StackAttack DrawSearchStart(uint64_t seed);
// Changes a few weights, biases or inputs, or one weight in a range of steps.
void Mutate(std::mt19937_64& random, StackAttack* attack);

// The distance between two answers, in tolerances, at the ends of intervals: the largest
// |a - b| / (rtol |a| + atol) in max norms. An error below the least normal float counts as none.
struct Distance {
  double to_single = 0;  // distance to the sequential solver of the same backend
  double to_double = 0;  // distance to the oracle in double
  double rounding = 0;   // distance between these two, anywhere in the trajectory
};
// Compares `trajectory` with both; infinite if a value is NaN.
Distance Judge(const StackAttack& attack, const std::vector<float>& trajectory,
               const std::vector<float>& sequential);

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_STACK_ATTACK_H_
