// SPDX-License-Identifier: Apache-2.0
#define DEEPPCR_CPU_ISA baseline
#include "kernels/cpu/program/kernels_impl.h"

namespace deeppcr::cpu {

ProgramKernels ProgramKernelsBaseline() { return baseline::ProgramTable(); }

}  // namespace deeppcr::cpu
