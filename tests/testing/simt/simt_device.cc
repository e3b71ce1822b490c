// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/simt/simt_device.h"

#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "kernels/base/strings.h"
#include "kernels/cuda/diffusion_shape.h"
#include "kernels/cuda/newton_kernel.h"

namespace deeppcr::testing::simt {
namespace {

constexpr std::align_val_t kAlignment{256};
constexpr int kChainWarps = 2;

class SimtStream final : public cuda::Stream {
 public:
  explicit SimtStream(const DeviceOptions& options) : options_(options) {}

  void Launch(const cuda::DenseChainArgs& args, int num_samples) override {
    const size_t floats = args.scratch == nullptr ? cuda::DenseChainFloats(args.widest) : 0;
    Run({.num_clusters = num_samples,
         .num_threads = kChainWarps * kWarpSize,
         .shared_bytes = floats * sizeof(float)},
        [&](Thread& thread) { cuda::ApplyDenseChain(thread, args); });
  }
  void Launch(const cuda::SequentialArgs& args, int width) override {
    const LaunchShape shape = {.num_clusters = args.num_samples};
    if (width == 8) Run(shape, [&](Thread& t) { cuda::SolveSequentially<8>(t, args); });
    if (width == 16) Run(shape, [&](Thread& t) { cuda::SolveSequentially<16>(t, args); });
    if (width == 32) Run(shape, [&](Thread& t) { cuda::SolveSequentially<32>(t, args); });
  }
  void Launch(const cuda::NewtonArgs& args, const cuda::NewtonShape& newton) override {
    const size_t bytes = cuda::NewtonSharedBytes(newton.width, args.tree);
    const LaunchShape shape = {.num_clusters = newton.num_samples,
                               .num_blocks = newton.num_blocks,
                               .num_threads = newton.num_warps * kWarpSize,
                               .shared_bytes = newton.in_slabs ? 0 : bytes};
    if (newton.width == 8) Newton<8>(shape, args);
    if (newton.width == 16) Newton<16>(shape, args);
    if (newton.width == 32) Newton<32>(shape, args);
  }
  void Launch(const cuda::NoiseArgs& args) override {
    Run({.num_clusters = 3}, [&](Thread& t) { cuda::DrawNoise(t, args); });
  }
  void Launch(const cuda::ModulationArgs& args, int64_t num_tables) override {
    Run({.num_clusters = static_cast<int>(num_tables * args.num_steps),
         .num_threads = kChainWarps * kWarpSize,
         .shared_bytes = args.hidden_dim * sizeof(float)},
        [&](Thread& t) { cuda::ModulateSteps(t, args); });
  }
  void Launch(const cuda::DiffusionSequentialArgs& args, int width, int num_samples) override {
    const LaunchShape shape = ShapeOf(args, num_samples, Bytes(args, width, 1));
    if (width == 8) Run(shape, [&](Thread& t) { cuda::SolveDiffusionSequentially<8>(t, args); });
    if (width == 16) Run(shape, [&](Thread& t) { cuda::SolveDiffusionSequentially<16>(t, args); });
    if (width == 32) Run(shape, [&](Thread& t) { cuda::SolveDiffusionSequentially<32>(t, args); });
  }
  void Launch(const cuda::PropagationArgs& args, int width, int num_samples) override {
    const int blocks = num_samples * args.tree.num_intervals;
    const LaunchShape shape = ShapeOf(args, blocks, Bytes(args, width, args.rows));
    if (width == 8) Run(shape, [&](Thread& t) { cuda::PropagateIntervals<8>(t, args); });
    if (width == 16) Run(shape, [&](Thread& t) { cuda::PropagateIntervals<16>(t, args); });
    if (width == 32) Run(shape, [&](Thread& t) { cuda::PropagateIntervals<32>(t, args); });
  }
  void Launch(const cuda::ExpansionArgs& args, int width, int num_samples) override {
    const int blocks = num_samples * args.tree.num_intervals;
    const LaunchShape shape = ShapeOf(args, blocks, Bytes(args, width, 1));
    if (width == 8) Run(shape, [&](Thread& t) { cuda::ExpandIntervals<8>(t, args); });
    if (width == 16) Run(shape, [&](Thread& t) { cuda::ExpandIntervals<16>(t, args); });
    if (width == 32) Run(shape, [&](Thread& t) { cuda::ExpandIntervals<32>(t, args); });
  }
  void Launch(const cuda::CoarseArgs& args, int width, int num_samples) override {
    const LaunchShape shape =
        ShapeOf(args, num_samples, cuda::CoarseBytes(width, args.process.denoiser));
    if (width == 8) Run(shape, [&](Thread& t) { cuda::GuessCoarsely<8>(t, args); });
    if (width == 16) Run(shape, [&](Thread& t) { cuda::GuessCoarsely<16>(t, args); });
    if (width == 32) Run(shape, [&](Thread& t) { cuda::GuessCoarsely<32>(t, args); });
  }
  void CopyToDevice(void* to, const void* from, size_t bytes) override {
    if (status_.ok()) std::memcpy(to, from, bytes);
  }
  void CopyToHost(void* to, const void* from, size_t bytes) override {
    if (status_.ok()) std::memcpy(to, from, bytes);
  }
  void Wait(absl::FunctionRef<void()> idle) override { idle(); }
  absl::Status status() const override { return status_; }

