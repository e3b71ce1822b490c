// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_PROGRAM_RANDOM_PROGRAM_H_
#define DEEPPCR_TESTS_KERNELS_PROGRAM_RANDOM_PROGRAM_H_

#include <cstdint>
#include <vector>

#include "kernels/problem/reverse_step.h"
#include "kernels/program/evaluate.h"
#include "kernels/program/program.h"

namespace deeppcr::program {

struct RandomProgramOptions {
  int64_t state = 6;      // elements
  int64_t condition = 4;  // elements
  int instructions = 24;  // drawn; more are written, which keep operands where they are harmless
  int64_t largest = 24;   // elements of a value
  bool reverse_step = true;
  // Layers of stacked constants, of which some are drawn as matrices, others as vectors; 0: none.
  int64_t layers = 0;
  // Whether operations are drawn whose values jump: comparisons and floor.
  bool jumps = true;
};

// A program that is the same for the same seed, of all rows of kOps (not all in each), with values
// that are moderate and away from every pole, jump and kink for the inputs of RandomInputs. What a
// graph's exporter takes apart (activations, norms, concatenations) comes up often.
Program RandomProgram(uint64_t seed, const RandomProgramOptions& options = {});

// Inputs of a program, of layer 0, standard normal where they are vectors.
class RandomInputs {
 public:
  RandomInputs(const Program& program, uint64_t seed);

  const std::vector<double>& state() const { return state_; }
  // Views of the inputs, which have to outlive them.
  StepInputs inputs() const;

 private:
  std::vector<double> state_, condition_, noise_;
  double time_ = 0, label_ = 0;
  ReverseStep reverse_;
};

// Rows of the tables of random programs, of which the time and the label are indices.
inline constexpr int64_t kRowsOfTables = 7;

}  // namespace deeppcr::program

#endif  // DEEPPCR_TESTS_KERNELS_PROGRAM_RANDOM_PROGRAM_H_
