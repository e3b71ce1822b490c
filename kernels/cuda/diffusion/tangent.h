// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_TANGENT_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_TANGENT_H_

// Tangents of the reverse step of kernels/problem/reverse_step.h, and the sizes of a state's
// rounding errors, which probes pick up (kernels/cpu/program/kernels_impl.h says what they are).
// `terms` of a dot product: the spread of its row times the length of its vector.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/diffusion/view.h"
#include "kernels/cuda/math/rounding_source.h"
#include "kernels/cuda/math/slope_near.h"
#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// Size of the rounding of value = a dot product.
DEEPPCR_DEVICE float SizeOfSum(float terms, float value) {
  return sqrtf(fmaf(terms, terms, value * value));
}
// Size of the rounding of value = something + branch, where the branch is `sum` times a factor, or
// a function of `sum` with a slope of `factor` nearby.
DEEPPCR_DEVICE float SizeOfBranch(float terms, float factor, float sum, float value) {
  const float branch = factor * factor * fmaf(terms, terms, sum * sum);
  return sqrtf(fmaf(value, value, branch));
}
// Size of the rounding of value = act(sum). The terms count twice: the inputs of the product have
// been rounded too.
DEEPPCR_DEVICE float SizeOfActivation(float terms, float slope, float sum, float value) {
  const float before = fmaf(terms, terms + terms, sum * sum);
  return sqrtf(fmaf(slope * slope, before, value * value));
}

// Rounding that probe v picks up in element i at a place of the network. A step has 3 N + 3 places,
// whose signs differ.
DEEPPCR_DEVICE float RoundingAt(const DenoiserView& d, int64_t draw, int place, float size, int v,
                                int i) {
  return RoundingSource(size, v, i, draw * (3 * d.num_blocks + 3) + place);
}

// Clips x0. A NaN stays a NaN.
DEEPPCR_DEVICE float ClipTo(float range, float x) {
  return x > range ? range : x < -range ? -range : x;
}

// d next = by_m dm + by_z dz.
struct ReverseTangent {
  float by_m, by_z;

  DEEPPCR_DEVICE ReverseTangent(const ReverseCoefficients& c, bool clipped)
      : by_m(fmaf(clipped ? 0.0F : c.z_x0, c.x0_m, c.z_m)),
        by_z(fmaf(clipped ? 0.0F : c.z_x0, c.x0_z, c.z_z)) {}
  DEEPPCR_DEVICE float Of(float m, float z) const { return fmaf(by_m, m, by_z * z); }
};

// Distance of x0 beyond its clip, whose slope is 1 on the boundary, as in PyTorch, and for a NaN,
// which shows in m.
DEEPPCR_DEVICE float BeyondClip(const ReverseCoefficients& c, float clip_range, float m, float z) {
  return fabsf(fmaf(c.x0_m, m, c.x0_z * z)) - clip_range;
}

// Size of the rounding of next = the reverse step of z with prediction m, where `terms` are by_m
// times the terms of m. These count twice in adaLN, where the inputs of the product have been
// rounded too.
DEEPPCR_DEVICE float SizeOfState(const ReverseCoefficients& c, bool ada_ln, float z, float m,
                                 float next, float terms) {
  const auto square = [](float x) { return x * x; };
  float size = square(terms) * (ada_ln ? 2.0F : 1.0F);
  size = fmaf(next, next, size);
  size += square(c.z_z * z) + square(c.z_m * m);
  size += square(c.z_x0 * c.x0_z * z);
  return sqrtf(size + square(c.z_x0 * c.x0_m * m));
}

// Reverse step of z with prediction m for probes, and the size of the rounding that they pick up
// there. `terms` are those of m.
struct ReverseOfProbes {
  ReverseTangent in, out;
  bool clipped;
  float from_clip;  // distance, on either side, less the reach of the terms of x0 (SlopeReach)
  float size;

  DEEPPCR_DEVICE ReverseOfProbes(const ReverseCoefficients& c, const DenoiserView& d, float m,
                                 float z, float next, float terms)
      : in(c, false), out(c, true) {
    const float beyond = BeyondClip(c, d.clip_range, m, z);
    const float of_x0 = c.x0_m * c.x0_m * fmaf(terms, terms, m * m);
    clipped = beyond > 0.0F;
    from_clip = fabsf(beyond) - ReachOf(sqrtf(fmaf(c.x0_z * z, c.x0_z * z, of_x0)), 0.0F);
    const float own = clipped ? out.by_m : in.by_m;
    const float by_m = from_clip > 0.0F ? own : LargerOf(in.by_m, out.by_m);
    size = SizeOfState(c, d.ada_ln, z, m, next, by_m * terms);
  }
  // Image of a probe's m and z. Where the probe's x0 reaches as far as the clip, it may meet both
  // sides.
  DEEPPCR_DEVICE float Carry(const ReverseCoefficients& c, float m, float z) const {
    const float reach = ReachOf(0.0F, fabsf(fmaf(c.x0_m, m, c.x0_z * z)));
    const float inside = in.Of(m, z), outside = out.Of(m, z);
    return from_clip > reach ? (clipped ? outside : inside) : LargerOf(inside, outside);
  }
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_TANGENT_H_
