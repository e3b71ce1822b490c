// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_ALIGNED_BUFFER_H_
#define DEEPPCR_KERNELS_BASE_ALIGNED_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

namespace deeppcr {

// Zeroed bytes aligned to a cache line; nullptr if there are none. The pages are there already, as
// far as the system has them, so that the first use of a block waits for none. Blocks of
// kSharedBytes and more lie side by side in huge pages, those of a huge page and more are mappings
// of their own: memory of an unloaded model goes back to the system whichever thread took it, page
// by page with the last block in it; until then what is free in a page serves other blocks. (malloc
// keeps such blocks at the end of that thread's heap, where malloc_trim does not look.)
// Both are thread-safe, also in a child of fork. `bytes` of FreeAligned: those of AllocateAligned.
void* AllocateAligned(size_t bytes);
void FreeAligned(void* block, size_t bytes);

inline constexpr size_t kSharedBytes = size_t{4} << 10, kHugePageBytes = size_t{2} << 20;

// A zeroed array aligned to a cache line, of AllocateAligned. Empty, with ok() false, if the
// allocation failed.
template <class T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T> && std::is_arithmetic_v<T>);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t size) : size_(size) {
    const size_t bytes = static_cast<size_t>(size) * sizeof(T);
    data_ = {static_cast<T*>(AllocateAligned(bytes)), Free{bytes}};
    if (data_ == nullptr) size_ = 0;
  }

  bool ok() const { return data_ != nullptr; }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  int64_t size() const { return size_; }
  std::span<T> span() { return {data(), static_cast<size_t>(size_)}; }
  std::span<const T> span() const { return {data(), static_cast<size_t>(size_)}; }
  T& operator[](int64_t i) { return data_.get()[i]; }
  const T& operator[](int64_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    size_t bytes = 0;
    void operator()(T* block) const { FreeAligned(block, bytes); }
  };
  std::unique_ptr<T, Free> data_;
  int64_t size_ = 0;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_ALIGNED_BUFFER_H_
