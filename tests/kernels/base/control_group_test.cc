// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/control_group.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {
namespace {

namespace fs = std::filesystem;

class ControlGroupTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(folder_.File(path)).parent_path());
    std::ofstream(folder_.File(path)) << text;
  }
  ControlGroupLimits Read(const std::string& self) {
    Write("self", self);
    return ReadControlGroup(folder_.File("self"), folder_.File("root"));
  }

  TemporaryDirectory folder_;
};

TEST_F(ControlGroupTest, ContainersOfVersion2SeeTheirGroupAsTheRoot) {
  Write("root/cpu.max", "150000 100000\n");
  Write("root/memory.max", "2147483648\n");
  const ControlGroupLimits limits = Read("0::/\n");
  EXPECT_EQ(limits.cores, 1.5);
  EXPECT_EQ(limits.bytes, int64_t{2} << 30);
}

TEST_F(ControlGroupTest, TheLeastOfAllGroupsAroundCounts) {
  Write("root/pods/cpu.max", "400000 100000\n");
  Write("root/pods/one/cpu.max", "max 100000\n");
  Write("root/pods/one/memory.max", "1000000\n");
  Write("root/pods/memory.max", "900000\n");
  Write("root/other/memory.max", "1\n");
  const ControlGroupLimits limits = Read("0::/pods/one\n");
  EXPECT_EQ(limits.cores, 4.0);
  EXPECT_EQ(limits.bytes, 900000);
}

TEST_F(ControlGroupTest, Version1HasATreeForEachController) {
  Write("root/cpu/a/cpu.cfs_quota_us", "50000\n");
  Write("root/cpu/a/cpu.cfs_period_us", "100000\n");
  Write("root/memory/b/memory.limit_in_bytes", "123456789\n");
  const ControlGroupLimits limits =
      Read("5:devices:/x\n4:memory:/b\n3:cpuset:/\n2:cpu,cpuacct:/a\n0::/\n");
  EXPECT_EQ(limits.cores, 0.5);
  EXPECT_EQ(limits.bytes, 123456789);
}

// The path is the host's, and only the group itself is mounted.
TEST_F(ControlGroupTest, APathThatIsNotThereIsTheRoot) {
  Write("root/cpu.max", "200000 100000\n");
  EXPECT_EQ(Read("0::/kubepods/burstable/pod1\n").cores, 2.0);
  EXPECT_EQ(Read("0::/../../outside\n").cores, 2.0);
}

TEST_F(ControlGroupTest, NoLimitIsNone) {
  Write("root/cpu.max", "max 100000\n");
  Write("root/memory.max", "max\n");
  Write("root/cpu/cpu.cfs_quota_us", "-1\n");
  Write("root/cpu/cpu.cfs_period_us", "100000\n");
  Write("root/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const ControlGroupLimits limits = Read("2:cpu:/\n1:memory:/\n0::/\n");
  EXPECT_EQ(limits.cores, std::nullopt);
  EXPECT_EQ(limits.bytes, std::nullopt);
}

TEST_F(ControlGroupTest, NonsenseLimitsNothing) {
  Write("root/cpu.max", "0 0\n");
  Write("root/memory.max", "-5\n");
  for (const char* self : {"", "\n", "nonsense\n", "0:\n", "::\n", "0::\n", "0::/\n"}) {
    const ControlGroupLimits limits = Read(self);
    EXPECT_EQ(limits.cores, std::nullopt) << self;
    EXPECT_EQ(limits.bytes, std::nullopt) << self;
  }
  EXPECT_EQ(ReadControlGroup("/none", "/none").cores, std::nullopt);
}

TEST(AllowedCoresTest, AreThoseOfTheAffinity) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(AllowedCores(), CPU_COUNT(&before));
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(AllowedCores(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(AllowedCores(), CPU_COUNT(&before));
}

TEST(AvailableCoresTest, AreThoseOfTheMachineAtMost) {
  EXPECT_GE(AvailableCores(), 1);
  EXPECT_LE(AvailableCores(), std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  EXPECT_GT(AvailableCoreSeconds(), AvailableCores() - 1);
  EXPECT_LE(AvailableCoreSeconds(), AvailableCores());
}

}  // namespace
}  // namespace deeppcr::testing
