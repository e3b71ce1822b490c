// SPDX-License-Identifier: Apache-2.0
#include "server/observe/gpu_statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "prometheus/metric_family.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::Pair;

// Series by name and labels.
std::map<std::string, double> SeriesOf(const GpuStatistics& statistics) {
  std::map<std::string, double> series;
  for (const prometheus::MetricFamily& family : statistics.Collect()) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      std::string name = family.name;
      for (const auto& label : metric.label) name += " " + label.name + "=" + label.value;
      series[name] = metric.gauge.value;
    }
  }
  return series;
}

TEST(GpuStatisticsTest, TellsWhatEachGpuTells) {
  const auto statistics = GpuStatistics::Open({.library = FAKE_NVML});
  ASSERT_NE(statistics, nullptr);
  while (SeriesOf(*statistics).empty()) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_THAT(SeriesOf(*statistics),
              ElementsAre(Pair("deeppcr_gpu_clock_hertz gpu_uuid=GPU-1 clock=memory", 2619e6),
                          Pair("deeppcr_gpu_clock_hertz gpu_uuid=GPU-1 clock=sm", 1980e6),
                          Pair("deeppcr_gpu_clock_hertz gpu_uuid=GPU-2 clock=memory", 2619e6),
                          Pair("deeppcr_gpu_clock_hertz gpu_uuid=GPU-2 clock=sm", 1980e6),
                          Pair("nv_gpu_memory_total_bytes gpu_uuid=GPU-1", 80.0 * (1 << 30)),
                          Pair("nv_gpu_memory_total_bytes gpu_uuid=GPU-2", 80.0 * (1 << 30)),
                          Pair("nv_gpu_memory_used_bytes gpu_uuid=GPU-1", 20.0 * (1 << 30)),
                          Pair("nv_gpu_memory_used_bytes gpu_uuid=GPU-2", 20.0 * (1 << 30)),
                          Pair("nv_gpu_power_usage gpu_uuid=GPU-1", 412.5),
                          Pair("nv_gpu_utilization gpu_uuid=GPU-1", 0.37),
                          Pair("nv_gpu_utilization gpu_uuid=GPU-2", 0)));
}

// The driver's silence holds nobody up, and ends the series.
TEST(GpuStatisticsTest, NobodyWaitsForADriverThatHangs) {
  const testing::TemporaryDirectory folder;
  const std::string hangs = folder.File("hangs");
  ASSERT_EQ(setenv("DEEPPCR_FAKE_GPU_HANGS", hangs.c_str(), 1), 0);
  auto statistics = GpuStatistics::Open(
      {.library = FAKE_NVML, .period = milliseconds(5), .max_age = milliseconds(300)});
  ASSERT_NE(statistics, nullptr);
  while (SeriesOf(*statistics).empty()) std::this_thread::sleep_for(milliseconds(1));
  std::ofstream(hangs) << "";
  while (!SeriesOf(*statistics).empty()) std::this_thread::sleep_for(milliseconds(1));
  std::filesystem::remove(hangs);
  while (SeriesOf(*statistics).empty()) std::this_thread::sleep_for(milliseconds(1));

  // Nor does the end wait for it; its thread goes when it answers.
  std::ofstream(hangs) << "";
  while (!SeriesOf(*statistics).empty()) std::this_thread::sleep_for(milliseconds(1));
  std::atomic<bool> ended{false};
  std::thread end([&] {
    statistics.reset();
    ended.store(true);
  });
  for (int i = 0; i < 10000 && !ended.load(); ++i) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(ended.load());
  std::filesystem::remove(hangs);
  end.join();
  unsetenv("DEEPPCR_FAKE_GPU_HANGS");
}

TEST(GpuStatisticsTest, IsNullWithoutTheLibraryOfADriver) {
  EXPECT_EQ(GpuStatistics::Open({.library = "no-such-library.so.1"}), nullptr);
  EXPECT_EQ(GpuStatistics::Open({.library = "libc.so.6"}), nullptr)
      << "it has none of the functions";
}

}  // namespace
}  // namespace deeppcr
