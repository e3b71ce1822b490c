// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cache_sizes.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace deeppcr::cpu {
namespace {

constexpr int kMostCaches = 16;  // caches of a core: four today

std::string WordOf(const std::string& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

// KiB of a size such as "1280K", as the kernel writes it; 0 for anything else.
uint64_t KibibytesOf(std::string text) {
  uint64_t kibibytes = 0;
  if (text.empty() || text.back() != 'K') return 0;
  text.pop_back();
  return absl::SimpleAtoi(text, &kibibytes) ? kibibytes : 0;
}

std::string SizeText(uint64_t kibibytes) {
  if (kibibytes == 0) return "unknown";
  const uint64_t floor = std::bit_floor(kibibytes);
  return floor < 1024 ? absl::StrCat(floor, "K") : absl::StrCat(floor / 1024, "M");
}

}  // namespace

std::string CacheClass(const std::string& directory) {
  std::array<uint64_t, 3> sizes = {};  // sizes of levels 1 to 3
  for (int i = 0; i < kMostCaches; ++i) {
    const std::string cache = absl::StrCat(directory, "/index", i, "/");
    const std::string level = WordOf(cache + "level");
    if (level.size() != 1 || level[0] < '1' || level[0] > '3') continue;
    if (WordOf(cache + "type") == "Instruction") continue;
    sizes[static_cast<size_t>(level[0] - '1')] = KibibytesOf(WordOf(cache + "size"));
  }
  return absl::StrCat("l1d=", SizeText(sizes[0]), " l2=", SizeText(sizes[1]),
                      " l3=", SizeText(sizes[2]));
}

CacheBytes CachesOfThisMachine() {
  return {.first = std::max(0L, sysconf(_SC_LEVEL1_DCACHE_SIZE)),
          .second = std::max(0L, sysconf(_SC_LEVEL2_CACHE_SIZE))};
}

}  // namespace deeppcr::cpu
