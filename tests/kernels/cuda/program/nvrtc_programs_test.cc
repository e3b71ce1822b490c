// SPDX-License-Identifier: Apache-2.0
// The sources of random step programs through NVRTC, which needs no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/cancel_token.h"
#include "kernels/base/control_group.h"
#include "kernels/cuda/program/source.h"
#include "kernels/cuda/runtime/nvrtc.h"
#include "kernels/cuda/tuning.h"
#include "kernels/program/denoiser_program.h"
#include "kernels/program/optimize.h"
#include "tests/kernels/cuda/program/random_program.h"
#include "tests/testing/random_diffusion.h"

namespace deeppcr::testing {
namespace {

// The number of programs whose source is checked; the slow run of this test asks for more.
int NumPrograms() {
  const char* text = std::getenv("DEEPPCR_TEST_PROGRAMS");
  return text == nullptr ? 40 : std::atoi(text);
}
// Of so many programs one is compiled to the end.
constexpr int kWhole = 40;

std::string SourceOf(const cuda::ProgramSection& section, int rows) {
  return cuda::SourceOf({section.instructions, static_cast<size_t>(section.count)},
                        {.rows = rows, .clusters = true, .grid = true, .guesses = true});
}

// What became of programs.
struct Tally {
  int checked = 0, compiled = 0, refused = 0;
  int too_long = 0;                 // compiled for as long as a load compiles
  double seconds = 0, longest = 0;  // of those that were compiled

  void Add(const Tally& other) {
    checked += other.checked;
    compiled += other.compiled;
    refused += other.refused;
    too_long += other.too_long;
    seconds += other.seconds;
    longest = std::max(longest, other.longest);
  }
};

void CompileRandomProgram(int seed, Tally* tally) {
  SCOPED_TRACE(seed);
  const ProgramOnExecutor system(seed);
  if (absl::IsUnimplemented(system.status())) {
    ++tally->refused;  // a floor or a lookup of the state
    return;
  }
  ASSERT_TRUE(system.status().ok()) << system.status();
  const std::string source = SourceOf(system.section(), system.rows_per_step());
  const auto code = cuda::CompileForDevice(source, 90, cuda::CodeForm::kNone, nullptr);
  ASSERT_TRUE(code.ok()) << code.status() << "\n" << source;
  ++tally->checked;
  const auto& section = system.section();
  const std::span instructions(section.instructions, static_cast<size_t>(section.count));
  // A longer program is interpreted.
  const bool compiles = cuda::NumOfElements(instructions) <= cuda::kMostCompiledElements;
  if (seed % kWhole != kWhole / 2 || !compiles) return;
  const auto start = std::chrono::steady_clock::now();
  const CancelToken limited(start + std::chrono::seconds(cuda::kMostCompileSeconds));
  const auto whole = cuda::CompileForDevice(source, 90, cuda::CodeForm::kCubin, &limited);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (absl::IsCancelled(whole.status())) {
    ++tally->too_long;
    return;
  }
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->substr(1, 3), "ELF");
  for (const char* kernel : {"sequential", "cluster_sequential", "grid_sequential", "propagation",
                             "expansion", "coarse", "cluster_coarse"})
    EXPECT_NE(whole->find(std::string(".text.") + kernel), std::string::npos) << kernel;
  ++tally->compiled;
  tally->seconds += took.count();
  tally->longest = std::max(tally->longest, took.count());
}

// Of as many programs at a time as there are cores.
TEST(NvrtcProgramsTest, Compile) {
  if (const auto version = cuda::NvrtcVersion(); !version.ok()) GTEST_SKIP() << version.status();
  Tally all;
  std::mutex mutex;
  std::atomic<int> next = 1;
  std::vector<std::jthread> threads(static_cast<size_t>(AvailableCores()));
  for (std::jthread& thread : threads) {
    thread = std::jthread([&] {
      Tally tally;
      for (int seed; (seed = next++) <= NumPrograms();) {
        CompileRandomProgram(seed, &tally);
        if (::testing::Test::HasFatalFailure()) break;
      }
      const std::lock_guard lock(mutex);
      all.Add(tally);
    });
  }
  threads.clear();
  std::printf(
      "%d programs checked, %d refused; %d compiled, %.1f s each, at most %.1f s; %d too long\n",
      all.checked, all.refused, all.compiled, all.seconds / std::max(all.compiled, 1), all.longest,
      all.too_long);
  EXPECT_GE(all.checked, NumPrograms() * 4 / 5);
  EXPECT_GE(all.compiled, std::max(1, NumPrograms() / kWhole / 2));
}

// Instructions that are not on elements are as many as there may be.
TEST(NvrtcProgramsTest, LongProgramsAreNoDepthOfTemplates) {
  if (const auto version = cuda::NvrtcVersion(); !version.ok()) GTEST_SKIP() << version.status();
  std::vector<cuda::ProgramInstruction> instructions(
      1000, {.op = program::Op::kArrange, .kind = program::OpKind::kArrange});
  for (const size_t at : {size_t{0}, size_t{500}, size_t{999}})
    instructions[at] = {.op = program::Op::kTanh,
                        .kind = program::OpKind::kElementwise,
                        .num_operands = 1,
                        .result = {.size = 8}};
  const auto code = cuda::CompileForDevice(cuda::SourceOf(instructions, {.rows = 13}), 90,
                                           cuda::CodeForm::kNone, nullptr);
  EXPECT_TRUE(code.ok()) << code.status();
}

// Denoisers of the size that is served, as programs: those that a graph describes are like them.
TEST(NvrtcProgramsTest, DenoisersCompile) {
  if (const auto version = cuda::NvrtcVersion(); !version.ok()) GTEST_SKIP() << version.status();
  for (const DenoiserKind kind : {DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp}) {
    if (kind == DenoiserKind::kAdaLnMlp && NumPrograms() < 1000) continue;  // the slow run's
    const RandomDiffusion denoiser(
        {.kind = kind, .state_dim = 16, .hidden_dim = 128, .num_blocks = 3, .num_classes = 10});
    const program::Program written = *program::ProgramOfDenoiser(denoiser.spec());
    const program::Program optimized = *program::Optimize(written, program::kNoLimits);
    const auto device = simt::NewSimtDevice({});
    const auto model =
        cuda::ProgramModel::Upload(*device, program::WithProgram(denoiser.spec(), optimized), {});
    ASSERT_TRUE(model.ok()) << model.status();
    const cuda::ProgramSection& section = model->view().section;
    const auto start = std::chrono::steady_clock::now();
    const auto code = cuda::CompileForDevice(SourceOf(section, model->rows_per_step()), 90,
                                             cuda::CodeForm::kCubin, nullptr);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    ASSERT_TRUE(code.ok()) << code.status();
    std::printf("%d instructions: %.1f s, %zu bytes\n", section.count, took.count(), code->size());
  }
}

}  // namespace
}  // namespace deeppcr::testing
