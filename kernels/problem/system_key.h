// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROBLEM_SYSTEM_KEY_H_
#define DEEPPCR_KERNELS_PROBLEM_SYSTEM_KEY_H_

#include <cstdint>

namespace deeppcr {

// Names a system of a model: what requests may vary beside the inputs of their samples.
struct SystemKey {
  // The system of the whole process of so many steps; 0: of the model's default. Implicit: a number
  // of steps is the usual name.
  constexpr SystemKey(int64_t steps = 0) : num_steps(steps) {}

  bool operator==(const SystemKey&) const = default;

  // True for the whole process as it is.
  bool plain() const { return *this == SystemKey(num_steps); }

  int64_t num_steps;       // of the whole process
  int64_t first_step = 0;  // k: the first k steps are left out; z_0 is what they would have given
  bool guided = false;     // kernels/program/guidance.h; its inputs are those of the guided program
  bool known = false;      // kernels/program/known_elements.h; the same
  bool backward = false;   // with a backward pass, if a backend of the model has one
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PROBLEM_SYSTEM_KEY_H_
