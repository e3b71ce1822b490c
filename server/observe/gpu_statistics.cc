// SPDX-License-Identifier: Apache-2.0
#include "server/observe/gpu_statistics.h"

#include <dlfcn.h>

#include <optional>
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

std::unique_ptr<GpuStatistics> GpuStatistics::Open(Options options) {
  auto library = std::make_unique<Library>();
  if (!library->Load(options.library)) return nullptr;
  return std::unique_ptr<GpuStatistics>(new GpuStatistics(std::move(options), std::move(library)));
}

GpuStatistics::GpuStatistics(Options options, std::unique_ptr<Library> library)
    : options_(std::move(options)),
      library_(std::move(library)),
      asked_(Clock::now()),
      thread_([this](const std::stop_token& stop) { Run(stop); }) {}

GpuStatistics::~GpuStatistics() = default;

void GpuStatistics::Run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const Clock::time_point now = Clock::now();
    Families families = Ask();
    std::unique_lock lock(mutex_);
    last_ = std::move(families);
    asked_ = now;
    woken_.wait_for(lock, stop, options_.period, [] { return false; });
  }
}

GpuStatistics::Families GpuStatistics::Collect() const {
  const std::lock_guard lock(mutex_);
  return Clock::now() - asked_ > options_.max_age ? Families() : last_;
}

GpuStatistics::Families GpuStatistics::Ask() const {
  prometheus::MetricFamily utilization =
      Family("nv_gpu_utilization", "Share of time that kernels ran, in [0, 1].");
  prometheus::MetricFamily power = Family("nv_gpu_power_usage", "Power of the GPU in watts.");
  prometheus::MetricFamily total =
      Family("nv_gpu_memory_total_bytes", "Memory of the GPU in bytes.");
  prometheus::MetricFamily used =
      Family("nv_gpu_memory_used_bytes", "Memory of the GPU in use, by all processes, in bytes.");
  prometheus::MetricFamily clocks =
      Family("deeppcr_gpu_clock_hertz", "Clocks of the GPU: of its multiprocessors, of memory.");
  for (const auto& [device, uuid] : library_->gpus) {
    if (Library::Utilization now = {}; library_->utilization(device, &now) == Library::kSuccess)
      Add(utilization, uuid, 0.01 * now.gpu);
    if (unsigned milliwatts = 0; library_->power(device, &milliwatts) == Library::kSuccess)
      Add(power, uuid, 1e-3 * milliwatts);
    if (Library::MemoryInfo now = {}; library_->memory(device, &now) == Library::kSuccess) {
      Add(total, uuid, static_cast<double>(now.total));
      Add(used, uuid, static_cast<double>(now.used));
    }
    for (const auto& [type, name] :
         {std::pair{Library::kSmClock, "sm"}, {Library::kMemoryClock, "memory"}}) {
      if (unsigned megahertz = 0; library_->clock(device, type, &megahertz) == Library::kSuccess)
        Add(clocks, uuid, 1e6 * megahertz, name);
    }
  }
  return {utilization, power, total, used, clocks};
}

}  // namespace deeppcr
