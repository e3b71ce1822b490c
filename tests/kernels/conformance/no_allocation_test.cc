// SPDX-License-Identifier: Apache-2.0
// The engine allocates nothing on the request path: this test hooks operator new and malloc while
// the engine runs.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "kernels/plan/calibration.h"
#include "kernels/program/denoiser_program.h"
#include "kernels/solver/backward_runner.h"
#include "kernels/solver/registry.h"
#include "tests/testing/backward_rig.h"
#include "tests/testing/random_diffusion.h"
#include "tests/testing/sanitizers.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

[[maybe_unused]] void CountAllocation() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

// Sanitizers bring their own malloc.
#if !defined(ABSL_HAVE_ADDRESS_SANITIZER) && !defined(ABSL_HAVE_THREAD_SANITIZER)
extern "C" void* __libc_malloc(size_t size);
extern "C" void* __libc_calloc(size_t count, size_t size);
extern "C" void* __libc_realloc(void* p, size_t size);
extern "C" void* __libc_memalign(size_t alignment, size_t size);

extern "C" void* malloc(size_t size) {
  CountAllocation();
  return __libc_malloc(size);
}
extern "C" void* calloc(size_t count, size_t size) {
  CountAllocation();
  return __libc_calloc(count, size);
}
extern "C" void* realloc(void* p, size_t size) {
  CountAllocation();
  return __libc_realloc(p, size);
}
extern "C" void* aligned_alloc(size_t alignment, size_t size) {
  CountAllocation();
  return __libc_memalign(alignment, size);
}
#endif

namespace deeppcr::testing {
namespace {

class NoAllocationTest : public ::testing::TestWithParam<bool> {};

// Runs once to warm up, and once more to count allocations.
int64_t AllocationsOfRun(const SolverRig& rig, const ResolvedOptions& options, RunItem item) {
  RunTimings timings;
  EXPECT_TRUE(rig.runner().Run(options, {&item, 1}, &timings).ok());
  allocations = 0;
  counting = true;
  const bool ok = rig.runner().Run(options, {&item, 1}, &timings).ok();
  counting = false;
  EXPECT_TRUE(ok);
  return allocations;
}

TEST(AllocationHookTest, SeesNewAndMalloc) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer owns malloc in this build";
  allocations = 0;
  counting = true;
  std::free(std::malloc(10));
  ::operator delete(::operator new(10));
  counting = false;
  EXPECT_GE(allocations, 2);
}

TEST_P(NoAllocationTest, NoSolverAllocatesOnTheRequestPath) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer owns malloc in this build";
  constexpr int64_t kSteps = 300, kSamples = 11;
  const RandomSystem system({.num_steps = kSteps,
                             .state_dim = 6,
                             .residual = GetParam(),
                             .gain = 1.2,
                             .input_dim = 9,
                             .output_dim = 4,
                             .seed = 3});
  SolverRig rig(BackendCases().front().create(), system.spec(), 2);
  const std::vector<float> inputs = system.Inputs(kSamples, 4);
  ASSERT_TRUE(rig.system()
                  .SetAffineGuess(*FitAffineGuess(rig.runner(), SyntheticInputs(64, 9), 1 << 20))
                  .ok());
  std::vector<float> outputs(kSamples * 4), trajectory(kSamples * (kSteps + 1) * 6),
      previous(trajectory.size());
  std::vector<SampleReport> reports(kSamples);
  const CancelToken token(CancelToken::Clock::now() + std::chrono::hours(1));
  for (const SolverRow& row : Solvers()) {
    for (const InitialGuess guess :
         {InitialGuess::kConstant, InitialGuess::kCalibrated, InitialGuess::kPrevious}) {
      for (const double rtol : {1e-4, 1e-7}) {  // 1e-7 ends in fallbacks
        ResolvedOptions options = OptionsFor(row.name, kSteps, 8, rtol);
        options.initial_guess = guess;
        const RunItem item{
            .samples = {.num_samples = kSamples, .inputs = inputs, .initial_states = previous},
            .outputs = outputs,
            .trajectory = trajectory,
            .reports = reports,
            .token = &token};
        EXPECT_EQ(AllocationsOfRun(rig, options, item), 0)
            << row.name << " " << ToString(guess) << " " << rtol;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, NoAllocationTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "resnet" : "mlp"; });

// Counts the calls of OnProgress.
class Listener final : public ProgressListener {
 public:
  void OnProgress(const SolveProgress&) override { told.fetch_add(1, std::memory_order_relaxed); }
  std::atomic<int64_t> told{0};
};

class NoAllocationDiffusionTest : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr int64_t kSteps = 60, kSamples = 11;

  NoAllocationDiffusionTest()
      : process_(GetParam() ? ResidualDdpm(kSteps, 4) : AdaLnWithDecoder(kSteps, 4)),
        rig_(BackendCases().front().create(), process_.spec(), 2) {
    const DiffusionSpec& spec = process_.spec();
    conditions_ = process_.Vector(kSamples * spec.input_dim());
    labels_.resize(spec.num_classes > 0 ? kSamples : 0);
    for (size_t i = 0; i < labels_.size(); ++i) labels_[i] = static_cast<int32_t>(i % 3);
    initial_noise_ = process_.Vector(kSamples * spec.state_dim);
    step_noise_ = process_.Vector(kSamples * kSteps * spec.state_dim);
    outputs_.resize(kSamples * spec.output_dim());
    final_states_.resize(kSamples * spec.state_dim);
    trajectory_.resize(kSamples * (kSteps + 1) * spec.state_dim);
    previous_.resize(trajectory_.size());
    reports_.resize(kSamples);
  }

  // A request with everything that a request may have.
  RunItem Request(bool noise_given) {
    return {.samples = {.num_samples = kSamples,
                        .inputs = conditions_,
                        .seed = 12,
                        .first_sample = 34,
                        .labels = labels_,
                        .initial_noise = noise_given ? initial_noise_ : std::span<const float>(),
                        .step_noise = noise_given ? step_noise_ : std::span<const float>(),
                        .initial_states = previous_},
            .outputs = outputs_,
            .final_states = final_states_,
            .trajectory = trajectory_,
            .reports = reports_,
            .token = &token_,
            .listener = &listener_};
  }

  int64_t fallbacks() const {
    int64_t count = 0;
    for (const SampleReport& report : reports_) count += report.fallback ? 1 : 0;
    return count;
  }

  RandomDiffusion process_;
  SolverRig rig_;
  const CancelToken token_{CancelToken::Clock::now() + std::chrono::hours(1)};
  Listener listener_;
  std::vector<int32_t> labels_;
  std::vector<float> conditions_, initial_noise_, step_noise_, outputs_, final_states_, trajectory_,
      previous_;
  std::vector<SampleReport> reports_;
};

TEST_P(NoAllocationDiffusionTest, NoSolverAllocatesOnTheRequestPath) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer owns malloc in this build";
  int64_t fell_back = 0;
  for (const SolverRow& row : Solvers()) {
    if (!Suits(row, ShapeOf(DiffusionSpec()))) continue;
    for (const InitialGuess guess :
         {InitialGuess::kConstant, InitialGuess::kCoarse, InitialGuess::kPrevious}) {
      for (const bool noise_given : {false, true}) {
        for (const double rtol : {1e-3, 1e-7}) {
          ResolvedOptions options = OptionsFor(row.name, kSteps, 7, rtol);
          options.initial_guess = guess;
          if (rtol == 1e-7) options.max_iterations = 1;  // ends in fallbacks
          if (row.name == "newton") {
            options.warm_sweeps = 1;
            options.jacobian_refresh =
                noise_given ? JacobianRefresh::kWhileContracting : JacobianRefresh::kEveryIteration;
          }
          listener_.told = 0;
          EXPECT_EQ(AllocationsOfRun(rig_, options, Request(noise_given)), 0)
              << row.name << " " << ToString(guess) << " " << noise_given << " " << rtol;
          EXPECT_GT(listener_.told, 0) << row.name;
          fell_back += fallbacks();
        }
      }
    }
  }
  EXPECT_GT(fell_back, 0) << "no run went through a fallback";
}

