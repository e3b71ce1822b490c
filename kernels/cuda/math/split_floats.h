// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_SPLIT_FLOATS_H_
#define DEEPPCR_KERNELS_CUDA_MATH_SPLIT_FLOATS_H_

// Factors of products on the tensor cores that are as exact as those of floats.
//
// TF32 numbers keep 11 of the 24 bits of a float. A factor is split into two of them,
// x = large + rest, and large large + large rest + rest large leaves out what is below 2^-21 of the
// product: near the identity, products of numbers rounded once would hide how matrices grow
// (runtime/gemm.h). The rest of a number below 2^-114 is a denormal, and loses bits: beside numbers
// of 1e35 that may cost passes.

#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// Floats as two TF32 numbers each: the nearest one, and the rest cut off. The instruction that
// rounds to TF32 is four instructions, two of them for infinities, which have a NaN as their rest
// here.
template <int N>
struct SplitFloats {
  float large[N], rest[N];

  template <class Context>
  DEEPPCR_DEVICE SplitFloats(Context&, const float (&x)[N]) {
    DEEPPCR_UNROLL
    for (int i = 0; i < N; ++i) {
      large[i] = Context::RoundToTf32(x[i]);
      rest[i] = Context::CutToTf32(x[i] - large[i]);
    }
  }
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_SPLIT_FLOATS_H_
