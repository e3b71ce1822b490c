// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/cuda_device.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/cuda/runtime/cuda_compiler.h"
#include "kernels/cuda/runtime/cuda_errors.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/probe.h"
#include "kernels/cuda/runtime/products.h"

namespace deeppcr::cuda {
namespace {

class CudaStream final : public Stream {
 public:
  // `lost`: the device's, which outlives the stream.
  CudaStream(int device, const WaitLimits& limits, std::atomic<bool>& lost)
      : device_(device), lost_(lost), patience_(limits) {}
  ~CudaStream() override {
    if (lost_) {
      static_cast<void>(products_.release());  // its end would wait for the device
      return;
    }
    products_ = nullptr;
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  absl::Status Create() {
    cudaError_t error = cudaSetDevice(device_);
    if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // clears an error that says nothing about the device
      return Failed(absl::StatusCode::kResourceExhausted, "making a stream", error);
    }
    Note("making a stream", error);
    return status_;
  }

  void Launch(const DenseChainArgs& args, int num_samples) override {
    if (Begin()) Note("dense layers", LaunchDenseChain(args, num_samples, stream_));
  }
  void Launch(const SequentialArgs& args, int width) override {
    if (Begin()) Note("sequential solver", LaunchSequential(args, width, stream_));
  }
  void Launch(const NewtonArgs& args, const NewtonShape& shape) override {
    if (Begin()) Note("newton solver", LaunchNewton(args, shape, stream_));
  }
  void Launch(const NoiseArgs& args) override {
    if (Begin()) Note("noise", LaunchNoise(args, stream_));
  }
  void Launch(const ModulationArgs& args, int64_t num_tables) override {
    if (Begin()) Note("modulation", LaunchModulation(args, num_tables, stream_));
  }
  void Launch(const BlockSequentialArgs<DiffusionView>& args, int num_samples) override {
    if (Begin()) Note("sequential solver", LaunchBlocks(args, num_samples, stream_));
  }
  void Launch(const PropagationArgs<DiffusionView>& args, int num_samples) override {
    if (Begin()) Note("propagation", LaunchBlocks(args, num_samples, stream_));
  }
  void Launch(const ExpansionArgs<DiffusionView>& args, int num_samples) override {
    if (Begin()) Note("trajectory", LaunchBlocks(args, num_samples, stream_));
  }
  void Launch(const BlockSequentialArgs<PanelStackView>& args, int num_samples) override {
    if (Begin()) Note("sequential solver", LaunchBlocks(args, num_samples, stream_));
  }
  void Launch(const PropagationArgs<PanelStackView>& args, int num_samples) override {
    if (Begin()) Note("propagation", LaunchBlocks(args, num_samples, stream_));
  }
  void Launch(const ExpansionArgs<PanelStackView>& args, int num_samples) override {
    if (Begin()) Note("trajectory", LaunchBlocks(args, num_samples, stream_));
  }
  void Launch(const CoarseArgs<DiffusionView>& args, int num_samples) override {
    if (Begin()) Note("coarse guess", LaunchBlocks(args, num_samples, stream_));
  }
  void Launch(const ResidentArgs& args, int num_members) override {
    if (Begin()) Note("propagation", LaunchBlocks(args, num_members, stream_));
  }
  void Launch(const ResidentSolveArgs& args) override {
    if (Begin()) Note("Newton solver", LaunchBlocks(args, stream_));
  }
  void Launch(const ResidentStackArgs& args) override {
    if (Begin()) Note("Newton solver", LaunchBlocks(args, stream_));
  }
  void Launch(const GridStepsArgs<DiffusionView>& args) override {
    if (Begin()) Note("sequential solver", LaunchBlocks(args, stream_));
  }
  void Launch(const BlockSequentialArgs<ProgramView>& args, int num_samples) override {
    if (Begin()) Note("sequential solver", LaunchBlocks(args, num_samples, stream_));
  }
  void Launch(const GridStepsArgs<ProgramView>& args) override {
    if (Begin()) Note("sequential solver", LaunchBlocks(args, stream_));
  }
  void Launch(const PropagationArgs<ProgramView>& args, int num_samples) override {
    if (Begin()) Note("propagation", LaunchBlocks(args, num_samples, stream_));
  }
  void Launch(const ExpansionArgs<ProgramView>& args, int num_samples) override {
    if (Begin()) Note("trajectory", LaunchBlocks(args, num_samples, stream_));
  }
  void Launch(const CoarseArgs<ProgramView>& args, int num_samples) override {
    if (Begin()) Note("coarse guess", LaunchBlocks(args, num_samples, stream_));
  }
  void Launch(const ConditionArgs& args, int num_samples) override {
    if (Begin()) Note("condition", LaunchCondition(args, num_samples, stream_));
  }
  void Launch(const StartArgs& args, int num_samples) override {
    if (Begin()) Note("guess", LaunchPass(args, num_samples, stream_));
  }
  void Launch(const LevelArgs& args, int num_members) override {
    if (Begin()) Note("scan", LaunchPass(args, num_members, stream_));
  }
  void Launch(const UpdateArgs& args, int num_members) override {
    if (Begin()) Note("update", LaunchPass(args, num_members, stream_));
  }
  void Launch(const CollectArgs& args, int num_members) override {
    if (Begin()) Note("norms", LaunchPass(args, num_members, stream_));
  }
  void Launch(const TreeArgs& args, int num_members) override {
    if (Begin()) Note("scan and update", LaunchPass(args, num_members, stream_));
  }
  void Launch(const GemmArgs& args) override {
    if (Begin()) status_ = products_->Multiply(args);
  }
  void Launch(const IntervalStepArgs& args) override {
    if (Begin()) Note("steps of intervals", LaunchBlocks(args, stream_));
  }
  void Launch(const TangentArgs& args) override {
    if (Begin()) Note("tangents", LaunchTangents(args, stream_));
  }
  void Launch(const LayerGemmArgs& args) override {
    if (Begin()) status_ = products_->Multiply(args);
  }
  void Launch(const DenseBackArgs& args, int num_samples) override {
    if (Begin()) Note("dense layers, backwards", LaunchDenseBack(args, num_samples, stream_));
  }
  void Launch(const BackwardStepsArgs& args, int width) override {
    if (Begin()) Note("backward pass", LaunchBackward(args, width, stream_));
  }
  void Launch(const BackwardScanArgs& args, const NewtonShape& shape) override {
    if (Begin()) Note("backward scan", LaunchBackwardScan(args, shape, stream_));
  }
  void Launch(const ParameterGradientArgs& args) override {
    if (Begin()) Note("gradients of parameters", LaunchParameterGradients(args, stream_));
  }
  void Launch(const ProgramRetreatArgs& args, const ProgramBackShape& shape) override {
    if (Begin()) Note("backward pass", LaunchProgramBackward(args, shape, stream_));
  }
  void Launch(const ProgramLevelArgs& args) override {
    if (Begin()) Note("backward scan", LaunchProgramBackward(args, stream_));
  }
  void Launch(const ConditionBackArgs& args, const ProgramBackShape& shape) override {
    if (Begin()) Note("condition, backwards", LaunchProgramBackward(args, shape, stream_));
  }
  absl::Status PrepareProducts(void* workspace, int64_t bytes) override {
    if (!Begin()) return status_;
    DEEPPCR_ASSIGN_OR_RETURN(products_, Products::New(stream_, workspace, bytes));
    return absl::OkStatus();
  }
  void CopyToDevice(void* to, const void* from, size_t bytes) override {
    if (Begin()) Note("copying", cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
  }
  void CopyToHost(void* to, const void* from, size_t bytes) override {
    if (Begin()) Note("copying", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_));
  }
  void Wait(absl::FunctionRef<void()> idle) override {
    // A stream that has failed is waited for too: what was launched before still writes to memory
    // that the caller may free.
    cudaError_t state = cudaErrorNotReady;
    const bool ended = patience_.Await(
        [&] {
          if (lost_) return true;
          state = cudaStreamQuery(stream_);
          return state != cudaErrorNotReady;
        },
        idle);
    if (!ended) lost_ = true;
    if (state != cudaErrorNotReady) return Note("running", state);
    cudaGetLastError();  // clears cudaErrorNotReady, or the next launch would report it
    if (status_.ok()) status_ = ended ? Lost() : TookTooLong();
  }
  absl::Status status() const override { return status_; }

