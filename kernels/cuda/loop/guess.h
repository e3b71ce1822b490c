// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_GUESS_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_GUESS_H_

#include <math.h>

#include <cstdint>

#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// Guess of y_1..y_P before the first pass: `states` if not null, else the affine map of z_0 if
// there is a map, else z_0.
struct GuessView {
  const float* states;  // [n, P, W], zero beyond D
  const float* map;     // [count, D + 1, W], zero beyond D: AffineGuess::coefficients
  int64_t stride, count;
};

// Guess of one sample.
struct SampleGuess {
  const GuessView& guess;
  const float* initial_state;  // z_0 [W], zero beyond D
  const float* states;         // states of the sample [P, W], or null
  int32_t state_dim, width;

  DEEPPCR_DEVICE SampleGuess(const GuessView& view, const float* initial_states, int64_t sample,
                             int32_t intervals, int32_t dim, int32_t w)
      : guess(view),
        initial_state(initial_states + sample * w),
        states(view.states == nullptr ? nullptr : view.states + sample * intervals * w),
        state_dim(dim),
        width(w) {}

  // Element i of y at the end of interval p, which is step `end`; p = -1 is z_0.
  DEEPPCR_DEVICE float At(int32_t p, int64_t end, int i) const {
    if (p >= 0 && states != nullptr) return states[int64_t{p} * width + i];
    return p < 0 || guess.map == nullptr ? initial_state[i] : EvaluateMap(end, i);
  }

 private:
  // The affine map at the first fitted step that is not before `step`.
  DEEPPCR_DEVICE float EvaluateMap(int64_t step, int i) const {
    constexpr int kTogether = 8;  // elements whose coefficients are on their way at a time
    const int64_t after = Quotient(step + guess.stride - 1, guess.stride) - 1;
    const int64_t at = after < guess.count ? after : guess.count - 1;
    const float* map = guess.map + at * (state_dim + 1) * width + i;
    float y = *map;
    for (int32_t first = 0; first < state_dim; first += kTogether) {
      float coefficients[kTogether] = {}, elements[kTogether] = {};
      DEEPPCR_UNROLL
      for (int k = 0; k < kTogether; ++k) {
        const int32_t element = first + k < state_dim ? first + k : first;
        coefficients[k] = map[(element + 1) * width];
        elements[k] = initial_state[element];
      }
      DEEPPCR_UNROLL
      for (int k = 0; k < kTogether; ++k)
        if (first + k < state_dim) y = fmaf(coefficients[k], elements[k], y);
    }
    return y;
  }
  // a / b of numbers that are not negative: of 64 bits, a division takes a GPU several times as
  // long.
  static DEEPPCR_DEVICE int64_t Quotient(int64_t a, int64_t b) {
    if ((a | b) >> 31 != 0) return a / b;
    return static_cast<int64_t>(static_cast<uint32_t>(a) / static_cast<uint32_t>(b));
  }
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_GUESS_H_
