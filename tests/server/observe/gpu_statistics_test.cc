// SPDX-License-Identifier: Apache-2.0
#include "server/observe/gpu_statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "prometheus/metric_family.h"

namespace deeppcr {
namespace {

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
  const auto statistics = GpuStatistics::Open(FAKE_NVML);
  ASSERT_NE(statistics, nullptr);
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

TEST(GpuStatisticsTest, IsNullWithoutTheLibraryOfADriver) {
  EXPECT_EQ(GpuStatistics::Open("no-such-library.so.1"), nullptr);
  EXPECT_EQ(GpuStatistics::Open("libc.so.6"), nullptr) << "it has none of the functions";
}

}  // namespace
}  // namespace deeppcr
