// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA runtime that the device and the GPU tests call, on the SIMT executor: every
// call is done at once and on the calling thread. An error stays the thread's last one until
// somebody asks for it, and the next launch reports it. Linked in place of cudart and the kernels,
// this file lets machines without a GPU run what otherwise runs only with one.

#include "tests/testing/simt/fake_runtime.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <type_traits>
#include <utility>

#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/probe.h"
#include "tests/testing/simt/executor.h"
#include "tests/testing/simt/simt_device.h"

namespace {

using deeppcr::testing::simt::DeviceOptions;
using deeppcr::testing::simt::kFakeCode;
using deeppcr::testing::simt::LaunchShape;
using deeppcr::testing::simt::Thread;

// Reads DEEPPCR_FAKE_GPU_LAUNCHES: the number of launches after which the device is lost.
DeviceOptions Options() {
  DeviceOptions options;
  const char* launches = std::getenv("DEEPPCR_FAKE_GPU_LAUNCHES");
  if (launches != nullptr) options.fail_after = std::atoi(launches);
  return options;
}
const DeviceOptions kOptions = Options();
constexpr size_t kAlignment = 256;
constexpr size_t kMemory = size_t{1} << 30;

thread_local cudaError_t last_error = cudaSuccess;
cudaError_t Noted(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

std::atomic<int> libraries = 0;
const char* kernel_names[] = {"sequential", "propagation", "expansion"};

std::atomic<int64_t> launches_to_hang = -1;
std::atomic<bool> hangs = false;
// Ends the program where a GPU that hangs would stop it.
void WouldWait(const char* call) {
  if (!hangs) return;
  std::fprintf(stderr, "%s waits for a kernel that does not end\n", call);
  std::abort();
}
// True if the launch that is about to be made, or one before, does not end.
bool Hangs() {
  if (launches_to_hang >= 0 && launches_to_hang-- == 0) hangs = true;
  return hangs;
}

cudaError_t NewMemory(void** memory, size_t bytes) {
  WouldWait("an allocation");
  if (bytes > kMemory) return Noted(cudaErrorMemoryAllocation);
  *memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  std::memset(*memory, 0xFF, bytes);
  return cudaSuccess;
}

deeppcr::cuda::Stream& TheStream() {
  static deeppcr::cuda::Device& device = *deeppcr::testing::simt::NewSimtDevice(kOptions).release();
  static deeppcr::cuda::Stream& stream = *(*device.NewStream()).release();
  return stream;
}

std::mutex mutex;  // guards the stream

// Launches on the one stream that all callers share; a caller waits for the ones before.
template <class... Args>
cudaError_t Run(const Args&... args) {
  if (last_error != cudaSuccess) return cudaGetLastError();
  if (Hangs()) return cudaSuccess;
  std::lock_guard lock(mutex);
  deeppcr::cuda::Stream& stream = TheStream();
  stream.Launch(args...);
  return Noted(stream.status().ok() ? cudaSuccess : cudaErrorLaunchFailure);
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "SIMT executor");
  properties->multiProcessorCount = kOptions.limits.multiprocessors;
  properties->sharedMemPerBlockOptin = kOptions.limits.shared_bytes;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the executor";
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**,
                                unsigned, cudaLibraryOption*, void**, unsigned) {
  if (std::strcmp(static_cast<const char*>(code), kFakeCode) != 0)
    return Noted(cudaErrorInvalidKernelImage);
  ++libraries;
  *library = reinterpret_cast<cudaLibrary_t>(&libraries);
  return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t, const char* name) {
  for (const char*& known : kernel_names) {
    if (std::strcmp(name, known) != 0) continue;
    *kernel = reinterpret_cast<cudaKernel_t>(&known);
    return cudaSuccess;
  }
  return Noted(cudaErrorSymbolNotFound);
}
cudaError_t cudaLibraryUnload(cudaLibrary_t) {
  WouldWait("cudaLibraryUnload");
  --libraries;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) { return NewMemory(memory, bytes); }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return NewMemory(memory, bytes);
}
cudaError_t cudaFree(void* memory) {
  WouldWait("cudaFree");
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = kMemory;
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  WouldWait("cudaMemcpy");
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  WouldWait("cudaStreamSynchronize");
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t) { return Noted(hangs ? cudaErrorNotReady : cudaSuccess); }
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = nullptr;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;  // times on the executor mean nothing
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }

}  // extern "C"

namespace deeppcr::testing::simt {

void HangAfter(int64_t launches) {
  hangs = false;
  launches_to_hang = launches;
}
int NumLibraries() { return libraries; }

}  // namespace deeppcr::testing::simt