INSTANTIATE_TEST_SUITE_P(Processes, NoAllocationDiffusionTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "residual" : "adaln"; });

// Both ways back, through layers and through a program with conditions, on two threads.
TEST(NoAllocationBackwardTest, NoWayBackAllocatesOnTheRequestPath) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer owns malloc in this build";
  constexpr int64_t kSteps = 60, kSamples = 11, kColumns = 5;
  const RandomSystem stack({.num_steps = kSteps,
                            .state_dim = 6,
                            .residual = true,
                            .gain = 0.3,
                            .input_dim = 9,
                            .output_dim = 4});
  const RandomDiffusion process(AdaLnWithDecoder(kSteps, 3));
  const auto program = *program::ProgramOfDenoiser(process.spec());
  for (const SystemSpec& spec :
       {SystemSpec(stack.spec()), SystemSpec(program::WithProgram(process.spec(), program))}) {
    const BackwardRig rig(BackendCases().front().create(), spec);
    const SystemShape& shape = rig.shape();
    ThreadPool pool(2);
    const auto runner =
        *BackwardRunner::Create(rig.system(), shape, {.samples = 4, .columns = 2}, &pool, 1);
    const std::vector<float> x(kSamples * shape.input_dim, 0.3F);
    const std::vector<float> states(kSamples * (kSteps + 1) * shape.state_dim, 0.2F);
    const std::vector<float> of_outputs(kSamples * kColumns * shape.output_dim, 1.0F);
    std::vector<float> inputs(kSamples * kColumns * shape.input_dim),
        initial(kSamples * kColumns * shape.state_dim);
    std::vector<BackwardReport> reports(kSamples);
    BackwardItem item = {.samples = {.num_samples = kSamples, .inputs = x},
                         .states = states,
                         .columns = kColumns,
                         .of_outputs = of_outputs,
                         .inputs = inputs,
                         .initial = initial,
                         .reports = reports};
    for (const BackwardOptions& options :
         {BackwardOptions{},
          BackwardOptions{.way = BackwardWay::kParallel, .shooting_interval = 7}}) {
      EXPECT_TRUE(runner->Run(options, {&item, 1}).ok());
      allocations = 0;
      counting = true;
      const bool ok = runner->Run(options, {&item, 1}).ok();
      counting = false;
      EXPECT_TRUE(ok);
      EXPECT_EQ(allocations, 0) << ToString(options.way);
    }
  }
}

}  // namespace
}  // namespace deeppcr::testing
