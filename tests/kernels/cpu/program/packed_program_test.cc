// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/program/packed_program.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "tests/kernels/program/draft.h"

namespace deeppcr::cpu {
namespace {

using program::Draft;
using program::Element;
using program::Op;
using program::Program;
using program::ValueId;

constexpr ReverseStep kOneStep[] = {{.z_z = 0, .z_m = 1}};

// A program that picks `size` elements of its state, every one a run of its own, and adds them up.
Program Picking(int64_t size) {
  Draft draft;
  const ValueId z = draft.State(3);
  std::vector<Element> elements;
  for (int64_t i = 0; i < size; ++i) elements.push_back({0, 2 * i % 3});
  const ValueId sum = draft.Along(Op::kSum, draft.Arrange({z}, elements), {1, size, 1});
  const ValueId said = draft.Arrange({sum}, std::vector<Element>(3, Element{0, 0}));
  return draft.Finish(draft.ReverseStep(z, said), said);
}

TEST(PackedProgramTest, CountsRunsAndSeeds) {
  constexpr int64_t kSize = 100'000;
  const Program program = Picking(kSize);
  const auto packed = PackProgram(program, 1, kOneStep, {});
  ASSERT_TRUE(packed.ok()) << packed.status();
  const int64_t runs = kSize * int64_t{sizeof(ElementRun)};
  const int64_t seeds = kSize * kNumProbes * int64_t{sizeof(uint32_t)};
  EXPECT_GE(packed->memory_bytes(), runs + seeds);
  EXPECT_LE(packed->memory_bytes(), (runs + seeds) * 11 / 10);
  // What is known beforehand is what it takes then.
  const auto refused = PackProgram(program, 1, kOneStep, {.max_bytes = runs + seeds - 1});
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_TRUE(PackProgram(program, 1, kOneStep, {.max_bytes = packed->memory_bytes()}).ok());
}

// More steps than there are bytes to count.
TEST(PackedProgramTest, RefusesSizesBeyond64Bits) {
  Draft draft;
  const ValueId z = draft.State(2), time = draft.Time();
  const ValueId said = draft.Add(z, draft.Arrange({time}, {{0, 0}, {0, 0}}));
  const Program program = draft.Finish(draft.ReverseStep(z, said), said);
  ASSERT_TRUE(PackProgram(program, 1, kOneStep, {}).ok());
  for (const int64_t steps : {INT64_MAX / 2, INT64_MAX / 16, INT64_MAX / 64 + 1}) {
    const auto packed = PackProgram(program, steps, kOneStep, {});
    EXPECT_TRUE(absl::IsResourceExhausted(packed.status())) << steps << ": " << packed.status();
  }
}

// A layer on the time that takes seconds to evaluate for one step.
TEST(PackedProgramTest, StopsInTheMiddleOfATable) {
  Draft draft;
  const ValueId z = draft.State(1), time = draft.Time();
  constexpr int64_t kSide = 2048, kRepeat = 512;
  const ValueId long_one =
      draft.Arrange({time}, std::vector<Element>(kSide * kRepeat, Element{0, 0}));
  const auto weights = std::make_shared<std::vector<float>>(kSide * kSide, 0.5F);
  const ValueId made =
      draft.Linear(long_one, {.rows = kSide, .cols = kSide, .repeat = kRepeat, .weight = weights});
  const ValueId sum = draft.Along(Op::kSum, made, {1, kSide * kRepeat, 1});
  const ValueId said = draft.Add(z, sum);
  const Program program = draft.Finish(draft.ReverseStep(z, said), said);
  using Clock = CancelToken::Clock;
  const auto start = Clock::now();
  const CancelToken token(start + std::chrono::milliseconds(50));
  const auto packed = PackProgram(program, 1, kOneStep, {.token = &token});
  EXPECT_TRUE(absl::IsCancelled(packed.status())) << packed.status();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(1)) << "the whole takes two or more";
}

TEST(PackedPanelsTest, PartsAreForWhatDoesNotStayInTheCaches) {
  constexpr int64_t kKiB = 1024;
  const std::vector<float> weight(64 * 256, 1.0F);
  std::vector<PackedPanels> all(2);
  for (PackedPanels& panels : all) panels = *PackPanels(1, 64, 256, weight, {});
  const struct {
    CacheBytes caches;
    bool in_parts;
  } cases[] = {{{48 * kKiB, 1024 * kKiB}, false}, {{48 * kKiB, 192 * kKiB}, false},
               {{48 * kKiB, 160 * kKiB}, true},   {{32 * kKiB, 160 * kKiB}, false},
               {{0, 160 * kKiB}, false},          {{48 * kKiB, 0}, true}};
  for (const auto& [caches, in_parts] : cases) {
    ChooseParts(caches, all);
    for (const PackedPanels& panels : all)
      EXPECT_EQ(panels.views[0].in_parts, in_parts) << caches.first << ", " << caches.second;
  }
}

}  // namespace
}  // namespace deeppcr::cpu
