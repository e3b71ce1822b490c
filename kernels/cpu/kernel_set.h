// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_KERNEL_SET_H_
#define DEEPPCR_KERNELS_CPU_KERNEL_SET_H_

#include <cstdint>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/program/kernels.h"

namespace deeppcr::cpu {

// The kernel tables of one instruction set.
struct KernelSet {
  Kernels (*kernels)(int64_t width);
  ProgramKernels (*program)();
};

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_KERNEL_SET_H_
