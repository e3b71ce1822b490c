// SPDX-License-Identifier: Apache-2.0
// The rounding of every elementwise operation, against what its row states.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/program/kernels.h"
#include "kernels/program/elementwise.h"
#include "tests/kernels/cpu/diffusion/plain_diffusion.h"

namespace deeppcr::cpu {
namespace {

using program::Op;
using program::OpKind;
using program::OpRow;

constexpr int64_t kPositions = 1 << 12;
constexpr double kMostStated = 1000;  // more than any row states

float FromBits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// Positions of all sizes, and as many where functions bend.
std::vector<float> Positions(std::mt19937& random) {
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> positions;
  while (std::ssize(positions) < kPositions) {
    float x = FromBits(static_cast<uint32_t>(random()));
    if (positions.size() % 2 == 0) x = normal(random);
    if (positions.size() % 4 == 0) x *= 8;
    if (std::fpclassify(x) == FP_NORMAL) positions.push_back(x);
  }
  return positions;
}

class UlpsTest : public ::testing::TestWithParam<size_t> {};

TEST_P(UlpsTest, NoOperationRoundsMoreThanItsRowStates) {
  const KernelSet& set = testing::KernelsOfThisMachine()[GetParam()].set;
  const ProgramKernels kernels = set.program();
  std::mt19937 random(1);
  for (const OpRow& row : program::kOps) {
    if (row.kind != OpKind::kElementwise) continue;
    int false_ones = 0;
    double worst = 0, at_worst = kMostStated, at[kMostOperands] = {};
    for (int round = 0; round < 64; ++round) {
      std::vector<std::vector<float>> operands;
      const float* pointers[kMostOperands] = {};
      for (int k = 0; k < row.operands; ++k) {
        operands.push_back(Positions(random));
        pointers[k] = operands.back().data();
      }
      std::vector<float> results(kPositions);
      kernels.elementwise[static_cast<int>(row.op)].value(pointers, results.data(), kPositions);
      for (size_t i = 0; i < results.size(); ++i) {
        double a[kMostOperands] = {};
        for (int k = 0; k < row.operands; ++k) a[k] = pointers[k][i];
        const double exact = program::ElementwiseRowOf(row.op).value(a);
        // Beyond, and among subnormal floats, there are no units of the result.
        if (!(std::fabs(exact) < std::numeric_limits<float>::max()) ||
            std::fabs(exact) < std::numeric_limits<float>::min())
          continue;
        const double units = std::fabs(results[i] - exact) / std::fabs(exact) * 0x1p24;
        const double stated = program::UlpsAt(row.op, pointers[0][i]);
        if (units > stated) ++false_ones;
        if (units - stated > worst - at_worst) {
          worst = units;
          at_worst = stated;
          std::copy_n(a, kMostOperands, at);
        }
      }
    }
    EXPECT_EQ(false_ones, 0) << row.name << " at " << at[0] << " " << at[1] << ": " << worst
                             << " units, " << at_worst << " stated";
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, UlpsTest,
                         ::testing::Range(size_t{0}, testing::KernelsOfThisMachine().size()),
                         [](const auto& test) {
                           return testing::KernelsOfThisMachine()[test.param].name;
                         });

}  // namespace
}  // namespace deeppcr::cpu
