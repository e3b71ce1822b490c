// SPDX-License-Identifier: Apache-2.0
#include "kernels/problem/philox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace deeppcr {
namespace {

constexpr int64_t kDraws = 1'000'000;
constexpr double kSigmas = 5.0;

// The three lines of `philox4x32 10` in Random123's tests/kat_vectors. kZeros is a compile-time
// constant.
constexpr PhiloxWords kZeros = Philox4x32({0, 0, 0, 0}, {0, 0});

TEST(PhiloxTest, AnswersAsRandom123) {
  EXPECT_EQ(kZeros, (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, LaysOutCounterAndKeyAsDocumented) {
  EXPECT_EQ(NoiseWords(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3, 0x243f6a88),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

int32_t BitsOf(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// The documented formula in long double: a device with perfect double functions would round this.
TEST(BoxMullerTest, IsTheDocumentedFormulaWithinOneUlp) {
  for (uint32_t quad = 0; quad < 10'000; ++quad) {
    const PhiloxWords words = NoiseWords(1, 2, 3, quad);
    const long double radius =
        std::sqrt(-2.0L * std::log((static_cast<long double>(words[0]) + 0.5L) / 4294967296.0L));
    const long double angle = words[1] * (6.283185307179586476925286766559 / 4294967296.0);
    const auto [first, second] = BoxMuller(words[0], words[1]);
    EXPECT_LE(std::abs(BitsOf(first) - BitsOf(static_cast<float>(radius * std::cos(angle)))), 1);
    EXPECT_LE(std::abs(BitsOf(second) - BitsOf(static_cast<float>(radius * std::sin(angle)))), 1);
  }
}

TEST(BoxMullerTest, IsFiniteAtTheEndsOfTheWords) {
  constexpr uint32_t kMax = std::numeric_limits<uint32_t>::max();
  for (const uint32_t word0 : {0U, kMax}) {
    for (const uint32_t word1 : {0U, 1U << 30, 1U << 31, 3U << 30, kMax}) {
      const auto [first, second] = BoxMuller(word0, word1);
      EXPECT_LE(std::hypot(first, second), 6.77F);
    }
  }
  EXPECT_FLOAT_EQ(BoxMuller(0, 0)[0], std::sqrt(66.0F * std::log(2.0F)));
  EXPECT_FLOAT_EQ(BoxMuller(0, 1U << 30)[1], std::sqrt(66.0F * std::log(2.0F)));
}

// Normals, [samples, steps, elements].
std::vector<float> Draw(uint64_t seed, uint64_t first_sample, int64_t samples, int64_t steps,
                        int64_t elements) {
  std::vector<float> normals(static_cast<size_t>(samples * steps * elements));
  float* next = normals.data();
  for (int64_t sample = 0; sample < samples; ++sample) {
    for (int64_t step = 0; step < steps; ++step, next += elements) {
      FillNormals(seed, first_sample + static_cast<uint64_t>(sample), static_cast<uint32_t>(step),
                  elements, next);
    }
  }
  return normals;
}

double MeanPower(const std::vector<float>& values, int power) {
  double sum = 0;
  for (const float value : values) sum += std::pow(static_cast<double>(value), power);
  return sum / static_cast<double>(values.size());
}

TEST(NormalsTest, HasTheMomentsOfANormal) {
  const std::vector<float> normals = Draw(7, 0, 100, 1000, kDraws / 100'000);
  ASSERT_EQ(normals.size(), size_t{kDraws});
  const double root = std::sqrt(static_cast<double>(kDraws));

  // The variances of the k-th powers of a normal are 1, 2, 15 and 96.
  EXPECT_NEAR(MeanPower(normals, 1), 0.0, kSigmas / root);
  EXPECT_NEAR(MeanPower(normals, 2), 1.0, kSigmas * std::sqrt(2.0) / root);
  EXPECT_NEAR(MeanPower(normals, 3), 0.0, kSigmas * std::sqrt(15.0) / root);
  EXPECT_NEAR(MeanPower(normals, 4), 3.0, kSigmas * std::sqrt(96.0) / root);
}

TEST(NormalsTest, HasTheDistributionOfANormal) {
  std::vector<float> normals = Draw(8, 0, 10, 10, kDraws / 100);
  std::sort(normals.begin(), normals.end());

  double distance = 0;  // Kolmogorov-Smirnov distance
  for (size_t i = 0; i < normals.size(); ++i) {
    const double expected = 0.5 * std::erfc(-static_cast<double>(normals[i]) / std::sqrt(2.0));
    const double found = (static_cast<double>(i) + 0.5) / static_cast<double>(kDraws);
    ASSERT_TRUE(std::isfinite(normals[i]));
    distance = std::max(distance, std::abs(expected - found));
  }
  // The share of seeds beyond this bound is 2 exp(-2 x 2.5^2) = 7e-6.
  EXPECT_LT(distance, 2.5 / std::sqrt(static_cast<double>(kDraws)));
}

double Correlation(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum / static_cast<double>(a.size());
}

constexpr int64_t kSide = 100;  // kSide^3 draws

size_t At(int64_t sample, int64_t step, int64_t element) {
  return static_cast<size_t>((sample * kSide + step) * kSide + element);
}

TEST(NormalsTest, DoesNotCorrelateBetweenNeighbours) {
  const std::vector<float> normals = Draw(9, 0, kSide, kSide, kSide);
  std::vector<float> by_sample(normals.size());
  std::vector<float> by_step(normals.size());
  std::vector<float> by_element(normals.size());
  for (int64_t sample = 0; sample < kSide; ++sample) {
    for (int64_t step = 0; step < kSide; ++step) {
      for (int64_t element = 0; element < kSide; ++element) {
        const size_t here = At(sample, step, element);
        by_sample[here] = normals[At((sample + 1) % kSide, step, element)];
        by_step[here] = normals[At(sample, (step + 1) % kSide, element)];
        by_element[here] = normals[At(sample, step, (element + 1) % kSide)];
      }
    }
  }
  const double bound = kSigmas / std::sqrt(static_cast<double>(kDraws));
  EXPECT_LT(std::abs(Correlation(normals, by_sample)), bound);
  EXPECT_LT(std::abs(Correlation(normals, by_step)), bound);
  EXPECT_LT(std::abs(Correlation(normals, by_element)), bound);
  EXPECT_LT(std::abs(Correlation(normals, Draw(10, 0, kSide, kSide, kSide))), bound);
}

TEST(NormalsTest, DoesNotDependOnTheBatchSplit) {
  for (const int64_t elements : {1, 2, 3, 4, 5, 31, 32, 33, 65}) {
    const std::vector<float> whole = Draw(11, 0, 8, 3, elements);
    std::vector<float> parts = Draw(11, 0, 3, 3, elements);
    const std::vector<float> rest = Draw(11, 3, 5, 3, elements);
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(whole, parts) << elements;
  }
}

TEST(NormalsTest, DoesNotDependOnTheNumberOfElements) {
  std::vector<float> many(65);
  FillNormals(12, 34, 56, 65, many.data());
  for (const int64_t count : {0, 1, 2, 31, 32, 33, 64}) {
    std::vector<float> few(static_cast<size_t>(count));
    FillNormals(12, 34, 56, count, few.data());
    EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin())) << count;
  }
}

TEST(NormalsTest, DiffersInEveryArgument) {
  const auto normals = NormalQuad(1, 2, 3, 4);
  const uint64_t high = uint64_t{1} << 32;
  EXPECT_NE(normals, NormalQuad(1 + high, 2, 3, 4));
  EXPECT_NE(normals, NormalQuad(2, 2, 3, 4));
  EXPECT_NE(normals, NormalQuad(1, 2 + high, 3, 4));
  EXPECT_NE(normals, NormalQuad(1, 3, 3, 4));
  EXPECT_NE(normals, NormalQuad(1, 2, kInitialNoiseStep, 4));
  EXPECT_NE(normals, NormalQuad(1, 2, 4, 4));
  EXPECT_NE(normals, NormalQuad(1, 2, 3, 5));
}

}  // namespace
}  // namespace deeppcr
