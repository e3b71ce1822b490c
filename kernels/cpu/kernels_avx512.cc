// SPDX-License-Identifier: Apache-2.0
#define DEEPPCR_CPU_ISA avx512
#include "kernels/cpu/kernels_impl.h"

namespace deeppcr::cpu {

Kernels KernelsAvx512(int64_t width) { return avx512::TableFor(width); }

}  // namespace deeppcr::cpu
