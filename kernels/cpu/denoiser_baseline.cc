// SPDX-License-Identifier: Apache-2.0
#define DEEPPCR_CPU_ISA baseline
#include "kernels/cpu/diffusion/kernels_impl.h"

namespace deeppcr::cpu {

DenoiserKernels DenoiserKernelsBaseline() { return baseline::DenoiserTable(); }

}  // namespace deeppcr::cpu
