// SPDX-License-Identifier: Apache-2.0
#define DEEPPCR_CPU_ISA avx512
#include "kernels/cpu/program/kernels_impl.h"

namespace deeppcr::cpu {

ProgramKernels ProgramKernelsAvx512() { return avx512::ProgramTable(); }

}  // namespace deeppcr::cpu
