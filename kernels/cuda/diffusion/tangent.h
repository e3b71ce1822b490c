// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_TANGENT_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_TANGENT_H_

// The reverse step of kernels/problem/reverse_step.h as its tangents see it, and how large a
// state's rounding errors are, which probes pick up (kernels/cpu/diffusion/reverse_step.h has their
// derivation). `terms`: of a dot product, the spread of its row times the length of its vector.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/diffusion/view.h"
#include "kernels/cuda/math/rounding_source.h"
#include "kernels/cuda/math/slope_near.h"
#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// value = a dot product.
DEEPPCR_DEVICE float SizeOfSum(float terms, float value) {
  return sqrtf(fmaf(terms, terms, value * value));
}
// value = something + branch, where the branch is `sum` times a factor or, near by, a function of
// that slope.
DEEPPCR_DEVICE float SizeOfBranch(float terms, float factor, float sum, float value) {
  const float branch = factor * factor * fmaf(terms, terms, sum * sum);
  return sqrtf(fmaf(value, value, branch));
}
// value = act(sum). Twice the terms: the inputs of the product have been rounded too.
DEEPPCR_DEVICE float SizeOfActivation(float terms, float slope, float sum, float value) {
  const float before = fmaf(terms, terms + terms, sum * sum);
  return sqrtf(fmaf(slope * slope, before, value * value));
}

// What probe v picks up in element i at a place of the network, of which a step has 2 N + 2: the
// signs differ from one to the next.
DEEPPCR_DEVICE float RoundingAt(const DenoiserView& d, int64_t step, int place, float size, int v,
                                int i) {
  return RoundingSource(size, v, i, step * (2 * d.num_blocks + 2) + place);
}

// Of x0. A NaN stays one.
DEEPPCR_DEVICE float ClipTo(float range, float x) {
  return x > range ? range : x < -range ? -range : x;
}

// d next = by_m dm + by_z dz.
struct ReverseTangent {
  float by_m, by_z;

  DEEPPCR_DEVICE ReverseTangent(const ReverseCoefficients& c, bool clipped)
      : by_m(fmaf(clipped ? 0.0F : c.z_x0, c.x0_m, c.z_m)),
        by_z(fmaf(clipped ? 0.0F : c.z_x0, c.x0_z, c.z_z)) {}
};

// How far x0 is beyond its clip, whose slope is 1 on the boundary, as PyTorch's, and for a NaN,
// which shows in m.
DEEPPCR_DEVICE float BeyondClip(const ReverseCoefficients& c, float clip_range, float m, float z) {
  return fabsf(fmaf(c.x0_m, m, c.x0_z * z)) - clip_range;
}

// next = the reverse step of z with prediction m, where `terms` are by_m times those of m. Twice
// these in adaLN, where the inputs of the product have been rounded too.
DEEPPCR_DEVICE float SizeOfState(const ReverseCoefficients& c, bool ada_ln, float z, float m,
                                 float next, float terms) {
  const auto square = [](float x) { return x * x; };
  float size = square(terms) * (ada_ln ? 2.0F : 1.0F);
  size = fmaf(next, next, size);
  size += square(c.z_z * z) + square(c.z_m * m);
  size += square(c.z_x0 * c.x0_z * z);
  return sqrtf(size + square(c.z_x0 * c.x0_m * m));
}

// What a probe goes through, and how large the rounding is that it picks up there.
struct ReverseOfProbes {
  float beyond;  // the clip, by more than the terms of x0 let it be elsewhere (SlopeReach)
  float size;

  // `terms`: of m.
  DEEPPCR_DEVICE ReverseOfProbes(const ReverseCoefficients& c, const DenoiserView& d, float m,
                                 float z, float next, float terms) {
    const float of_x0 = c.x0_m * c.x0_m * fmaf(terms, terms, m * m);
    const float reach = ReachOf(sqrtf(fmaf(c.x0_z * z, c.x0_z * z, of_x0)), 0.0F);
    beyond = BeyondClip(c, d.clip_range, m, z) - reach;
    const ReverseTangent near(c, beyond > 0.0F);
    size = SizeOfState(c, d.ada_ln, z, m, next, near.by_m * terms);
  }
  // Of m and z.
  DEEPPCR_DEVICE float Carry(const ReverseCoefficients& c, float m, float z) const {
    const float reach = ReachOf(0.0F, fabsf(fmaf(c.x0_m, m, c.x0_z * z)));
    const ReverseTangent near(c, beyond > reach);
    return fmaf(near.by_m, m, near.by_z * z);
  }
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_TANGENT_H_
