// SPDX-License-Identifier: Apache-2.0
#define DEEPPCR_CPU_ISA avx2
#include "kernels/cpu/diffusion/kernels_impl.h"

namespace deeppcr::cpu {

DenoiserKernels DenoiserKernelsAvx2() { return avx2::DenoiserTable(); }

}  // namespace deeppcr::cpu
