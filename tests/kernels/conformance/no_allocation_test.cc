// SPDX-License-Identifier: Apache-2.0
// The engine allocates nothing on the request path: operator new and malloc are hooked while it
// runs.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "kernels/plan/calibration.h"
#include "kernels/solver/registry.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DEEPPCR_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define DEEPPCR_SANITIZED 1
#endif
#endif

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

[[maybe_unused]] void CountAllocation() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

#ifndef DEEPPCR_SANITIZED  // sanitizers bring their own malloc
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

namespace deeppcr {
namespace {

using testing::OptionsFor;
using testing::RandomSystem;
using testing::SolverRig;

class NoAllocationTest : public ::testing::TestWithParam<bool> {};

// Runs once to warm up, once counted.
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
#ifdef DEEPPCR_SANITIZED
  GTEST_SKIP() << "a sanitizer owns malloc in this build";
#endif
  allocations = 0;
  counting = true;
  std::free(std::malloc(10));
  ::operator delete(::operator new(10));
  counting = false;
  EXPECT_GE(allocations, 2);
}

TEST_P(NoAllocationTest, NoSolverAllocatesOnTheRequestPath) {
#ifdef DEEPPCR_SANITIZED
  GTEST_SKIP() << "a sanitizer owns malloc in this build";
#endif
  constexpr int64_t kSteps = 300, kSamples = 11;
  const RandomSystem system({.num_steps = kSteps,
                             .state_dim = 6,
                             .residual = GetParam(),
                             .gain = 1.2,
                             .input_dim = 9,
                             .output_dim = 4,
                             .seed = 3});
  SolverRig rig(testing::BackendCases().front().create(), system.spec(), 2);
  const std::vector<float> inputs = system.Inputs(kSamples, 4);
  rig.system().SetAffineGuess(*FitAffineGuess(rig.runner(), SyntheticInputs(64, 9), 1 << 20));
  std::vector<float> outputs(kSamples * 4), trajectory(kSamples * (kSteps + 1) * 6),
      previous(trajectory.size());
  std::vector<SampleReport> reports(kSamples);
  const CancelToken token(CancelToken::Clock::now() + std::chrono::hours(1));
  for (const SolverRow& row : Solvers()) {
    for (const InitialGuess guess :
         {InitialGuess::kConstant, InitialGuess::kCalibrated, InitialGuess::kPrevious}) {
      for (const double rtol : {1e-4, 1e-7}) {  // the second one ends in fallbacks
        ResolvedOptions options = OptionsFor(row.name, kSteps, 8, rtol);
        options.initial_guess = guess;
        const RunItem item{.num_samples = kSamples,
                           .inputs = inputs,
                           .initial_states = previous,
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

}  // namespace
}  // namespace deeppcr
