// SPDX-License-Identifier: Apache-2.0
#include "server/observe/gpu_statistics.h"

#include <dlfcn.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "prometheus/metric_family.h"

namespace deeppcr {
namespace {

prometheus::MetricFamily Family(std::string name, std::string help) {
  return {std::move(name), std::move(help), prometheus::MetricType::Gauge, {}};
}

void Add(prometheus::MetricFamily& family, const std::string& uuid, double value,
         std::optional<std::string> clock = {}) {
  prometheus::ClientMetric metric;
  metric.label.push_back({"gpu_uuid", uuid});
  if (clock.has_value()) metric.label.push_back({"clock", *clock});
  metric.gauge.value = value;
  family.metric.push_back(std::move(metric));
}

}  // namespace

// Parts of nvml.h, whose functions keep their meaning under their names.
struct GpuStatistics::Library {
  using Device = void*;
  static constexpr int kSuccess = 0;
  static constexpr unsigned kUuidBytes = 96;
  struct Utilization {
    unsigned gpu, memory;  // percent
  };
  struct MemoryInfo {
    unsigned long long total, free, used;  // bytes
  };
  enum ClockType { kSmClock = 1, kMemoryClock = 2 };

  struct Gpu {
    Device device = nullptr;
    std::string uuid;
  };

  ~Library() {
    if (shutdown != nullptr) shutdown();
    if (handle != nullptr) dlclose(handle);
  }

  // False if a function is missing.
  template <typename Function>
  bool Find(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(handle, name));
    return function != nullptr;
  }

  bool Load(const std::string& name) {
    handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    int (*init)() = nullptr;
    int (*stop)() = nullptr;
    if (handle == nullptr || !Find("nvmlInit_v2", init) || !Find("nvmlShutdown", stop) ||
        !Find("nvmlDeviceGetUtilizationRates", utilization) ||
        !Find("nvmlDeviceGetPowerUsage", power) || !Find("nvmlDeviceGetMemoryInfo", memory) ||
        !Find("nvmlDeviceGetClockInfo", clock) || init() != kSuccess)
      return false;
    shutdown = stop;
    return FindGpus();
  }

  bool FindGpus() {
    int (*get_count)(unsigned*) = nullptr;
    int (*get_device)(unsigned, Device*) = nullptr;
    int (*get_uuid)(Device, char*, unsigned) = nullptr;
    unsigned count = 0;
    if (!Find("nvmlDeviceGetCount_v2", get_count) ||
        !Find("nvmlDeviceGetHandleByIndex_v2", get_device) ||
        !Find("nvmlDeviceGetUUID", get_uuid) || get_count(&count) != kSuccess)
      return false;
    for (unsigned i = 0; i < count; ++i) {
      Device device = nullptr;
      char uuid[kUuidBytes] = {};
      if (get_device(i, &device) == kSuccess && get_uuid(device, uuid, kUuidBytes) == kSuccess)
        gpus.push_back({device, uuid});
    }
    return !gpus.empty();
  }

  void* handle = nullptr;
  int (*shutdown)() = nullptr;
  int (*utilization)(Device, Utilization*) = nullptr;
  int (*power)(Device, unsigned* milliwatts) = nullptr;
  int (*memory)(Device, MemoryInfo*) = nullptr;
  int (*clock)(Device, ClockType, unsigned* megahertz) = nullptr;
  std::vector<Gpu> gpus;
};

// What the thread and those that collect have in common.
struct GpuStatistics::Asking {
  using Clock = std::chrono::steady_clock;
  using Families = std::vector<prometheus::MetricFamily>;

  Asking(Options how, std::unique_ptr<Library> of)
      : options(std::move(how)), library(std::move(of)) {}

  Families Ask() const;
  void Run() {
    std::unique_lock lock(mutex);
    while (!leaving) {
      const Clock::time_point now = Clock::now();
      lock.unlock();
      Families families = Ask();
      lock.lock();
      last = std::move(families);
      asked = now;
      changed.wait_for(lock, options.period, [this] { return leaving; });
    }
    left = true;
    changed.notify_all();
  }

  const Options options;
  const std::unique_ptr<Library> library;
  std::mutex mutex;
  std::condition_variable changed;
  // The members below are guarded by mutex.
  Families last;
  Clock::time_point asked = Clock::now();  // when the driver was asked for it
  bool leaving = false, left = false;
};

std::unique_ptr<GpuStatistics> GpuStatistics::Open(Options options) {
  auto library = std::make_unique<Library>();
  if (!library->Load(options.library)) return nullptr;
  auto asking = std::make_shared<Asking>(std::move(options), std::move(library));
  std::thread([asking] { asking->Run(); }).detach();
  return std::unique_ptr<GpuStatistics>(new GpuStatistics(std::move(asking)));
}

GpuStatistics::GpuStatistics(std::shared_ptr<Asking> asking) : asking_(std::move(asking)) {}

GpuStatistics::~GpuStatistics() {
  std::unique_lock lock(asking_->mutex);
  asking_->leaving = true;
  asking_->changed.notify_all();
  asking_->changed.wait_for(lock, std::chrono::seconds(1), [this] { return asking_->left; });
}

std::vector<prometheus::MetricFamily> GpuStatistics::Collect() const {
  const std::lock_guard lock(asking_->mutex);
  const bool is_old = Asking::Clock::now() - asking_->asked > asking_->options.max_age;
  return is_old ? Asking::Families() : asking_->last;
}

GpuStatistics::Asking::Families GpuStatistics::Asking::Ask() const {
  prometheus::MetricFamily utilization =
      Family("nv_gpu_utilization", "Share of time that kernels ran, in [0, 1].");
  prometheus::MetricFamily power = Family("nv_gpu_power_usage", "Power of the GPU in watts.");
  prometheus::MetricFamily total =
      Family("nv_gpu_memory_total_bytes", "Memory of the GPU in bytes.");
  prometheus::MetricFamily used =
      Family("nv_gpu_memory_used_bytes", "Memory of the GPU in use, by all processes, in bytes.");
  prometheus::MetricFamily clocks =
      Family("deeppcr_gpu_clock_hertz", "Clocks of the GPU: of its multiprocessors, of memory.");
  for (const auto& [device, uuid] : library->gpus) {
    if (Library::Utilization now = {}; library->utilization(device, &now) == Library::kSuccess)
      Add(utilization, uuid, 0.01 * now.gpu);
    if (unsigned milliwatts = 0; library->power(device, &milliwatts) == Library::kSuccess)
      Add(power, uuid, 1e-3 * milliwatts);
    if (Library::MemoryInfo now = {}; library->memory(device, &now) == Library::kSuccess) {
      Add(total, uuid, static_cast<double>(now.total));
      Add(used, uuid, static_cast<double>(now.used));
    }
    for (const auto& [type, name] :
         {std::pair{Library::kSmClock, "sm"}, {Library::kMemoryClock, "memory"}}) {
      if (unsigned megahertz = 0; library->clock(device, type, &megahertz) == Library::kSuccess)
        Add(clocks, uuid, 1e6 * megahertz, name);
    }
  }
  return {utilization, power, total, used, clocks};
}

}  // namespace deeppcr