 private:
  template <class Args>
  static size_t Bytes(const Args& args, int width, int rows) {
    return cuda::StepBytes(width, args.process.denoiser, rows);
  }
  // Of kernels that make reverse steps.
  template <class Args>
  LaunchShape ShapeOf(const Args& args, int num_blocks, size_t shared_bytes) const {
    const int warps = cuda::DiffusionWarps(args.process.denoiser, options_.limits.max_warps);
    return {
        .num_clusters = num_blocks, .num_threads = warps * kWarpSize, .shared_bytes = shared_bytes};
  }

  template <int W>
  void Newton(const LaunchShape& shape, const cuda::NewtonArgs& args) {
    Run(shape, [&](Thread& t) {
      if (args.part != cuda::NewtonPart::kWhole) return cuda::SolveNewtonInParts<W>(t, args);
      args.slabs == nullptr ? cuda::SolveNewton<W, false>(t, args)
                            : cuda::SolveNewton<W, true>(t, args);
    });
  }

  template <class Body>
  void Run(const LaunchShape& shape, const Body& body) {
    if (!status_.ok()) return;
    if (launches_++ == options_.fail_after) status_ = absl::UnavailableError("the device is lost");
    if (!status_.ok()) return;
    const Outcome outcome = Execute(shape, options_.schedule, body);
    if (!outcome.trouble.empty()) status_ = absl::UnavailableError(outcome.trouble);
  }

  const DeviceOptions options_;
  int launches_ = 0;
  absl::Status status_;
};

class SimtDevice final : public cuda::Device {
 public:
  explicit SimtDevice(const DeviceOptions& options) : options_(options) {}

  std::string name() const override { return "cuda-simt"; }
  const cuda::LaunchLimits& limits() const override { return options_.limits; }

  absl::StatusOr<void*> Allocate(cuda::MemoryKind, size_t bytes) override {
    std::lock_guard lock(mutex_);
    const int64_t left = options_.memory_bytes - taken_;
    if (static_cast<int64_t>(bytes) > left)
      return ResourceExhausted("GPU memory: ", bytes, " bytes wanted, ", left, " of ",
                               options_.memory_bytes, " free");
    void* const memory = ::operator new(bytes, kAlignment);
    std::memset(memory, 0xFF, bytes);
    sizes_[memory] = static_cast<int64_t>(bytes);
    taken_ += static_cast<int64_t>(bytes);
    return memory;
  }
  void Free(cuda::MemoryKind, void* memory) override {
    std::lock_guard lock(mutex_);
    taken_ -= sizes_.at(memory);
    sizes_.erase(memory);
    ::operator delete(memory, kAlignment);
  }
  absl::Status Upload(void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<cuda::Stream>> NewStream() override {
    return std::unique_ptr<cuda::Stream>(std::make_unique<SimtStream>(options_));
  }

 private:
  const DeviceOptions options_;
  std::mutex mutex_;
  std::map<void*, int64_t> sizes_;
  int64_t taken_ = 0;
};

}  // namespace

std::unique_ptr<cuda::Device> NewSimtDevice(const DeviceOptions& options) {
  return std::make_unique<SimtDevice>(options);
}

}  // namespace deeppcr::testing::simt
