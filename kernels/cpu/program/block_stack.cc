// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/program/block_stack.h"

#include <algorithm>

namespace deeppcr::cpu {

void BlockStack::Encode(int32_t, const SampleInput& input, float* z) {
  if (model_.encode.rows == 0) {
    std::copy_n(input.inputs, dim_, z);
  } else {
    model_.encode.Apply(input.inputs, z);
  }
  std::fill(z + dim_, z + width_, 0.0F);
}

PassCount BlockStack::GuessCoarse(int64_t interval, int64_t stride, float* states,
                                  const CancelToken*) {
  const int64_t intervals = (num_steps_ - 1) / interval + 1;
  for (int64_t p = 1; p <= intervals; ++p) std::copy_n(states, width_, states + p * stride);
  return {};
}

}  // namespace deeppcr::cpu
