// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_DEPENDENCE_H_
#define DEEPPCR_KERNELS_PROGRAM_DEPENDENCE_H_

// Classes of dependence: what a value is made again for. The order is that in which classes are
// made: none needs a later one.

#include <array>
#include <cstdint>

#include "kernels/program/program.h"

namespace deeppcr::program {

inline constexpr int kNumClasses = 5;

// Class of bits of Depends: 0 to kNumClasses - 1, where whatever depends on the state is the last.
constexpr int ClassOf(uint8_t depends) {
  return (depends & kOnState) != 0 ? int{kOnState} : int{depends};
}
inline int ClassOf(const Value& value) { return ClassOf(value.depends); }

inline constexpr std::array<const char*, kNumClasses> kClassNames = {"nothing", "time", "condition",
                                                                     "time and condition", "state"};

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_DEPENDENCE_H_