 private:
  // A thread of the caller's may never have seen this device, and may bring an error of a call that
  // was none of ours, which the next launch would report.
  bool Begin() {
    if (status_.ok() && lost_) status_ = Lost();
    if (!status_.ok()) return false;
    Note("choosing the device", cudaSetDevice(device_));
    cudaGetLastError();
    return status_.ok();
  }
  absl::Status TookTooLong() const {
    const double seconds = std::chrono::duration<double>(patience_.limit()).count();
    return absl::UnavailableError(
        StrCat("CUDA: running: not done after ", seconds, " s; the device is taken for lost"));
  }
  void Note(std::string_view what, cudaError_t error) {
    if (error == cudaSuccess) return;
    cudaGetLastError();  // clears the thread's error, or its next launch on another stream would
                         // report it
    if (status_.ok()) status_ = Failed(absl::StatusCode::kUnavailable, what, error);
  }

  const int device_;
  std::atomic<bool>& lost_;
  Patience patience_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Products> products_;
  absl::Status status_;
};

// Version of the kernel's module, which compiles the code that the toolkit left to the driver: the
// word of digits and dots in the first line of its file. "unknown" where no such word can be read.
std::string DriverVersion() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    const bool version = word.find('.') != std::string::npos &&
                         word.find_first_not_of("0123456789.") == std::string::npos;
    if (version) return word;
  }
  return "unknown";
}

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, const DeviceInfo& info, const WaitLimits& waits)
      : index_(index),
        waits_(waits),
        name_(StrCat("cuda-sm", info.major, info.minor, "-", std::string_view(info.name))),
        limits_{.multiprocessors = info.multiprocessors,
                .shared_bytes = info.shared_bytes,
                .max_cluster_blocks = info.max_cluster_blocks,
                .grid_blocks = info.grid_blocks,
                .clusters = info.clusters},
        compiler_(NewCudaCompiler(index, info, lost_)) {}

  std::string name() const override { return name_; }
  std::string versions() const override {
    return StrCat("driver=", DriverVersion(), " toolkit=", CUDART_VERSION,
                  " cublas=", ProductsVersion(), OtherNvrtc());
  }
  const LaunchLimits& limits() const override { return limits_; }

  absl::StatusOr<void*> Allocate(MemoryKind kind, size_t bytes) override {
    if (lost_) return Lost();
    void* memory = nullptr;
    cudaError_t error = cudaSetDevice(index_);
    if (error == cudaSuccess)
      error = kind == MemoryKind::kDevice
                  ? cudaMalloc(&memory, bytes)
                  : cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
    if (error == cudaSuccess) return memory;
    return NotAllocated(kind, bytes, error);
  }
  void Free(MemoryKind kind, void* memory) override {
    if (lost_) return;
    const cudaError_t error = kind == MemoryKind::kDevice ? cudaFree(memory) : cudaFreeHost(memory);
    if (error != cudaSuccess) cudaGetLastError();  // an error of work that streams report
  }
  absl::Status Upload(void* to, const void* from, size_t bytes) override {
    if (lost_) return Lost();
    cudaError_t error = cudaSetDevice(index_);
    if (error == cudaSuccess) error = cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice);
    // The copy may return before the data has arrived, and our streams do not wait for the copy's
    // stream.
    if (error == cudaSuccess) error = cudaStreamSynchronize(nullptr);
    if (error == cudaSuccess) return absl::OkStatus();
    cudaGetLastError();
    return Failed(absl::StatusCode::kUnavailable, "copying to the device", error);
  }
  absl::StatusOr<std::unique_ptr<Stream>> NewStream() override {
    if (lost_) return Lost();
    auto stream = std::make_unique<CudaStream>(index_, waits_, lost_);
    DEEPPCR_RETURN_IF_ERROR(stream->Create());
    return std::unique_ptr<Stream>(std::move(stream));
  }
  absl::StatusOr<DeviceCompiler*> compiler() override {
    if (!compiler_.ok()) return compiler_.status();
    return compiler_->get();
  }

 private:
  static absl::Status NotAllocated(MemoryKind kind, size_t bytes, cudaError_t error) {
    cudaGetLastError();  // an allocation that failed says nothing about the device
    if (error != cudaErrorMemoryAllocation)
      return Failed(absl::StatusCode::kUnavailable, "allocating memory", error);
    if (kind == MemoryKind::kMapped)
      return ResourceExhausted("host memory that the GPU maps: ", bytes, " bytes could not be had");
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return ResourceExhausted("GPU memory: ", bytes, " bytes wanted, ", free, " of ", total,
                             " free");
  }

  const int index_;
  const WaitLimits waits_;
  std::atomic<bool> lost_ = false;  // work on some stream did not end
  const std::string name_;
  const LaunchLimits limits_;
  const absl::StatusOr<std::unique_ptr<DeviceCompiler>> compiler_;
};

absl::Status Unavailable(cudaError_t error) {
  return absl::UnavailableError(StrCat("CUDA: ", cudaGetErrorString(error)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int index, const WaitLimits& limits) {
  int count = 0;
  if (const cudaError_t error = CountDevices(&count); error != cudaSuccess)
    return Unavailable(error);
  if (index >= count)
    return absl::UnavailableError(StrCat("CUDA: the driver offers ", count, " devices"));
  DeviceInfo info = {};
  if (const cudaError_t error = ProbeDevice(index, &info); error != cudaSuccess)
    return Unavailable(error);
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(index, info, limits));
}

}  // namespace deeppcr::cuda
