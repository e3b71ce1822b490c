// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/probe.h"

namespace deeppcr::cuda {
namespace {

constexpr int kProbeValue = 20230916;

__global__ void __launch_bounds__(32) ProbeKernel(int* __restrict__ answer) {
  if (threadIdx.x == 0) *answer = kProbeValue;
}

cudaError_t LaunchProbe(int* answer, cudaStream_t stream) {
  ProbeKernel<<<1, 32, 0, stream>>>(answer);
  return cudaGetLastError();
}

// Runs the probe on the current device.
cudaError_t RunProbe(cudaStream_t stream, int* device_answer) {
  int answer = 0;
  cudaError_t error = LaunchProbe(device_answer, stream);
  if (error == cudaSuccess)
    error = cudaMemcpyAsync(&answer, device_answer, sizeof(answer), cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error == cudaSuccess && answer != kProbeValue) error = cudaErrorUnknown;
  return error;
}

cudaError_t ProbeCurrentDevice() {
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error != cudaSuccess) return error;
  int* device_answer = nullptr;
  error = cudaMalloc(&device_answer, sizeof(*device_answer));
  if (error == cudaSuccess) error = RunProbe(stream, device_answer);
  const cudaError_t freed = cudaFree(device_answer);
  const cudaError_t destroyed = cudaStreamDestroy(stream);
  if (error != cudaSuccess) return error;
  return freed != cudaSuccess ? freed : destroyed;
}

}  // namespace

cudaError_t CountDevices(int* count) { return cudaGetDeviceCount(count); }

cudaError_t PrepareKernels() {
  int device = 0, bytes = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error == cudaSuccess) error = PrepareBackward(bytes);
  if (error == cudaSuccess) error = PrepareDenseChain(bytes);
  if (error == cudaSuccess) error = PrepareDiffusion(bytes);
  if (error == cudaSuccess) error = PrepareGridSteps(bytes);
  if (error == cudaSuccess) error = PrepareModulation(bytes);
  if (error == cudaSuccess) error = PrepareNewton(bytes);
  if (error == cudaSuccess) error = PreparePanelStack(bytes);
  if (error == cudaSuccess) error = PreparePasses(bytes);
  if (error == cudaSuccess) error = PrepareProgram(bytes);
  if (error == cudaSuccess) error = PrepareProgramBackward(bytes);
  if (error == cudaSuccess) error = PrepareResident(bytes);
  if (error == cudaSuccess) error = PrepareResidentSolve(bytes);
  if (error == cudaSuccess) error = PrepareResidentStack(bytes);
  if (error == cudaSuccess) error = PrepareWideDenoiser(bytes);
  return error;
}

cudaError_t ProbeDevice(int device, DeviceInfo* info) {
  cudaDeviceProp properties;
  cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error == cudaSuccess) error = cudaSetDevice(device);
  if (error == cudaSuccess) error = ProbeCurrentDevice();
  if (error == cudaSuccess) error = PrepareKernels();
  if (error != cudaSuccess) return error;
  std::strncpy(info->name, properties.name, sizeof(info->name) - 1);
  info->name[sizeof(info->name) - 1] = '\0';
  info->major = properties.major;
  info->minor = properties.minor;
  info->multiprocessors = properties.multiProcessorCount;
  info->shared_bytes = properties.sharedMemPerBlockOptin;
  error = CountGridBlocks(info->multiprocessors, info->shared_bytes, &info->grid_blocks);
  if (error != cudaSuccess) return error;
  error = MaxNewtonClusterBlocks(&info->max_cluster_blocks);
  return error == cudaSuccess ? CountClusters(info->max_cluster_blocks, &info->clusters) : error;
}

}  // namespace deeppcr::cuda
