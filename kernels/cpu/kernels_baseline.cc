// SPDX-License-Identifier: Apache-2.0
#define DEEPPCR_CPU_ISA baseline
#include "kernels/cpu/kernels_impl.h"

namespace deeppcr::cpu {

Kernels KernelsBaseline(int64_t width) { return baseline::TableFor(width); }

}  // namespace deeppcr::cpu
