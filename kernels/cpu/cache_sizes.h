// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_CACHE_SIZES_H_
#define DEEPPCR_KERNELS_CPU_CACHE_SIZES_H_

#include <cstdint>
#include <string>

namespace deeppcr::cpu {

inline constexpr char kCachesOfFirstCore[] = "/sys/devices/system/cpu/cpu0/cache";

// Data caches that a directory of this form lists, e.g. "l1d=32K l2=512K l3=32M": sizes rounded
// down to powers of two, so that processors that differ little are of one class, and "unknown" for
// a level that is not listed.
std::string CacheClass(const std::string& directory);

// Bytes of the data caches of one core, as the C library knows them; 0 for a level that it does
// not.
struct CacheBytes {
  int64_t first = 0, second = 0;
};
CacheBytes CachesOfThisMachine();

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_CACHE_SIZES_H_
