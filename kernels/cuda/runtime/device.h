// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RUNTIME_DEVICE_H_
#define DEEPPCR_KERNELS_CUDA_RUNTIME_DEVICE_H_

// Interface of the backend to a GPU. cuda_device.h has the real GPU; tests put the SIMT executor in
// its place, so that everything but the hardware is tested without a GPU.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/cancel_token.h"
#include "kernels/cuda/diffusion/grid_steps.h"
#include "kernels/cuda/diffusion/kernel.h"
#include "kernels/cuda/diffusion/noise_kernel.h"
#include "kernels/cuda/diffusion/resident_propagation.h"
#include "kernels/cuda/diffusion/resident_solve.h"
#include "kernels/cuda/diffusion/tangent_kernel.h"
#include "kernels/cuda/loop/block_recurrence.h"
#include "kernels/cuda/loop/newton_args.h"
#include "kernels/cuda/loop/newton_shape.h"
#include "kernels/cuda/loop/pass_kernel.h"
#include "kernels/cuda/math/dense_back_kernel.h"
#include "kernels/cuda/math/dense_chain_kernel.h"
#include "kernels/cuda/program/backward_shape.h"
#include "kernels/cuda/program/kernel.h"
#include "kernels/cuda/runtime/gemm.h"
#include "kernels/cuda/stack/backward_args.h"
#include "kernels/cuda/stack/panel_step.h"
#include "kernels/cuda/stack/sequential_kernel.h"

namespace deeppcr::cuda {

enum class MemoryKind : uint8_t {
  kDevice,  // the device's own
  kMapped,  // the host's, which kernels read and write at the same address
};

// Work for the device, done in order. One thread at a time. An error, kUnavailable, stays: later
// work is not done.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void Launch(const DenseChainArgs& args, int num_samples) = 0;
  virtual void Launch(const SequentialArgs& args, int width) = 0;
  virtual void Launch(const NewtonArgs& args, const NewtonShape& shape) = 0;
  virtual void Launch(const NoiseArgs& args) = 0;
  virtual void Launch(const ModulationArgs& args, int64_t num_tables) = 0;
  virtual void Launch(const BlockSequentialArgs<DiffusionView>& args, int num_samples) = 0;
  virtual void Launch(const PropagationArgs<DiffusionView>& args, int num_samples) = 0;
  virtual void Launch(const ExpansionArgs<DiffusionView>& args, int num_samples) = 0;
  virtual void Launch(const CoarseArgs<DiffusionView>& args, int num_samples) = 0;
  virtual void Launch(const ResidentArgs& args, int num_members) = 0;
  virtual void Launch(const ResidentSolveArgs& args) = 0;
  virtual void Launch(const ResidentStackArgs& args) = 0;
  virtual void Launch(const GridStepsArgs<DiffusionView>& args) = 0;
  virtual void Launch(const BlockSequentialArgs<ProgramView>& args, int num_samples) = 0;
  virtual void Launch(const GridStepsArgs<ProgramView>& args) = 0;
  virtual void Launch(const PropagationArgs<ProgramView>& args, int num_samples) = 0;
  virtual void Launch(const ExpansionArgs<ProgramView>& args, int num_samples) = 0;
  virtual void Launch(const CoarseArgs<ProgramView>& args, int num_samples) = 0;
  virtual void Launch(const ConditionArgs& args, int num_samples) = 0;
  virtual void Launch(const BlockSequentialArgs<PanelStackView>& args, int num_samples) = 0;
  virtual void Launch(const PropagationArgs<PanelStackView>& args, int num_samples) = 0;
  virtual void Launch(const ExpansionArgs<PanelStackView>& args, int num_samples) = 0;
  virtual void Launch(const StartArgs& args, int num_samples) = 0;
  virtual void Launch(const LevelArgs& args, int num_members) = 0;
  virtual void Launch(const UpdateArgs& args, int num_members) = 0;
  virtual void Launch(const CollectArgs& args, int num_members) = 0;
  virtual void Launch(const TreeArgs& args, int num_members) = 0;
  virtual void Launch(const GemmArgs& args) = 0;
  virtual void Launch(const IntervalStepArgs& args) = 0;
  virtual void Launch(const TangentArgs& args) = 0;
  virtual void Launch(const LayerGemmArgs& args) = 0;
  virtual void Launch(const DenseBackArgs& args, int num_samples) = 0;
  virtual void Launch(const BackwardStepsArgs& args, int width) = 0;
  virtual void Launch(const BackwardScanArgs& args, const NewtonShape& shape) = 0;
  virtual void Launch(const ParameterGradientArgs& args) = 0;
  virtual void Launch(const ProgramRetreatArgs& args, const ProgramBackShape& shape) = 0;
  virtual void Launch(const ProgramLevelArgs& args) = 0;
  virtual void Launch(const ConditionBackArgs& args, const ProgramBackShape& shape) = 0;
  // Prepares products of either kind, once before the first of them, with memory of the device that
  // stays the stream's. Errors: kResourceExhausted; kUnimplemented where the device cannot do
  // products, and why.
  virtual absl::Status PrepareProducts(void* workspace, int64_t bytes) = 0;
  virtual void CopyToDevice(void* to, const void* from, size_t bytes) = 0;
  virtual void CopyToHost(void* to, const void* from, size_t bytes) = 0;
  // Returns when everything is done, or has failed. Calls `idle` every now and then until then.
  virtual void Wait(absl::FunctionRef<void()> idle) = 0;
  virtual absl::Status status() const = 0;
};

// Code that was compiled for a device and is loaded there. The kernels live as long as it does.
class DeviceCode {
 public:
  virtual ~DeviceCode() = default;
  virtual const ProgramKernels& kernels() const = 0;
};

// Compiles kernels of programs (program/source.h) for a device. Thread-safe.
class DeviceCompiler {
 public:
  virtual ~DeviceCompiler() = default;
  // What code depends on beside its source: compiler, device, headers.
  virtual std::string_view name() const = 0;
  // Errors: kCancelled soon after the token, which may be null, has fired; any other with the
  // compiler's words.
  virtual absl::StatusOr<std::string> Compile(const std::string& source,
                                              const CancelToken* token) = 0;
  // Loads what Compile returned. Errors: the device's.
  virtual absl::StatusOr<std::shared_ptr<const DeviceCode>> Load(const std::string& code) = 0;
};

// Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;
  // Versions that bits depend on beside the name: driver, toolkit, libraries. May be empty.
  virtual std::string versions() const { return {}; }
  virtual const LaunchLimits& limits() const = 0;
  // Allocates memory aligned to 256 bytes. Errors: kResourceExhausted, with the bytes wanted and
  // the bytes free.
  virtual absl::StatusOr<void*> Allocate(MemoryKind kind, size_t bytes) = 0;
  virtual void Free(MemoryKind kind, void* memory) = 0;
  // Copies to memory of the device, and returns when it is there.
  virtual absl::Status Upload(void* to, const void* from, size_t bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<Stream>> NewStream() = 0;
  // Errors: kUnimplemented where programs are interpreted, and why.
  virtual absl::StatusOr<DeviceCompiler*> compiler() {
    return absl::UnimplementedError("step programs are interpreted on this device");
  }
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_RUNTIME_DEVICE_H_
