// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/aligned_buffer.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/sanitizers.h"

namespace deeppcr {
namespace {

constexpr int64_t kShared = kSharedBytes / sizeof(float), kPage = kHugePageBytes / sizeof(float);

// Sizes on both sides of those from which blocks share pages and are mappings.
constexpr int64_t kSizes[] = {0,           1,       15,          16,           17,
                              kShared - 1, kShared, kShared + 1, kPage / 2,    kPage - 17,
                              kPage - 1,   kPage,   kPage + 1,   3 * kPage + 5};

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

// Blocks that lie side by side, taken and freed in any order by several threads, overlap nowhere.
TEST(AlignedBufferTest, BlocksOfSharedPagesAreApart) {
  const auto use = [](uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<AlignedBuffer<uint32_t>> blocks(40);
    bool intact = true;
    for (uint32_t round = 0; round < 400; ++round) {
      const size_t at = random() % blocks.size();
      AlignedBuffer<uint32_t>& block = blocks[at];
      const uint32_t mark = seed << 8 | static_cast<uint32_t>(at);
      intact = intact && std::ranges::all_of(block.span(), [&](uint32_t x) { return x == mark; });
      block = AlignedBuffer<uint32_t>(random() % 60'000);
      intact = intact && std::ranges::all_of(block.span(), [](uint32_t x) { return x == 0; });
      std::ranges::fill(block.span(), mark);
    }
    EXPECT_TRUE(intact);
  };
  std::vector<std::thread> threads;
  for (uint32_t seed = 1; seed <= 3; ++seed) threads.emplace_back(use, seed);
  for (std::thread& thread : threads) thread.join();
}

TEST(AlignedBufferTest, SharedPagesGoBackToTheSystemWithTheirLastBlock) {
  if (testing::kSanitized)
    GTEST_SKIP() << "sanitizers have memory of their own, and keep what is freed";
  constexpr int64_t kBlocks = 64, kBytes = int64_t{1} << 20;
  const int64_t before = ResidentBytes();
  std::vector<AlignedBuffer<float>> blocks;
  for (int64_t i = 0; i < kBlocks; ++i) blocks.emplace_back(kBytes / sizeof(float));
  EXPECT_GT(ResidentBytes(), before + kBlocks * kBytes * 7 / 8);
  EXPECT_LT(ResidentBytes(), before + kBlocks * kBytes * 9 / 8);
  blocks.clear();
  EXPECT_LT(ResidentBytes(), before + 4 * kBytes);
}

// Models and their systems come and go while others stay: what stays keeps few pages.
TEST(AlignedBufferTest, HolesInSharedPagesAreUsedAgain) {
  if (testing::kSanitized)
    GTEST_SKIP() << "sanitizers have memory of their own, and keep what is freed";
  const int64_t before = ResidentBytes();
  std::mt19937 random(7);
  std::vector<AlignedBuffer<float>> kept;
  int64_t live = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<AlignedBuffer<float>> transient;
    for (int i = 0; i < 8; ++i) {
      transient.emplace_back(static_cast<int64_t>(random() % (kPage * 3 / 4)));
      const auto size = static_cast<int64_t>(random() % (16 * kShared)) + kShared;
      // A block in eight stays.
      if (random() % 8 > 0) continue;
      kept.emplace_back(size);
      live += size * static_cast<int64_t>(sizeof(float));
    }
  }
  EXPECT_GT(live, int64_t{4} << 20);
  EXPECT_LT(ResidentBytes(), before + 2 * live + 8 * int64_t{kHugePageBytes});
  kept.clear();
  EXPECT_LT(ResidentBytes(), before + 2 * int64_t{kHugePageBytes});
}

// The rest of a page, taken and given back again and again beside a block that stays, is one hole.
TEST(AlignedBufferTest, NeighbouringHolesBecomeOne) {
  if (testing::kSanitized)
    GTEST_SKIP() << "sanitizers have memory of their own, and keep what is freed";
  const AlignedBuffer<float> first(kShared);
  const int64_t before = ResidentBytes();
  for (int round = 0; round < 64; ++round) {
    // Given back in every order.
    std::vector<AlignedBuffer<float>> thirds;
    for (int i = 0; i < 3; ++i) thirds.emplace_back((kPage - 2 * kShared) / 3);
    for (int i = 0; i < 3; ++i) thirds[static_cast<size_t>((i * (1 + round % 2) + round) % 3)] = {};
    AlignedBuffer<float> rest(kPage - 2 * kShared);
    EXPECT_TRUE(rest.ok());
  }
  EXPECT_LT(ResidentBytes(), before + 2 * int64_t{kHugePageBytes});
}

// A child of fork takes and frees blocks, also its parent's, whatever the parent's threads were
// about.
TEST(AlignedBufferTest, ServesAChildOfFork) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers have locks of their own";
  std::atomic<bool> done{false};
  std::thread busy([&] {
    while (!done.load()) AlignedBuffer<float> block(2 * kShared);
  });
  AlignedBuffer<float> of_parent(3 * kShared);
  for (int round = 0; round < 50; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      of_parent = {};
      bool served = true;
      for (int i = 0; i < 10; ++i) served = served && AlignedBuffer<float>(2 * kShared).ok();
      _exit(served ? 0 : 1);
    }
    EXPECT_GT(child, 0);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  done.store(true);
  busy.join();
}

TEST(AlignedBufferTest, SaysSoWhereThereIsNoMemory) {
  if (testing::kAddressSanitizer) GTEST_SKIP() << "AddressSanitizer ends the program instead";
  const AlignedBuffer<float> buffer(int64_t{1} << 46);
  EXPECT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.size(), 0);
}

// Threads take the blocks and this one frees them, as loads and unloads do, also after malloc has
// learnt of larger blocks.
TEST(AlignedBufferTest, LargeBlocksGoBackToTheSystemWhoeverTookThem) {
  if (testing::kSanitized)
    GTEST_SKIP() << "sanitizers have memory of their own, and keep what is freed";
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
