// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_TRAINING_NOISE_STREAMS_H_
#define DEEPPCR_KERNELS_TRAINING_NOISE_STREAMS_H_

// Random numbers of a training run: each is a function of the run's seed and of what it is for, so
// that a run which is taken up again draws the same ones (kernels/problem/philox.h).

#include <cstdint>

namespace deeppcr::training {

// In the place of philox.h's step number.
enum class NoiseStream : uint32_t {
  kInitialParameters = 1,  // sample: the tensor
  kOrder = 2,              // sample: the epoch
  kSplit = 3,              // sample: 0
};

}  // namespace deeppcr::training

#endif  // DEEPPCR_KERNELS_TRAINING_NOISE_STREAMS_H_
