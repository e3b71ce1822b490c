// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_OBSERVE_GPU_STATISTICS_H_
#define DEEPPCR_SERVER_OBSERVE_GPU_STATISTICS_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "prometheus/collectable.h"

namespace deeppcr {

// The GPUs that the driver shows to this process, by its management library (NVML), which is loaded
// at run time. The names of what perf_analyzer and others read are those of Triton; each series has
// the label gpu_uuid, and what a GPU does not tell is left out:
//   nv_gpu_utilization         share of time that kernels ran, in [0, 1]
//   nv_gpu_power_usage         watts
//   nv_gpu_memory_total_bytes, nv_gpu_memory_used_bytes
//   deeppcr_gpu_clock_hertz    label clock: sm, memory
// A thread of its own asks the driver, which may take its time, or never answer: whoever collects
// gets what it last said, and nothing once that is old, and whoever ends waits a second at most.
// Thread-safe.
class GpuStatistics : public prometheus::Collectable {
 public:
  struct Options {
    std::string library = "libnvidia-ml.so.1";
    std::chrono::milliseconds period{1000};
    std::chrono::milliseconds max_age{10000};
  };
  // Null where there is no such library, or no GPU.
  static std::unique_ptr<GpuStatistics> Open(Options options);
  ~GpuStatistics() override;
  GpuStatistics(const GpuStatistics&) = delete;
  GpuStatistics& operator=(const GpuStatistics&) = delete;

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  struct Library;
  struct Asking;
  explicit GpuStatistics(std::shared_ptr<Asking> asking);

  // Shared with the thread, which a driver that hangs keeps beyond this object.
  const std::shared_ptr<Asking> asking_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_OBSERVE_GPU_STATISTICS_H_
