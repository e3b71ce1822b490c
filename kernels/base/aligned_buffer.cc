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
#include <new>

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
// again and again is found without a walk through page tables, and lies evenly in its caches. What
// is free in a page is a list of holes, each of which begins with its own description, so that
// nothing is allocated where a block is given back. A page goes back to the system with the last of
// its blocks. The system is asked for pages, and given them, without the lock. Thread-safe.
class SharedPages {
 public:
  // Has bytes of earlier blocks in it; null if there is no memory.
  void* Take(size_t bytes) {
    const size_t size = InLines(bytes);
    if (void* const block = TakeFromPages(size); block != nullptr) return block;
    char* const page = NewPage();
    if (page == nullptr) return nullptr;
    if (void* const block = TakeFromNew(page, size); block != nullptr) return block;
    munmap(page, kHugePageBytes);
    return nullptr;
  }

  void Give(void* block, size_t bytes) {
    if (char* const empty = GiveToPage(static_cast<char*>(block), InLines(bytes)))
      if (munmap(empty, kHugePageBytes) != 0) madvise(empty, kHugePageBytes, MADV_DONTNEED);
  }

  // Kept while the process forks, so that the child finds the pages in order.
  void Lock() { mutex_.lock(); }
  void Unlock() { mutex_.unlock(); }

 private:
  struct Hole {
    size_t size;
    Hole* next;  // of those of a page, in the order of their addresses
  };
  static_assert(sizeof(Hole) <= kAlignment);
  struct Page {
    size_t free = 0;
    Hole* holes = nullptr;
  };

  static char* AddressOf(Hole* hole) { return reinterpret_cast<char*>(hole); }

  // The first hole of a page that is large enough; null if there is none.
  static void* TakeFrom(Page& page, size_t size) {
    for (Hole** link = &page.holes; *link != nullptr; link = &(*link)->next) {
      Hole* const hole = *link;
      if (hole->size < size) continue;
      page.free -= size;
      *link = hole->size == size ? hole->next
                                 : new (AddressOf(hole) + size) Hole{hole->size - size, hole->next};
      return hole;
    }
    return nullptr;
  }

  void* TakeFromPages(size_t size) {
    const std::lock_guard lock(mutex_);
    for (auto& [address, page] : pages_) {
      if (page.free < size) continue;
      if (void* const block = TakeFrom(page, size); block != nullptr) return block;
    }
    return nullptr;
  }

  void* TakeFromNew(char* address, size_t size) {
    const std::lock_guard lock(mutex_);
    try {
      Page& page = pages_[address];
      page = {kHugePageBytes, new (address) Hole{kHugePageBytes, nullptr}};
      return TakeFrom(page, size);
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }

  // Returns the page that lost its last block, which is no longer one of ours.
  char* GiveToPage(char* block, size_t size) {
    const std::lock_guard lock(mutex_);
    const auto at = std::prev(pages_.upper_bound(block));
    Page& page = at->second;
    page.free += size;
    if (page.free == kHugePageBytes) {
      char* const empty = at->first;
      pages_.erase(at);
      return empty;
    }
    Hole* before = nullptr;
    Hole** link = &page.holes;
    while (*link != nullptr && AddressOf(*link) < block) {
      before = *link;
      link = &before->next;
    }
    Hole* const hole = *link = new (block) Hole{size, *link};
    if (hole->next != nullptr) Join(hole);
    if (before != nullptr) Join(before);
    return nullptr;
  }

  // Makes one hole of two that lie side by side.
  static void Join(Hole* hole) {
    if (AddressOf(hole) + hole->size != AddressOf(hole->next)) return;
    hole->size += hole->next->size;
    hole->next = hole->next->next;
  }

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
  return pages;
}

// True if a child of fork finds the pages in order: otherwise none are shared.
bool SurvivesFork() {
  static const bool told = pthread_atfork([] { Shared().Lock(); }, [] { Shared().Unlock(); },
                                          [] { Shared().Unlock(); }) == 0;
  return told;
}

// Asked as the program, or the library, starts: it may fork during its first allocation.
[[maybe_unused]] const bool asked_early = SurvivesFork();

bool IsShared(size_t bytes) {
  return kMayMap && bytes >= kSharedBytes && bytes < kHugePageBytes && SurvivesFork();
}

}  // namespace

void* AllocateAligned(size_t bytes) {
  if (IsMapped(bytes)) {
    void* const block = Map(bytes);
    if (block != nullptr) Populate(block, bytes);
    return block;
  }
  void* const block =
      IsShared(bytes) ? Shared().Take(bytes) : std::aligned_alloc(kAlignment, InLines(bytes));
  if (block != nullptr) std::memset(block, 0, InLines(bytes));
  return block;
}

void FreeAligned(void* block, size_t bytes) {
  if (block == nullptr) return;
  if (IsShared(bytes)) {
    Shared().Give(block, bytes);
  } else if (IsMapped(bytes)) {
    munmap(block, bytes);
  } else {
    std::free(block);
  }
}

}  // namespace deeppcr
