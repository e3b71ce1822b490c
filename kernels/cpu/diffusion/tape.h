// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_DIFFUSION_TAPE_H_
#define DEEPPCR_KERNELS_CPU_DIFFUSION_TAPE_H_

#include "kernels/cpu/diffusion/kernels.h"
#include "kernels/cpu/simd/simd.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// dz'/dz without the network, and dz'/dm, where x0 is within its clip (in) and beyond it (out).
struct ReverseSlopes {
  Vec<kNativeLanes> out_z, out_m, in_z, in_m;

  explicit DEEPPCR_INLINE ReverseSlopes(const ReverseCoefficients& c)
      : out_z(Broadcast<kNativeLanes>(c.z_z)),
        out_m(Broadcast<kNativeLanes>(c.z_m)),
        in_z(Fma(Broadcast<kNativeLanes>(c.z_x0), Broadcast<kNativeLanes>(c.x0_z), out_z)),
        in_m(Fma(Broadcast<kNativeLanes>(c.z_x0), Broadcast<kNativeLanes>(c.x0_m), out_m)) {}
};

// Tape of a step's primal pass for its tangents, for one row:
//
//   [N, rows per block, H']  slope act'(a), for probes a itself, size of the terms of its sum, and
//                            the activation or the sum that includes it; then in adaLN: normed
//                            vector, size of the rounding of the block
//   [2, H']                  size of the rounding of the input layer, last normed vector
//   [4, X]                   dz'/dz without the network, dz'/dm, size of the rounding of z', and
//                            how far x0 is from its clip
//   [2, N + 1]               1 / standard deviation of each norm, |mean| by it; padded to 16
struct Tape {
  float* base;
  int64_t hidden, state, blocks, rows;

  DEEPPCR_INLINE Tape(const DenoiserView& d, float* at)
      : base(at),
        hidden(d.hidden_width),
        state(d.state_width),
        blocks(d.num_blocks),
        rows(d.ada_ln ? kAdaLnTapeRows : kResidualTapeRows) {}

  DEEPPCR_INLINE float* OfBlock(int64_t block, int64_t row) const {
    return base + (block * rows + row) * hidden;
  }
  DEEPPCR_INLINE float* Slope(int64_t block) const { return OfBlock(block, 0); }
  DEEPPCR_INLINE float* PreActivation(int64_t block) const { return OfBlock(block, 1); }
  DEEPPCR_INLINE float* Terms(int64_t block) const { return OfBlock(block, 2); }
  DEEPPCR_INLINE float* Activated(int64_t block) const { return OfBlock(block, 3); }
  DEEPPCR_INLINE float* OuterSize(int64_t block) const { return OfBlock(block, rows - 1); }
  // Normed vector of a block; "block" N stands for the last norm.
  DEEPPCR_INLINE float* Normed(int64_t block) const {
    return block == blocks ? OfBlock(blocks, 1) : OfBlock(block, 4);
  }
  DEEPPCR_INLINE float* InputSize() const { return OfBlock(blocks, 0); }
  DEEPPCR_INLINE float* OfState(int64_t row) const { return OfBlock(blocks, 2) + row * state; }
  DEEPPCR_INLINE float* ByState() const { return OfState(0); }
  DEEPPCR_INLINE float* ByPrediction() const { return OfState(1); }
  DEEPPCR_INLINE float* StateSize() const { return OfState(2); }
  DEEPPCR_INLINE float* FromClip() const { return OfState(3); }
  DEEPPCR_INLINE float& InverseDeviation(int64_t block) const { return OfState(4)[block]; }
  DEEPPCR_INLINE float& RelativeMean(int64_t block) const { return OfState(4)[blocks + 1 + block]; }
};

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_DIFFUSION_TAPE_H_
