// SPDX-License-Identifier: Apache-2.0
#define DEEPPCR_CPU_ISA avx2
#include "kernels/cpu/kernels_impl.h"

namespace deeppcr::cpu {

Kernels KernelsAvx2(int64_t width) { return avx2::TableFor(width); }

}  // namespace deeppcr::cpu
