// SPDX-License-Identifier: Apache-2.0
#define DEEPPCR_CPU_ISA avx2
#include "kernels/cpu/program/kernels_impl.h"

namespace deeppcr::cpu {

ProgramKernels ProgramKernelsAvx2() { return avx2::ProgramTable(); }

}  // namespace deeppcr::cpu
