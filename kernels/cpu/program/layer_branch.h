// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_LAYER_BRANCH_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_LAYER_BRANCH_H_

// Layers of one row whose outputs are activated at once: see LayerBranchKernel.

#include <cstdint>

#include "kernels/cpu/program/elementwise.h"
#include "kernels/cpu/program/kernels.h"
#include "kernels/cpu/program/panel_gemm.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

template <Op op, int P>
DEEPPCR_INLINE void LayerBranchOf(const GemmArgs& g, const float* b, const float* c, float* out) {
  const int64_t width = g.layer->width;
  // What follows reads the row until its last panel is multiplied.
  alignas(64) float kept[kMostPanelsInPlace * P];
  const bool in_place = out < g.in + g.layer->cols && g.in < out + width;
  float* const to = in_place ? kept : out;
  for (int64_t first = 0; first < width; first += P) {
    OneRow<P>(g, 0, {first, first + P});
    BranchRow<op>(g.out + first, b == nullptr ? nullptr : b + first,
                  c == nullptr ? nullptr : c + first, to + first, P);
  }
  if (in_place) ForVectors(width, [&](int64_t at) { Store(out + at, LoadWide(kept + at)); });
}

template <Op op>
void LayerBranch(const GemmArgs& g, const float* b, const float* c, float* out) {
  switch (g.layer->panel) {
    case 16:
      return LayerBranchOf<op, 16>(g, b, c, out);
    case 32:
      return LayerBranchOf<op, 32>(g, b, c, out);
    default:
      return LayerBranchOf<op, 64>(g, b, c, out);
  }
}

template <int I = 0>
DEEPPCR_INLINE void FillLayerBranches(ProgramKernels* table) {
  if constexpr (I < program::kNumOps) {
    constexpr Op op = program::kOps[I].op;
    if constexpr (program::kOps[I].kind == program::OpKind::kElementwise) {
      if constexpr (requires { Lanes<op>::kActivation; }) table->layer_branch[I] = &LayerBranch<op>;
    }
    FillLayerBranches<I + 1>(table);
  }
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_LAYER_BRANCH_H_
