// SPDX-License-Identifier: Apache-2.0
#define DEEPPCR_CPU_ISA avx512
#include "kernels/cpu/diffusion/kernels_impl.h"

namespace deeppcr::cpu {

DenoiserKernels DenoiserKernelsAvx512() { return avx512::DenoiserTable(); }

}  // namespace deeppcr::cpu
