// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/simt/simt_device.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <type_traits>
#include <utility>

#include "kernels/base/strings.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/loop/newton_kernel.h"
#include "kernels/cuda/stack/backward_kernel.h"
#include "kernels/cuda/stack/backward_scan_kernel.h"
#include "kernels/cuda/stack/backward_shape.h"
#include "kernels/cuda/stack/panel_sequential_kernel.h"
#include "tests/testing/simt/products_on_cpu.h"

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
    if (width == 8) Sequential<8>(args);
    if (width == 16) Sequential<16>(args);
    if (width == 32) Sequential<32>(args);
  }
  void Launch(const cuda::NewtonArgs& args, const cuda::NewtonShape& newton) override {
    const LaunchShape shape = {.num_clusters = newton.num_samples,
                               .num_blocks = newton.num_blocks,
                               .num_threads = newton.num_warps * kWarpSize,
                               .shared_bytes = cuda::NewtonBytes(args, newton.width)};
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
  void Launch(const cuda::BlockSequentialArgs<cuda::DiffusionView>& args, int n) override {
    if (args.team.samples == 1 && HoldsLayers(args.process, args.team.num_blocks))
      return RunTeams(args, 1, n, cuda::HeldBytes(args.process),
                      [&](const auto& team) { cuda::SolveWithHeldLayers(team, args); });
    if (args.team.samples == 1) return Sequential(args, n);
    RunTeams(args, args.team.num_blocks, args.team.teams(n),
             cuda::StepBytes(args.process, args.team.samples),
             [&](const auto& team) { cuda::SolveBatchesByTeams(team, args); });
  }
  void Launch(const cuda::PropagationArgs<cuda::DiffusionView>& args, int n) override {
    Propagation(args, n);
  }
  void Launch(const cuda::ExpansionArgs<cuda::DiffusionView>& args, int n) override {
    Expansion(args, n);
  }
  void Launch(const cuda::BlockSequentialArgs<cuda::PanelStackView>& args, int n) override {
    if (!args.process.in_sequence) return Sequential(args, n);
    cuda::WithPanelGroups(args.process.width, [&](auto groups) {
      using Ring = cuda::PanelRing<groups.value>;
      Run({.num_clusters = n,
           .num_threads = Ring::kWarps * kWarpSize,
           .shared_bytes = Ring::kBytes},
          [&](Thread& t) { cuda::SolvePanelsSequentially<groups.value>(t, args); });
    });
  }
  void Launch(const cuda::PropagationArgs<cuda::PanelStackView>& args, int n) override {
    Propagation(args, n);
  }
  void Launch(const cuda::ExpansionArgs<cuda::PanelStackView>& args, int n) override {
    Expansion(args, n);
  }
  void Launch(const cuda::ResidentArgs& args, int num_members) override {
    const LaunchShape shape = {
        .num_clusters = static_cast<int>(cuda::BlocksOf(args, num_members)),
        .num_threads = cuda::kResidentWarps * kWarpSize,
        .shared_bytes = cuda::ResidentBytes(args.propagation.process, args.together)};
    cuda::WithResidentTiles(args.propagation.process.denoiser, [&](auto state, auto hidden) {
      Run(shape, [&](Thread& t) { cuda::PropagateResident<state.value, hidden.value>(t, args); });
    });
  }
  void Launch(const cuda::ResidentSolveArgs& args) override {
    const cuda::DiffusionView& process = args.resident.propagation.process;
    const LaunchShape shape = {
        .num_blocks = args.num_blocks(),
        .num_threads = cuda::kResidentWarps * kWarpSize,
        .shared_bytes = cuda::ResidentSolveBytes(process, args.solve.newton.tree)};
    cuda::WithResidentSolve(process, [&](auto width, auto hidden) {
      Run(shape, [&](Thread& t) { cuda::SolveResident<width.value, hidden.value>(t, args); });
    });
  }
  void Launch(const cuda::ResidentStackArgs& args) override {
    const LaunchShape shape = {.num_blocks = args.num_blocks(),
                               .num_threads = cuda::kResidentWarps * kWarpSize,
                               .shared_bytes = cuda::ResidentStackBytes(args)};
    Run(shape, [&](Thread& t) { cuda::SolveResidentStack<cuda::kResidentStackWidth>(t, args); });
  }
  void Launch(const cuda::GridStepsArgs<cuda::DiffusionView>& args) override {
    Run(ShapeOverGrid(args), [&](Thread& t) { cuda::SolveOverGrid(t, args); });
  }
  void Launch(const cuda::BlockSequentialArgs<cuda::ProgramView>& args, int n) override {
    const cuda::ProgramKernels* const kernels = args.process.kernels;
    if (kernels == nullptr) return Sequential(args, n);
    Run(TeamsShape(args, args.team.num_blocks, n, cuda::StepBytes(args.process, 1)),
        args.team.num_blocks == 1 ? kernels->sequential : kernels->cluster_sequential, args);
  }
  void Launch(const cuda::GridStepsArgs<cuda::ProgramView>& args) override {
    const cuda::ProgramKernels* const kernels = args.sequential.process.kernels;
    if (kernels != nullptr) return Run(ShapeOverGrid(args), kernels->grid_sequential, args);
    Run(ShapeOverGrid(args), [&](Thread& t) { cuda::SolveProgramOverGrid(t, args); });
  }
  void Launch(const cuda::PropagationArgs<cuda::ProgramView>& args, int n) override {
    const cuda::ProgramKernels* const kernels = args.process.kernels;
    if (kernels == nullptr) return Propagation(args, n);
    Run(StepsShape(args, n, args.rows), kernels->propagation, args);
  }
  void Launch(const cuda::ExpansionArgs<cuda::ProgramView>& args, int n) override {
    const cuda::ProgramKernels* const kernels = args.process.kernels;
    if (kernels == nullptr) return Expansion(args, n);
    Run(StepsShape(args, n, 1), kernels->expansion, args);
  }
  void Launch(const cuda::CoarseArgs<cuda::ProgramView>& args, int num_samples) override {
    const cuda::ProgramKernels* const kernels = args.process.kernels;
    if (kernels == nullptr) return Coarse(args, num_samples);
    Run(TeamsShape(args, args.num_blocks, num_samples,
                   cuda::CoarseBytes(args.process, args.staged_floats)),
        args.num_blocks == 1 ? kernels->coarse : kernels->cluster_coarse, args);
  }
  void Launch(const cuda::ConditionArgs& args, int num_samples) override {
    const int warps = cuda::WarpsOf(args.section.widest, 1, options_.limits.max_warps);
    Run({.num_clusters = static_cast<int>(cuda::BlocksOf(args, num_samples)),
         .num_threads = warps * kWarpSize,
         .shared_bytes = cuda::ConditionBytes(args)},
        [&](Thread& thread) { cuda::GiveCondition(thread, args); });
  }
  void Launch(const cuda::CoarseArgs<cuda::DiffusionView>& args, int num_samples) override {
    const cuda::DenoiserView& denoiser = args.process.denoiser;
    if (!cuda::FitsRegisters(denoiser)) return Coarse(args, num_samples);
    const LaunchShape shape = {.num_clusters = num_samples,
                               .num_threads = cuda::kHalfWarps * kWarpSize,
                               .shared_bytes = cuda::CoarseBytes(args.process, args.staged_floats)};
    cuda::WithHalfSteps(denoiser, [&](auto steps) {
      Run(shape, [&](Thread& t) { cuda::GuessWithHalves<steps.value>(cuda::BlockTeam(t), args); });
    });
  }
  void Launch(const cuda::StartArgs& args, int num_samples) override {
    Run({.num_clusters = static_cast<int>(cuda::BlocksOf(args, num_samples)),
         .num_threads = std::min(cuda::kStartWarps, options_.limits.max_warps) * kWarpSize},
        [&](Thread& t) { cuda::StartPasses(t, args); });
  }
  void Launch(const cuda::LevelArgs& args, int num_members) override {
    Run(PassShape(args, num_members), [&](Thread& t) { cuda::SweepLevel(t, args); });
  }
  void Launch(const cuda::UpdateArgs& args, int num_members) override {
    Run(PassShape(args, num_members), [&](Thread& t) { cuda::UpdateStates(t, args); });
  }
  void Launch(const cuda::CollectArgs& args, int num_members) override {
    Run(TreeShape(1, num_members), [&](Thread& t) { cuda::CollectNorms(t, args); });
  }
  void Launch(const cuda::TreeArgs& args, int num_members) override {
    const LaunchShape shape = TreeShape(args.shape.num_blocks, num_members);
    if (shape.num_blocks == 1)
      return Run(shape, [&](Thread& t) { cuda::SolveTree(cuda::BlockTeam(t), args); });
    Run(shape, [&](Thread& t) { cuda::SolveTree(cuda::ClusterTeam(t), args); });
  }
  void Launch(const cuda::GemmArgs& args) override { Product(args); }
  void Launch(const cuda::IntervalStepArgs& args) override {
    RunTeams(args, args.team.num_blocks, args.team.teams(args.range.count),
             cuda::StepBytes(args.process, args.team.samples),
             [&](const auto& team) { cuda::StepIntervals(team, args); });
  }
  void Launch(const cuda::TangentArgs& args) override {
    Run({.num_clusters = static_cast<int>(cuda::BlocksOf(args)),
         .num_threads = std::min(cuda::kTangentWarps, options_.limits.max_warps) * kWarpSize},
        [&](Thread& thread) { cuda::StepTangents(thread, args); });
  }
  void Launch(const cuda::LayerGemmArgs& args) override { Product(args); }
  void Launch(const cuda::DenseBackArgs& args, int num_samples) override {
    Run({.num_clusters = num_samples, .num_threads = kChainWarps * kWarpSize},
        [&](Thread& t) { cuda::GoBackThroughLayer(t, args); });
  }
  void Launch(const cuda::BackwardStepsArgs& args, int width) override {
    const LaunchShape shape = {.num_clusters =
                                   args.backward.num_samples * args.backward.num_columns};
    WithWidth(width, [&](auto w) {
      Run(shape, [&](Thread& t) { cuda::GoBackSequentially<decltype(w)::value>(t, args); });
    });
  }
  void Launch(const cuda::BackwardScanArgs& args, const cuda::NewtonShape& scan) override {
    const size_t bytes = cuda::BackwardBytes({.width = scan.width,
                                              .num_intervals = args.tree.num_intervals,
                                              .shooting_interval = args.shooting_interval,
                                              .num_columns = args.backward.num_columns},
                                             args.tree);
    const LaunchShape shape = {.num_clusters = scan.num_samples,
                               .num_blocks = scan.num_blocks,
                               .num_threads = scan.num_warps * kWarpSize,
                               .shared_bytes = scan.in_workspace ? 0 : bytes};
    WithWidth(scan.width, [&](auto w) {
      Run(shape, [&](Thread& t) {
        args.workspace == nullptr ? cuda::GoBackByScan<decltype(w)::value, false>(t, args)
                                  : cuda::GoBackByScan<decltype(w)::value, true>(t, args);
      });
    });
  }
  void Launch(const cuda::ParameterGradientArgs& args) override {
    Run({.num_clusters = 3, .num_threads = 2 * kWarpSize},
        [&](Thread& t) { cuda::SumParameterGradients(t, args); });
  }
  void Launch(const cuda::ProgramRetreatArgs& args, const cuda::ProgramBackShape& back) override {
    RunJobs(args, back, [&](auto columns, Thread& thread) {
      cuda::RetreatIntervals<columns.value>(thread, args);
    });
  }
  void Launch(const cuda::ProgramLevelArgs& args) override {
    Run({.num_clusters = static_cast<int>(cuda::BlocksOf(args)),
         .num_threads = cuda::ScanThreads(args, options_.limits.max_warps),
         .shared_bytes = cuda::ScanFloats(args) * sizeof(float)},
        [&](Thread& thread) { cuda::ScanLevel(thread, args); });
  }
  void Launch(const cuda::ConditionBackArgs& args, const cuda::ProgramBackShape& back) override {
    RunJobs(args, back, [&](auto columns, Thread& thread) {
      cuda::BackConditions<columns.value>(thread, args);
    });
  }
  absl::Status PrepareProducts(void*, int64_t) override {
    products_ = true;
    return status_;
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
  template <class Process>
  LaunchShape ShapeOverGrid(const cuda::GridStepsArgs<Process>& args) const {
    return {.num_blocks = args.shape().blocks,
            .num_threads = std::min(cuda::kGridWarps, options_.limits.max_warps) * kWarpSize,
            .shared_bytes = cuda::GridBytes(args.sequential.process, args.shape())};
  }
  // The launch shape of kernels that make steps, one block at a time.
  template <class Args>
  LaunchShape StepsShape(const Args& args, int num_samples, int rows) const {
    const int warps = cuda::BlockWarps(args.process, 1, options_.limits.max_warps);
    return {.num_clusters = static_cast<int>(cuda::BlocksOf(args, num_samples)),
            .num_threads = warps * kWarpSize,
            .shared_bytes = cuda::StepBytes(args.process, rows)};
  }
  bool HoldsLayers(const cuda::DiffusionView& process, int num_blocks) const {
    return cuda::HoldsLayers(process, num_blocks, options_.limits.max_warps);
  }
  // The launch shape of a team per sample: a block if num_blocks is 1, a cluster otherwise.
  template <class Args>
  LaunchShape TeamsShape(const Args& args, int num_blocks, int teams, size_t shared_bytes) const {
    const int warps = cuda::BlockWarps(args.process, num_blocks, options_.limits.max_warps);
    return {.num_clusters = teams,
            .num_blocks = num_blocks,
            .num_threads = warps * kWarpSize,
            .shared_bytes = shared_bytes};
  }
  template <class Args, class Body>
  void RunTeams(const Args& args, int num_blocks, int teams, size_t shared_bytes,
                const Body& body) {
    const LaunchShape shape = TeamsShape(args, num_blocks, teams, shared_bytes);
    if (num_blocks == 1) return Run(shape, [&](Thread& thread) { body(cuda::BlockTeam(thread)); });
    Run(shape, [&](Thread& thread) { body(cuda::ClusterTeam(thread)); });
  }
  template <class Process>
  void Sequential(const cuda::BlockSequentialArgs<Process>& args, int num_samples) {
    RunTeams(args, args.team.num_blocks, num_samples, cuda::StepBytes(args.process, 1),
             [&](const auto& team) { cuda::SolveByTeams(team, args); });
  }
  template <class Process>
  void Propagation(const cuda::PropagationArgs<Process>& args, int num_samples) {
    const LaunchShape shape = StepsShape(args, num_samples, args.rows);
    cuda::WithStepRows(args.rows, [&](auto rows) {
      Run(shape, [&](Thread& t) { cuda::PropagateIntervals<rows.value>(t, args); });
    });
  }
  template <class Process>
  void Expansion(const cuda::ExpansionArgs<Process>& args, int num_samples) {
    Run(StepsShape(args, num_samples, 1), [&](Thread& t) { cuda::ExpandIntervals(t, args); });
  }
  template <class Process>
  void Coarse(const cuda::CoarseArgs<Process>& args, int num_samples) {
    RunTeams(args, args.num_blocks, num_samples,
             cuda::CoarseBytes(args.process, args.staged_floats),
             [&](const auto& team) { cuda::GuessCoarsely(team, args); });
  }
  template <class Args>
  LaunchShape PassShape(const Args& args, int num_samples) const {
    const int warps = cuda::PassWarps(options_.limits.max_warps);
    return {.num_clusters = static_cast<int>(cuda::BlocksOf(args, num_samples, warps)),
            .num_threads = warps * kWarpSize};
  }
  LaunchShape TreeShape(int num_blocks, int num_members) const {
    const int warps = cuda::PassWarps(options_.limits.max_warps);
    return {.num_clusters = num_members,
            .num_blocks = num_blocks,
            .num_threads = warps * kWarpSize,
            .shared_bytes = cuda::CollectBytes(warps)};
  }

  // Runs a kernel whose blocks take one job after another.
  template <class Args, class Body>
  void RunJobs(const Args& args, const cuda::ProgramBackShape& back, const Body& body) {
    const LaunchShape shape = {
        .num_clusters = static_cast<int>(cuda::BlocksOf(back, args.jobs(back.columns))),
        .num_threads = back.num_warps * kWarpSize,
        .shared_bytes = back.shared_bytes};
    Run(shape, [&](Thread& thread) {
      back.columns == 1 ? body(std::integral_constant<int, 1>(), thread)
                        : body(std::integral_constant<int, cuda::kBackColumns>(), thread);
    });
  }
  template <class Body>
  static void WithWidth(int width, const Body& body) {
    if (width == 8) body(std::integral_constant<int, 8>());
    if (width == 16) body(std::integral_constant<int, 16>());
    if (width == 32) body(std::integral_constant<int, 32>());
  }
  template <int W>
  void Sequential(const cuda::SequentialArgs& args) {
    Run({.num_clusters = args.num_samples, .shared_bytes = cuda::SequentialBytes<W>(kWarpSize)},
        [&](Thread& t) { cuda::SolveSequentially<W>(t, args); });
  }
  template <int W>
  void Newton(const LaunchShape& shape, const cuda::NewtonArgs& args) {
    Run(shape, [&](Thread& t) {
      if (args.part != cuda::NewtonPart::kWhole) return cuda::SolveNewtonInParts<W>(t, args);
      args.workspace == nullptr ? cuda::SolveNewton<W, false>(t, args)
                                : cuda::SolveNewton<W, true>(t, args);
    });
  }

  // False if the device is lost with this launch, or was lost before.
  bool Counted() {
    if (status_.ok() && launches_++ == options_.fail_after)
      status_ = absl::UnavailableError("the device is lost");
    return status_.ok();
  }
  template <class Body>
  void Run(const LaunchShape& shape, const Body& body) {
    if (!Counted()) return;
    const Outcome outcome = Execute(shape, options_.schedule, body);
    if (!outcome.trouble.empty()) status_ = absl::UnavailableError(outcome.trouble);
  }

  // Runs a kernel by its handle.
  template <class Args>
  void Run(const LaunchShape& shape, const void* handle, const Args& args) {
    auto* const kernel = reinterpret_cast<void (*)(Thread&, const Args&)>(handle);
    Run(shape, [&](Thread& t) { kernel(t, args); });
  }

  template <class Args>
  void Product(const Args& args) {
    if (!Counted()) return;
    if (products_) return MultiplyOnCpu(args);
    status_ = absl::UnavailableError("nobody has prepared for products");
  }

  const DeviceOptions options_;
  bool products_ = false;
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
    std::fill_n(static_cast<uint64_t*>(memory), bytes / sizeof(uint64_t), options_.fill);
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
  absl::StatusOr<cuda::DeviceCompiler*> compiler() override {
    if (options_.compiler == nullptr) return Device::compiler();
    return options_.compiler;
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
