// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RUNTIME_COPY_WORDS_H_
#define DEEPPCR_KERNELS_CUDA_RUNTIME_COPY_WORDS_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// Copies a structure by words of eight bytes, where nvcc would store one byte after another.
template <class T>
DEEPPCR_DEVICE void CopyWords(const T& from, T* to) {
  using Word [[gnu::may_alias]] = uint64_t;
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) == alignof(Word));
  constexpr size_t kWords = sizeof(T) / sizeof(Word);
  Word words[kWords];
  DEEPPCR_UNROLL
  for (size_t i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const Word*>(&from)[i];
  DEEPPCR_UNROLL
  for (size_t i = 0; i < kWords; ++i) reinterpret_cast<Word*>(to)[i] = words[i];
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_RUNTIME_COPY_WORDS_H_
