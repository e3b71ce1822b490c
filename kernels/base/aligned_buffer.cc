// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/aligned_buffer.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

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

bool IsMapped(size_t bytes) { return kMayMap && bytes >= kHugePageBytes; }
bool IsShared(size_t bytes) { return kMayMap && bytes >= kSharedBytes && bytes < kHugePageBytes; }

// Bytes rounded up to whole cache lines, at least one.
size_t InLines(size_t bytes) {
  return bytes == 0 ? kAlignment : (bytes - 1) / kAlignment * kAlignment + kAlignment;
}

void* Map(size_t bytes) {
  void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return block == MAP_FAILED ? nullptr : block;
}

// Has huge pages, where the system has them, before any page is there: weights that come from
// memory take about 5 % less time.
void Populate(void* block, size_t bytes) {
  madvise(block, bytes, MADV_HUGEPAGE);
  // A system before Linux 5.14 has its pages touched.
  if (madvise(block, bytes, MADV_POPULATE_WRITE) != 0 && errno == EINVAL)
    std::memset(block, 0, bytes);
}

// Blocks that are smaller than a huge page, side by side in such pages: what a solve goes through
// again and again is found without a walk through page tables, and lies evenly in its caches. A
// page goes back to the system with the last of its blocks. Thread-safe.
class SharedPages {
 public:
  // Zeroed; null if there is no memory.
  void* Take(size_t bytes) {
    const size_t size = InLines(bytes);
    const std::lock_guard lock(mutex_);
    auto page = pages_.begin();
    while (page != pages_.end() && kHugePageBytes - page->second.used < size) ++page;
    if (page == pages_.end()) {
      char* const fresh = NewPage();
      if (fresh == nullptr) return nullptr;
      page = pages_.try_emplace(fresh).first;
    }
    // Bytes behind those used were never given away, so they are zero.
    void* const block = page->first + page->second.used;
    page->second.used += size;
    ++page->second.blocks;
    return block;
  }

  void Give(void* block) {
    const std::lock_guard lock(mutex_);
    const auto page = std::prev(pages_.upper_bound(static_cast<char*>(block)));
    if (--page->second.blocks > 0) return;
    munmap(page->first, kHugePageBytes);
    pages_.erase(page);
  }

  // Kept while the process forks, so that the child finds the pages in order.
  void Lock() { mutex_.lock(); }
  void Unlock() { mutex_.unlock(); }

 private:
  struct Page {
    size_t used = 0;
    int64_t blocks = 0;
  };

  static char* NewPage() {
    auto* const mapped = static_cast<char*>(Map(2 * kHugePageBytes));
    if (mapped == nullptr) return nullptr;
    const size_t before = -reinterpret_cast<uintptr_t>(mapped) % kHugePageBytes;
    if (before > 0) munmap(mapped, before);
    munmap(mapped + before + kHugePageBytes, kHugePageBytes - before);
    Populate(mapped + before, kHugePageBytes);
    return mapped + before;
  }

  std::mutex mutex_;
  std::map<char*, Page> pages_;
};

// Never destroyed: objects that end with the program may have blocks.
SharedPages& Shared() {
  static auto& pages = *new SharedPages;
  [[maybe_unused]] static const int told =
      pthread_atfork([] { Shared().Lock(); }, [] { Shared().Unlock(); }, [] { Shared().Unlock(); });
  return pages;
}

}  // namespace

void* AllocateAligned(size_t bytes) {
  if (IsShared(bytes)) return Shared().Take(bytes);
  if (IsMapped(bytes)) {
    void* const block = Map(bytes);
    if (block != nullptr) Populate(block, bytes);
    return block;
  }
  void* block = std::aligned_alloc(kAlignment, InLines(bytes));
  if (block != nullptr) std::memset(block, 0, InLines(bytes));
  return block;
}

void FreeAligned(void* block, size_t bytes) {
  if (block == nullptr) return;
  if (IsShared(bytes)) {
    Shared().Give(block);
  } else if (IsMapped(bytes)) {
    munmap(block, bytes);
  } else {
    std::free(block);
  }
}

}  // namespace deeppcr
