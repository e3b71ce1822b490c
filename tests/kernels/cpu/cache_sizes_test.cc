// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cache_sizes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/testing/safetensors_writer.h"

namespace deeppcr::cpu {
namespace {

class CacheSizesTest : public ::testing::Test {
 protected:
  void AddCache(const std::string& index, const char* level, const char* type, const char* size) {
    const std::string folder = directory_.File(index);
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/level") << level << "\n";
    std::ofstream(folder + "/type") << type << "\n";
    std::ofstream(folder + "/size") << size << "\n";
  }
  std::string Class() const { return CacheClass(directory_.path()); }

  const testing::TemporaryDirectory directory_;
};

TEST_F(CacheSizesTest, SizesAreRoundedDownToPowersOfTwo) {
  AddCache("index0", "1", "Data", "48K");
  AddCache("index1", "1", "Instruction", "64K");
  AddCache("index2", "2", "Unified", "1280K");
  AddCache("index3", "3", "Unified", "36608K");
  EXPECT_EQ(Class(), "l1d=32K l2=1M l3=32M");
}

TEST_F(CacheSizesTest, WhatIsNotListedIsUnknown) {
  EXPECT_EQ(Class(), "l1d=unknown l2=unknown l3=unknown");
  AddCache("index0", "1", "Data", "32K");
  EXPECT_EQ(Class(), "l1d=32K l2=unknown l3=unknown");
}

TEST_F(CacheSizesTest, WhatIsNoCacheOfThisFormIsUnknown) {
  AddCache("index0", "1", "Data", "lots");
  AddCache("index1", "2", "Unified", "-512K");
  AddCache("index2", "4", "Unified", "1024K");
  EXPECT_EQ(Class(), "l1d=unknown l2=unknown l3=unknown");
}

}  // namespace
}  // namespace deeppcr::cpu
