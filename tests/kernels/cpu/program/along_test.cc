// SPDX-License-Identifier: Apache-2.0
// Reductions, norms and softmax along an axis: a line has the bits that it has alone, whatever
// lines are taken with it, and nothing beyond the lines is read or written.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/program/kernels.h"
#include "tests/kernels/cpu/diffusion/plain_diffusion.h"

namespace deeppcr::cpu {
namespace {

using program::Op;
using program::OpKind;

constexpr float kUntouched = 12345;

// Rows of `lines` lines, with a margin behind each row.
struct LinesShape {
  int64_t rows, lines, length;
  int64_t floats() const { return lines * length + 3; }
};

struct LinesMade {
  std::vector<float> out, moments, tangents;
};

class AlongTest : public ::testing::TestWithParam<size_t> {
 protected:
  // Lines of all rows, and their tangents, of which each row is one.
  LinesMade Run(Op op, const LinesShape& shape, const float* in, const float* tangents) const {
    const bool reduces = program::RowOf(op).kind == OpKind::kReduction;
    const int64_t n = shape.floats(), out_n = reduces ? shape.lines + 3 : n;
    LinesMade made = {.out = std::vector<float>(shape.rows * out_n, kUntouched),
                      .moments = std::vector<float>(shape.rows * 2 * shape.lines),
                      .tangents = std::vector<float>(shape.rows * out_n, kUntouched)};
    kernels_.along({.op = op,
                    .lines = shape.lines,
                    .length = shape.length,
                    .epsilon = 1e-5F,
                    .in = in,
                    .out = made.out.data(),
                    .moments = reduces ? nullptr : made.moments.data(),
                    .rows = shape.rows,
                    .in_n = n,
                    .out_n = out_n,
                    .moments_n = 2 * shape.lines});
    kernels_.along_tangent({.op = op,
                            .lines = shape.lines,
                            .length = shape.length,
                            .in = in,
                            .out = made.out.data(),
                            .moments = reduces ? nullptr : made.moments.data(),
                            .tangents = tangents,
                            .results = made.tangents.data(),
                            .columns = shape.rows,
                            .in_n = n,
                            .out_n = out_n});
    return made;
  }

  const ProgramKernels kernels_ = testing::KernelsOfThisMachine()[GetParam()].set.program();
};

void ExpectSame(const float* got, const float* wanted, int64_t count, const std::string& what) {
  EXPECT_EQ(std::memcmp(got, wanted, count * sizeof(float)), 0) << what;
}

TEST_P(AlongTest, ALineHasTheBitsThatItHasAlone) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const program::OpRow& row : program::kOps) {
    const bool reduces = row.kind == OpKind::kReduction;
    if (!reduces && row.kind != OpKind::kAlongAxis) continue;
    for (const int64_t length : {1, 2, 3, 5, 7, 8, 9, 12, 16, 17, 31, 64, 65, 200}) {
      for (const auto& [rows, lines] :
           {std::pair(1, 1), {1, 2}, {1, 3}, {3, 5}, {2, 16}, {4, 17}}) {
        const LinesShape shape = {rows, lines, length};
        std::vector<float> in(rows * shape.floats()), tangents(in.size());
        for (float& x : in) x = normal(random);
        for (float& x : tangents) x = normal(random);
        const LinesMade all = Run(row.op, shape, in.data(), tangents.data());
        const int64_t each = reduces ? 1 : length, out_n = reduces ? lines + 3 : shape.floats();
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t l = 0; l < lines; ++l) {
            const int64_t at = r * shape.floats() + l * length, to = r * out_n + l * each;
            // Tangents are of the first row.
            const LinesMade alone =
                Run(row.op, {1, 1, length}, in.data() + at, tangents.data() + at);
            const LinesMade moved =
                Run(row.op, {1, 1, length}, in.data() + l * length, tangents.data() + at);
            const std::string what = std::string(row.name) + " of " + std::to_string(length) +
                                     ", row " + std::to_string(r) + ", line " + std::to_string(l);
            ExpectSame(&all.out[to], alone.out.data(), each, what);
            ExpectSame(&all.tangents[to], moved.tangents.data(), each, what);
            if (!reduces)
              ExpectSame(&all.moments[2 * (r * lines + l)], alone.moments.data(), 2, what);
          }
          for (int64_t i = lines * each; i < out_n; ++i) {
            EXPECT_EQ(all.out[r * out_n + i], kUntouched) << row.name << " of " << length;
            EXPECT_EQ(all.tangents[r * out_n + i], kUntouched) << row.name << " of " << length;
          }
        }
      }
    }
  }
}

// In whichever lane a NaN is, its line shows it and no other line does.
TEST_P(AlongTest, ANaNStaysInItsLine) {
  for (const program::OpRow& row : program::kOps) {
    const bool reduces = row.kind == OpKind::kReduction;
    if (!reduces && row.kind != OpKind::kAlongAxis) continue;
    const LinesShape shape = {1, 5, 21};
    for (int64_t at = 0; at < shape.lines * shape.length; ++at) {
      std::vector<float> in(shape.floats());
      for (size_t i = 0; i < in.size(); ++i) in[i] = -1 - static_cast<float>(i % 7);
      const std::vector<float> tangents(in.size(), 1);
      in[at] = std::numeric_limits<float>::quiet_NaN();
      const LinesMade made = Run(row.op, shape, in.data(), tangents.data());
      const int64_t each = reduces ? 1 : shape.length;
      for (int64_t i = 0; i < shape.lines * each; ++i) {
        EXPECT_EQ(std::isnan(made.out[i]), i / each == at / shape.length)
            << row.name << " element " << i << ", NaN at " << at;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, AlongTest,
                         ::testing::Range(size_t{0}, testing::KernelsOfThisMachine().size()),
                         [](const auto& test) {
                           return testing::KernelsOfThisMachine()[test.param].name;
                         });

}  // namespace
}  // namespace deeppcr::cpu
