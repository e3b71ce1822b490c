// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_BACKWARD_SAMPLES_H_
#define DEEPPCR_KERNELS_CUDA_BACKWARD_SAMPLES_H_

// What all backward passes on a GPU do with the samples of a group.

#include <algorithm>
#include <cstdint>

#include "kernels/backend/backward_space.h"
#include "kernels/cuda/runtime/device_buffer.h"

namespace deeppcr::cuda {

// Samples that a space has room for: the more of both ways.
inline int64_t MostSamples(const BackwardLimits& limits) {
  return std::max(limits.samples, limits.parallel ? limits.scanned_samples : 1);
}

// Puts the cotangents of a sample, `floats` of them, zeros if there are none, into their place
// among those of the group, which is memory that the host can write.
inline void PlaceCotangents(const float* from, int32_t sample, int64_t floats,
                            const DeviceBuffer<float>& all) {
  float* const to = all.data() + sample * floats;
  if (from == nullptr) {
    std::fill_n(to, floats, 0.0F);
  } else {
    std::copy_n(from, floats, to);
  }
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_BACKWARD_SAMPLES_H_
