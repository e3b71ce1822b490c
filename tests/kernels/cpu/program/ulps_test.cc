// SPDX-License-Identifier: Apache-2.0
// The rounding of every elementwise operation, against what its row states, and special values.
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

// The floats next to every multiple of pi / 2 up to 2^20, of which few digits are left, and beyond.
std::vector<float> AnglesNextToMultiples() {
  constexpr double kHalfPi = 1.57079632679489661923;
  std::vector<float> angles;
  for (int64_t k = 1; static_cast<double>(k) * kHalfPi < 0x1.01p20; ++k) {
    const auto angle = static_cast<float>(static_cast<double>(k) * kHalfPi);
    for (const float x : {std::nextafter(angle, 0.0F), angle, std::nextafter(angle, 0x1p30F)})
      angles.push_back(k % 2 == 0 ? x : -x);
  }
  angles.resize(angles.size() / 16 * 16);
  return angles;
}

TEST_P(UlpsTest, SinesNextToTheirZerosRoundAsElsewhereWhateverIsBeside) {
  const ProgramKernels kernels = testing::KernelsOfThisMachine()[GetParam()].set.program();
  std::vector<float> angles = AnglesNextToMultiples();
  std::vector<size_t> order(angles.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  std::vector<float> mixed(angles.size());
  for (size_t i = 0; i < order.size(); ++i) mixed[i] = angles[order[i]];
  for (const Op op : {Op::kSin, Op::kCos}) {
    const auto values_of = [&](const std::vector<float>& of) {
      const float* const operands[] = {of.data()};
      std::vector<float> values(of.size());
      kernels.elementwise[static_cast<int>(op)].value(operands, values.data(), std::ssize(values));
      return values;
    };
    const std::vector<float> values = values_of(angles), shuffled = values_of(mixed);
    int64_t false_ones = 0, others = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      const double x = angles[i], exact = op == Op::kSin ? std::sin(x) : std::cos(x);
      const double units = std::fabs(values[i] - exact) / std::fabs(exact) * 0x1p24;
      if (!(units <= program::UlpsAt(op, angles[i]))) ++false_ones;
      if (shuffled[i] != values[order[i]]) ++others;
    }
    EXPECT_EQ(false_ones, 0) << program::RowOf(op).name;
    EXPECT_EQ(others, 0) << program::RowOf(op).name;
  }
}

// Where functions have values of their own, or none: both zeros, subnormal floats, infinities, NaN.
const float kSpecial[] = {0.0F,
                          -0.0F,
                          0x1p-149F,
                          -0x1.8p-130F,
                          0x1p-126F,
                          0.5F,
                          -0.5F,
                          0x1.fffffep-1F,
                          1.0F,
                          -1.0F,
                          0x1.000002p0F,
                          2.0F,
                          -2.0F,
                          -3.0F,
                          5.0F,
                          0x1.000002p24F,
                          -0x1.fffffep23F,
                          0x1p100F,
                          -std::numeric_limits<float>::max(),
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()};

// Of results that are no normal floats: the same NaN, infinity or zero, or the next subnormal one.
bool IsSame(float result, double exact) {
  if (std::isnan(exact)) return std::isnan(result);
  const auto rounded = static_cast<float>(exact);
  if (std::isinf(rounded) || exact == 0)
    return result == rounded && std::signbit(result) == std::signbit(rounded);
  return std::fabs(result - exact) <= std::numeric_limits<float>::denorm_min();
}

TEST_P(UlpsTest, SpecialValuesAreThoseOfTheCLibrary) {
  const ProgramKernels kernels = testing::KernelsOfThisMachine()[GetParam()].set.program();
  std::vector<float> first, second;
  for (const float a : kSpecial) {
    for (const float b : kSpecial) {
      first.push_back(a);
      second.push_back(b);
    }
  }
  while (first.size() % 16 != 0) {
    first.push_back(1);
    second.push_back(1);
  }
  const float* const operands[] = {first.data(), second.data()};
  std::vector<float> results(first.size());
  for (const Op op : {Op::kLog, Op::kAtan, Op::kErf, Op::kFloor, Op::kPower}) {
    kernels.elementwise[static_cast<int>(op)].value(operands, results.data(), std::ssize(results));
    for (size_t i = 0; i < results.size(); ++i) {
      const double a[] = {first[i], second[i]};
      const double exact = program::ElementwiseRowOf(op).value(a);
      const bool is_normal = std::isnormal(exact) && std::isnormal(static_cast<float>(exact));
      const double units = std::fabs(results[i] - exact) / std::fabs(exact) * 0x1p24;
      EXPECT_TRUE(is_normal ? units <= program::RowOf(op).ulps : IsSame(results[i], exact))
          << program::RowOf(op).name << " of " << first[i] << " and " << second[i] << ": "
          << results[i] << ", not " << exact;
    }
  }
}

// Whatever is beside an element, and in whichever lane of a short or long run it is.
TEST_P(UlpsTest, NoElementDependsOnItsPlace) {
  const ProgramKernels kernels = testing::KernelsOfThisMachine()[GetParam()].set.program();
  std::mt19937 random(2);
  const std::vector<float> all[] = {Positions(random), Positions(random), Positions(random)};
  constexpr int64_t kRun = 16 * 9;  // vectors by fours and one by one
  for (const OpRow& row : program::kOps) {
    if (row.kind != OpKind::kElementwise) continue;
    const auto value = kernels.elementwise[static_cast<int>(row.op)].value;
    std::vector<float> whole(kRun), shifted(kRun);
    const float* operands[kMostOperands] = {};
    for (int k = 0; k < row.operands; ++k) operands[k] = all[k].data();
    value(operands, whole.data(), kRun);
    for (int64_t by = 1; by < kRun; ++by) {
      for (int k = 0; k < row.operands; ++k) operands[k] = all[k].data() + by;
      value(operands, shifted.data(), kRun);
      ASSERT_EQ(std::memcmp(shifted.data(), whole.data() + by, (kRun - by) * sizeof(float)), 0)
          << row.name << " by " << by;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, UlpsTest,
                         ::testing::Range(size_t{0}, testing::KernelsOfThisMachine().size()),
                         [](const auto& test) {
                           return testing::KernelsOfThisMachine()[test.param].name;
                         });

}  // namespace
}  // namespace deeppcr::cpu
