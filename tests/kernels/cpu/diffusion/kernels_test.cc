// SPDX-License-Identifier: Apache-2.0
// Products and noise of every instruction set, compared with plain loops in double, whose running
// error bounds are the tolerances, and with the generator; and bits that must agree.
#include "kernels/cpu/program/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/program/packed_panels.h"
#include "kernels/problem/philox.h"
#include "tests/kernels/cpu/diffusion/plain_diffusion.h"

namespace deeppcr::testing {
namespace {

std::string SetName(size_t i) { return KernelsOfThisMachine()[i].name; }

class PanelGemmTest : public ::testing::TestWithParam<size_t> {
 protected:
  const cpu::ProgramKernels kernels_ = KernelsOfThisMachine()[GetParam()].set.program();
};

TEST_P(PanelGemmTest, MultipliesAndAddsWithBitsThatDependOnNoOtherRow) {
  constexpr int64_t kMost = 27;
  RandomDiffusion random({.seed = 5});
  for (const int64_t rows : {1, 3, 16, 17, 33, 64, 100, 130, 200}) {
    for (const int64_t cols : {1, 2, 5, 16, 33, 100, 129, 260}) {
      SCOPED_TRACE(absl::StrCat(rows, " x ", cols));
      const std::vector<float> weight = random.Vector(rows * cols), bias = random.Vector(rows);
      const cpu::PackedPanels packed = *cpu::PackPanels(1, rows, cols, weight, bias);
      cpu::PanelView layer = packed.views[0];
      const int64_t stride = cpu::PanelRowWidth(cols), width = layer.width;
      std::vector<float> in(kMost * stride);
      for (int64_t r = 0; r < kMost; ++r) {
        const std::vector<float> row = random.Vector(cols);
        std::copy(row.begin(), row.end(), in.begin() + r * stride);
      }
      const auto run = [&](int64_t first, int64_t count, bool with_bias) {
        std::vector<float> out((count + 1) * width, 77.0F);
        kernels_.gemm(nullptr, {.layer = &layer,
                                .bias = with_bias ? layer.bias : nullptr,
                                .in = in.data() + first * stride,
                                .out = out.data(),
                                .in_stride = stride,
                                .out_stride = width,
                                .count = count});
        EXPECT_EQ(out[count * width], 77.0F) << "wrote beyond its rows";
        return out;
      };
      for (const bool with_bias : {false, true}) {
        std::vector<std::vector<float>> alone;
        for (int64_t r = 0; r < kMost; ++r) {
          alone.push_back(run(r, 1, with_bias));
          const Values<Bounded> x = Exactly<Bounded>(in.data() + r * stride, cols);
          for (int64_t i = 0; i < width; ++i) {
            if (i >= rows) {
              ASSERT_EQ(alone[r][i], 0.0F) << "padding";
              continue;
            }
            const Bounded y = Dot(with_bias ? bias[i] : 0.0,
                                  std::span<const float>(weight).subspan(i * cols, cols), x);
            ASSERT_NEAR(alone[r][i], y.value, y.error);
          }
        }
        // Panels in two parts, for one row and for several.
        const int64_t panels = width / layer.panel;
        for (const int64_t count : {int64_t{1}, kMost}) {
          const std::vector<float> together = run(0, count, with_bias);
          for (int64_t cut = 1; cut < panels; ++cut) {
            std::vector<float> parts(count * width, 77.0F);
            for (const auto& [begin, end] : {std::pair{int64_t{0}, cut}, std::pair{cut, panels}})
              kernels_.gemm(nullptr, {.layer = &layer,
                                      .bias = with_bias ? layer.bias : nullptr,
                                      .in = in.data(),
                                      .out = parts.data(),
                                      .in_stride = stride,
                                      .out_stride = width,
                                      .count = count,
                                      .begin_panel = begin,
                                      .end_panel = end});
            ASSERT_TRUE(SameFloats(parts.data(), together.data(), count * width)) << cut;
          }
        }
        for (int64_t count = 2; count <= kMost; ++count) {
          for (const bool in_parts : {false, true}) {
            layer.in_parts = in_parts;
            const int64_t first = in_parts ? kMost - count : 0;
            const std::vector<float> together = run(first, count, with_bias);
            for (int64_t r = 0; r < count; ++r)
              ASSERT_TRUE(SameFloats(together.data() + r * width, alone[first + r].data(), width))
                  << "row " << r << " of " << count << (in_parts ? ", in parts" : "");
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, PanelGemmTest,
                         ::testing::Range(size_t{0}, KernelsOfThisMachine().size()),
                         [](const auto& test) { return SetName(test.param); });

class NormalsTest : public ::testing::TestWithParam<size_t> {
 protected:
  const cpu::ProgramKernels kernels_ = KernelsOfThisMachine()[GetParam()].set.program();
};

TEST_P(NormalsTest, HaveTheBitsOfPhilox) {
  constexpr int64_t kRuns = 20000;
  int64_t uncertain = 0;
  for (int64_t run = 0; run < kRuns; ++run) {
    const int64_t steps = 1 + run % 5, quads = 1 + run % 7, stride = 4 * quads + run % 3;
    const auto random = static_cast<uint64_t>(run) * 0x9E3779B97F4A7C15U;
    const uint64_t seed = run % 2 == 0 ? run : random, sample = run % 3 == 0 ? run : ~random;
    const uint32_t first_step = static_cast<uint32_t>(random >> 40);
    std::vector<float> got(steps * stride + 1, 77.0F), expected = got;
    for (int64_t i = 0; i < steps; ++i)
      FillNormals(seed, sample, first_step + static_cast<uint32_t>(i), 4 * quads,
                  expected.data() + i * stride);
    if (!kernels_.normals({.seed = seed,
                           .sample = sample,
                           .first_step = first_step,
                           .num_steps = steps,
                           .quads = quads,
                           .out = got.data(),
                           .stride = stride})) {
      ++uncertain;
      continue;
    }
    ASSERT_TRUE(SameFloats(got.data(), expected.data(), static_cast<int64_t>(got.size()))) << run;
  }
  EXPECT_LE(uncertain, kRuns / 1000);
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, NormalsTest,
                         ::testing::Range(size_t{0}, KernelsOfThisMachine().size()),
                         [](const auto& test) { return SetName(test.param); });

}  // namespace
}  // namespace deeppcr::testing
