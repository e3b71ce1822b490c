// SPDX-License-Identifier: Apache-2.0
// A management library of a driver that shows two GPUs, the second of which does not tell its
// power. While the file that DEEPPCR_FAKE_GPU_HANGS names is there, it does not answer.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace {

struct Utilization {
  unsigned gpu, memory;
};
struct MemoryInfo {
  unsigned long long total, free, used;
};

constexpr int kSuccess = 0, kNotSupported = 3;
int devices[2];

std::string hangs;

void HangWhileAsked() {
  while (!hangs.empty() && access(hangs.c_str(), F_OK) == 0) usleep(1000);
}

bool IsFirst(const void* device) { return device == &devices[0]; }

}  // namespace

extern "C" {

int nvmlInit_v2() {
  const char* const file = std::getenv("DEEPPCR_FAKE_GPU_HANGS");
  hangs = file == nullptr ? "" : file;
  return kSuccess;
}
int nvmlShutdown() { return kSuccess; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &devices[index];
  return kSuccess;
}
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned bytes) {
  std::strncpy(uuid, IsFirst(device) ? "GPU-1" : "GPU-2", bytes - 1);
  return kSuccess;
}
int nvmlDeviceGetUtilizationRates(void* device, Utilization* now) {
  HangWhileAsked();
  *now = {IsFirst(device) ? 37U : 0U, 5U};
  return kSuccess;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  *milliwatts = 412'500;
  return IsFirst(device) ? kSuccess : kNotSupported;
}
int nvmlDeviceGetMemoryInfo(void*, MemoryInfo* now) {
  *now = {80ULL << 30, 60ULL << 30, 20ULL << 30};
  return kSuccess;
}
int nvmlDeviceGetClockInfo(void*, int type, unsigned* megahertz) {
  *megahertz = type == 1 ? 1980 : 2619;
  return kSuccess;
}

}  // extern "C"
