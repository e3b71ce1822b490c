// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_CUDA_STACK_STACK_ON_DEVICE_H_
#define DEEPPCR_TESTS_KERNELS_CUDA_STACK_STACK_ON_DEVICE_H_

#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#include "kernels/cuda/stack/warp_step.h"
#include "kernels/problem/spec.h"

namespace deeppcr::testing {

// Memory like cudaMalloc's: aligned, and exactly of the size that was asked for.
template <class T>
struct DeviceAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{256};
  DeviceAllocator() = default;
  template <class U>
  explicit DeviceAllocator(const DeviceAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kAlignment)); }
  void deallocate(T* p, size_t) { ::operator delete(p, kAlignment); }
  bool operator==(const DeviceAllocator&) const { return true; }
};
using DeviceVector = std::vector<float, DeviceAllocator<float>>;

// Rows of `dim` floats as rows of `width` floats, padded with zeros.
inline DeviceVector Padded(std::span<const float> rows, int64_t dim, int64_t width) {
  const int64_t count = static_cast<int64_t>(rows.size()) / dim;
  DeviceVector padded(count * width);
  for (int64_t r = 0; r < count; ++r)
    std::copy_n(rows.data() + r * dim, dim, padded.data() + r * width);
  return padded;
}

// A dense stack in the layout of the kernels.
class StackOnDevice {
 public:
  StackOnDevice(const DenseStackSpec& spec, int64_t width)
      : weights_(spec.num_steps * width * width),
        biases_(spec.biases.empty() ? DeviceVector(spec.num_steps * width)
                                    : Padded(spec.biases, spec.state_dim, width)) {
    const int64_t dim = spec.state_dim;
    for (int64_t l = 0; l < spec.num_steps; ++l) {
      const DeviceVector layer = Padded(spec.weights.subspan(l * dim * dim, dim * dim), dim, width);
      std::copy(layer.begin(), layer.end(), weights_.data() + l * width * width);
    }
    view_ = {.num_steps = spec.num_steps,
             .state_dim = static_cast<int32_t>(dim),
             .weights = weights_.data(),
             .biases = biases_.data(),
             .scale = spec.residual_scale,
             .residual = spec.residual,
             .activation = spec.activation};
  }
  const cuda::StackView& view() const { return view_; }

 private:
  DeviceVector weights_, biases_;
  cuda::StackView view_;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_KERNELS_CUDA_STACK_STACK_ON_DEVICE_H_
