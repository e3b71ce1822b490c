// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "absl/base/config.h"

namespace deeppcr {
namespace {

constexpr size_t kAlignment = 64;

// AddressSanitizer guards the ends of what malloc gives, and not those of a mapping.
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
constexpr bool kMayMap = false;
#else
constexpr bool kMayMap = true;
#endif

bool IsMapped(size_t bytes) { return kMayMap && bytes >= kMappedBytes; }

}  // namespace

void* AllocateAligned(size_t bytes) {
  if (IsMapped(bytes)) {
    void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return block == MAP_FAILED ? nullptr : block;
  }
  const size_t lines = bytes == 0 ? 1 : (bytes - 1) / kAlignment + 1;
  void* block = std::aligned_alloc(kAlignment, lines * kAlignment);
  if (block != nullptr) std::memset(block, 0, lines * kAlignment);
  return block;
}

void FreeAligned(void* block, size_t bytes) {
  if (IsMapped(bytes)) {
    munmap(block, bytes);
  } else {
    std::free(block);
  }
}

}  // namespace deeppcr