namespace deeppcr::cuda {

cudaError_t LaunchDenseChain(const DenseChainArgs& args, int num_samples, cudaStream_t) {
  return Run(args, num_samples);
}
cudaError_t LaunchDenseBack(const DenseBackArgs& args, int num_samples, cudaStream_t) {
  return Run(args, num_samples);
}
cudaError_t LaunchBackward(const BackwardStepsArgs& args, int width, cudaStream_t) {
  return Run(args, width);
}
cudaError_t LaunchBackwardScan(const BackwardScanArgs& args, const NewtonShape& shape,
                               cudaStream_t) {
  return Run(args, shape);
}
cudaError_t LaunchParameterGradients(const ParameterGradientArgs& args, cudaStream_t) {
  return Run(args);
}
cudaError_t LaunchProgramBackward(const ProgramRetreatArgs& args, const ProgramBackShape& shape,
                                  cudaStream_t) {
  return Run(args, shape);
}
cudaError_t LaunchProgramBackward(const ProgramLevelArgs& args, cudaStream_t) { return Run(args); }
cudaError_t LaunchProgramBackward(const ConditionBackArgs& args, const ProgramBackShape& shape,
                                  cudaStream_t) {
  return Run(args, shape);
}
cudaError_t LaunchSequential(const SequentialArgs& args, int width, cudaStream_t) {
  return Run(args, width);
}
cudaError_t LaunchNewton(const NewtonArgs& args, const NewtonShape& shape, cudaStream_t) {
  return Run(args, shape);
}
cudaError_t LaunchBlocks(const BlockSequentialArgs<DiffusionView>& args, int num_samples,
                         cudaStream_t) {
  return Run(args, num_samples);
}
cudaError_t LaunchBlocks(const PropagationArgs<DiffusionView>& args, int num_samples,
                         cudaStream_t) {
  return Run(args, num_samples);
}
cudaError_t LaunchBlocks(const ExpansionArgs<DiffusionView>& args, int num_samples, cudaStream_t) {
  return Run(args, num_samples);
}
cudaError_t LaunchBlocks(const BlockSequentialArgs<PanelStackView>& args, int num_samples,
                         cudaStream_t) {
  return Run(args, num_samples);
}
cudaError_t LaunchBlocks(const PropagationArgs<PanelStackView>& args, int num_samples,
                         cudaStream_t) {
  return Run(args, num_samples);
}
cudaError_t LaunchBlocks(const ExpansionArgs<PanelStackView>& args, int num_samples, cudaStream_t) {
  return Run(args, num_samples);
}
cudaError_t LaunchBlocks(const CoarseArgs<DiffusionView>& args, int num_samples, cudaStream_t) {
  return Run(args, num_samples);
}
cudaError_t LaunchBlocks(const ResidentArgs& args, int num_members, cudaStream_t) {
  return Run(args, num_members);
}
cudaError_t LaunchBlocks(const ResidentSolveArgs& args, cudaStream_t) { return Run(args); }
cudaError_t LaunchBlocks(const ResidentStackArgs& args, cudaStream_t) { return Run(args); }
cudaError_t LaunchBlocks(const GridStepsArgs<DiffusionView>& args, cudaStream_t) {
  return Run(args);
}
cudaError_t LaunchBlocks(const GridStepsArgs<ProgramView>& args, cudaStream_t) { return Run(args); }
cudaError_t CountGridBlocks(int, size_t, int* blocks) {
  *blocks = kOptions.limits.grid_blocks;
  return cudaSuccess;
}
cudaError_t LaunchBlocks(const BlockSequentialArgs<ProgramView>& args, int num_samples,
                         cudaStream_t) {
  return Run(args, num_samples);
}
cudaError_t LaunchBlocks(const PropagationArgs<ProgramView>& args, int num_samples, cudaStream_t) {
  return Run(args, num_samples);
}
cudaError_t LaunchBlocks(const ExpansionArgs<ProgramView>& args, int num_samples, cudaStream_t) {
  return Run(args, num_samples);
}
cudaError_t LaunchBlocks(const CoarseArgs<ProgramView>& args, int num_samples, cudaStream_t) {
  return Run(args, num_samples);
}
cudaError_t LaunchCondition(const ConditionArgs& args, int num_samples, cudaStream_t) {
  return Run(args, num_samples);
}
cudaError_t LaunchBlocks(const IntervalStepArgs& args, cudaStream_t) { return Run(args); }
cudaError_t LaunchTangents(const TangentArgs& args, cudaStream_t) { return Run(args); }
cudaError_t LaunchPass(const StartArgs& args, int n, cudaStream_t) { return Run(args, n); }
cudaError_t LaunchPass(const LevelArgs& args, int n, cudaStream_t) { return Run(args, n); }
cudaError_t LaunchPass(const UpdateArgs& args, int n, cudaStream_t) { return Run(args, n); }
cudaError_t LaunchPass(const CollectArgs& args, int n, cudaStream_t) { return Run(args, n); }
cudaError_t LaunchPass(const TreeArgs& args, int n, cudaStream_t) { return Run(args, n); }
cudaError_t LaunchNoise(const NoiseArgs& args, cudaStream_t) { return Run(args); }
cudaError_t LaunchModulation(const ModulationArgs& args, int64_t num_tables, cudaStream_t) {
  return Run(args, num_tables);
}
cudaError_t MaxNewtonClusterBlocks(int* blocks) {
  *blocks = kOptions.limits.max_cluster_blocks;
  return cudaSuccess;
}
cudaError_t CountClusters(int, ClusterCounts*) { return cudaSuccess; }
cudaError_t PrepareKernels() { return cudaSuccess; }
cudaError_t CountDevices(int* count) { return cudaGetDeviceCount(count); }
cudaError_t ProbeDevice(int, DeviceInfo* info) {
  std::strcpy(info->name, "SIMT executor");
  info->major = 9;
  info->multiprocessors = kOptions.limits.multiprocessors;
  info->shared_bytes = kOptions.limits.shared_bytes;
  info->max_cluster_blocks = kOptions.limits.max_cluster_blocks;
  info->grid_blocks = kOptions.limits.grid_blocks;
  return cudaSuccess;
}

}  // namespace deeppcr::cuda
