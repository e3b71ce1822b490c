// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_HOME_H_
#define DEEPPCR_KERNELS_PROGRAM_HOME_H_

// Plain, for nvcc too.

#include <cstdint>

namespace deeppcr::program {

// Where a section finds a value: in its own frame, or in a row that was filled before.
enum class Home : uint8_t {
  kFrame,      // made by the section itself
  kConstant,   // one row for all
  kTime,       // a row per step
  kCondition,  // a row per sample
  kMixed,      // a row per sample and step
};
inline constexpr int kNumHomes = 5;

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_HOME_H_
