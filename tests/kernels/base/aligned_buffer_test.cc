// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/aligned_buffer.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/config.h"

namespace deeppcr {
namespace {

constexpr int64_t kMapped = kMappedBytes / sizeof(float);

// Sizes on both sides of the one from which blocks are mappings.
constexpr int64_t kSizes[] = {0, 1, 15, 16, 17, kMapped - 1, kMapped, kMapped + 1, 3 * kMapped + 5};

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(AlignedBufferTest, IsAlignedAndZeroAlsoWhereMemoryIsUsedAgain) {
  for (int round = 0; round < 3; ++round) {
    for (const int64_t size : kSizes) {
      AlignedBuffer<float> buffer(size);
      ASSERT_TRUE(buffer.ok());
      EXPECT_EQ(buffer.size(), size);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0);
      EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + size, [](float x) { return x == 0; }))
          << size;
      std::fill_n(buffer.data(), size, 1.0f);
    }
  }
}

TEST(AlignedBufferTest, MovesItsBlock) {
  for (const int64_t size : kSizes) {
    AlignedBuffer<uint32_t> from(size);
    uint32_t* const block = from.data();
    AlignedBuffer<uint32_t> to(1);
    to = std::move(from);
    EXPECT_EQ(to.data(), block);
    EXPECT_EQ(to.size(), size);
    EXPECT_FALSE(from.ok());
  }
}

TEST(AlignedBufferTest, SaysSoWhereThereIsNoMemory) {
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
  GTEST_SKIP() << "AddressSanitizer ends the program instead";
#endif
  const AlignedBuffer<float> buffer(int64_t{1} << 46);
  EXPECT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.size(), 0);
}

// Threads take the blocks and this one frees them, as loads and unloads do, also after malloc has
// learnt of larger blocks.
TEST(AlignedBufferTest, LargeBlocksGoBackToTheSystemWhoeverTookThem) {
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
  GTEST_SKIP() << "AddressSanitizer keeps what is freed";
#endif
  constexpr int64_t kBlocks = 8, kBytes = int64_t{4} << 20;
  void* volatile larger = std::malloc(size_t{16} << 20);
  std::free(larger);
  const int64_t before = ResidentBytes();
  std::vector<AlignedBuffer<float>> blocks(kBlocks);
  for (AlignedBuffer<float>& block : blocks)
    std::thread([&block] { block = AlignedBuffer<float>(kBytes / sizeof(float)); }).join();
  // Every page is there before its first use.
  EXPECT_GT(ResidentBytes(), before + kBlocks * kBytes * 7 / 8);
  blocks.clear();
  malloc_trim(0);
  EXPECT_LT(ResidentBytes(), before + kBytes);
}

}  // namespace
}  // namespace deeppcr
