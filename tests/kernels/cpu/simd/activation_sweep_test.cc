// SPDX-License-Identifier: Apache-2.0
// Every activation over all floats, on every instruction set of this machine: its distance from the
// exact value, and whether it keeps order, range and NaNs. DEEPPCR_TEST_BLOCKS says which blocks of
// floats: by default one in 61, which takes seconds; `bends`, those where an activation bends and
// one in 8 of the others, minutes; `all`, a quarter of an hour.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/control_group.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cpu/simd/exact_activation.h"
#include "tests/testing/packed_layers.h"

namespace deeppcr::testing {
namespace {

constexpr int64_t kBlock = 4096;  // consecutive floats
constexpr uint64_t kFloats = uint64_t{1} << 32;

// The promised accuracy, in units in the last place of the exact value.
struct Promise {
  Activation activation;
  double normal;    // accuracy of values from the least normal float on
  double denormal;  // accuracy of smaller values, where floats are 2^-149 apart
  bool monotone;    // never falls
};

constexpr Promise kPromises[] = {
    {Activation::kIdentity, 0, 0, true},
    {Activation::kRelu, 0, 0, true},
    {Activation::kLeakyRelu, 1.5, 1, true},
    {Activation::kTanh, 5, 1, true},
    {Activation::kSigmoid, 5, 5, false},
    {Activation::kSilu, 5, 5, false},
    {Activation::kGelu, 5, 5, false},
    // An argument of up to 88, rounded three times, becomes an exponent. Values below the least
    // normal float are at most half as large, and so are their errors.
    {Activation::kGeluTanh, 264, 132, false},
    {Activation::kElu, 5, 5, false},
    {Activation::kSoftplus, 5, 5, false},
    {Activation::kMish, 5, 5, false},
};

struct Worst {
  double error = 0;
  float at = 0;
  void Add(double e, float x) {
    if (!(e <= error)) *this = {std::isnan(e) ? INFINITY : e, x};
  }
  void Add(const Worst& other) { Add(other.error, other.at); }
};

struct Findings {
  Worst normal, denormal, fall;  // `fall`: the largest decrease
  uint64_t falls = 0, nans_changed = 0, beyond_one = 0;

  void Add(const Findings& other) {
    normal.Add(other.normal);
    denormal.Add(other.denormal);
    fall.Add(other.fall);
    falls += other.falls;
    nans_changed += other.nans_changed;
    beyond_one += other.beyond_one;
  }
};

class Block {
 public:
  Block(Activation activation, uint64_t index) : activation_(activation) {
    const uint64_t first = index * kBlock;
    // The float before the block joins the block to the previous one: floats of one sign are in
    // order.
    const bool joined = (first & (kFloats / 2 - 1)) != 0;
    x_[0] = FloatOf(joined ? first - 1 : first);
    for (int64_t i = 1; i < kSize; ++i) x_[i] = FloatOf(first + std::min(i, kBlock) - 1);
    // All floats of a block have the same exponent.
    finite_ = std::isfinite(x_[1]);
    if (finite_) ExactActivation(activation_, x_, exact_, kSize);
  }

  void AddTo(const KernelSet& set, Findings* findings) {
    std::copy(x_, x_ + kSize, y_);
    set.kernels(4).activate(activation_, y_, kSize);
    if (!finite_) return AddNans(findings);
    const LargestErrors errors = ErrorsOf(y_, exact_, kSize);
    AddWorst(errors.normal, &findings->normal);
    AddWorst(errors.denormal, &findings->denormal);
    AddFalls(findings);
    int32_t beyond = 0;
    for (int64_t i = 0; i < kSize; ++i) beyond += std::fabs(y_[i]) > 1.0F;
    findings->beyond_one += beyond;
  }

 private:
  static constexpr int64_t kSize = kBlock + 4;

  static float FloatOf(uint64_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits)); }

  // Counts values that change between NaN and number, in a block of an infinity and NaNs, or of
  // NaNs.
  void AddNans(Findings* findings) const {
    for (int64_t i = 1; i < kSize; ++i)
      findings->nans_changed += std::isnan(x_[i]) != std::isnan(y_[i]);
  }

  void AddFalls(Findings* findings) const {
    const float up = std::signbit(x_[1]) ? -1.0F : 1.0F;
    int32_t falls = 0;
    for (int64_t i = 1; i < kSize; ++i) falls += up * y_[i] < up * y_[i - 1];
    if (falls == 0) return;
    findings->falls += falls;
    for (int64_t i = 1; i < kSize; ++i) findings->fall.Add(up * (double{y_[i - 1]} - y_[i]), x_[i]);
  }

  void AddWorst(double error, Worst* worst) const {
    if (!(error <= worst->error)) worst->Add(error, PlaceOf(error));
  }

  // The first of the four floats among which the error is.
  float PlaceOf(double error) const {
    for (int64_t i = 0; i < kSize; i += 4) {
      const LargestErrors here = ErrorsOf(y_ + i, exact_ + i, 4);
      if (here.normal == error || here.denormal == error) return x_[i];
    }
    return NAN;
  }

  const Activation activation_;
  bool finite_;
  alignas(64) float x_[kSize], y_[kSize];
  double exact_[kSize];
};

// Blocks to sweep, as DEEPPCR_TEST_BLOCKS says.
class Sample {
 public:
  Sample() {
    const char* text = std::getenv("DEEPPCR_TEST_BLOCKS");
    const std::string wanted = text == nullptr ? "" : text;
    all_ = wanted == "all";
    bends_ = wanted == "bends";
  }
  bool Has(uint64_t block) const {
    if (all_ || (bends_ && Bends(block))) return true;
    return block % (bends_ ? 8 : 61) == 0;
  }

 private:
  // True for denormal and the least normal floats, for 2^-40 <= |x| < 2^8, and for the largest
  // floats, infinities and NaNs. Elsewhere every activation is a straight line within
  // rounding.
  static bool Bends(uint64_t block) {
    const uint64_t exponent = (block * kBlock >> 23) & 255;
    return exponent <= 1 || (exponent >= 127 - 40 && exponent < 127 + 8) || exponent >= 254;
  }

  bool all_ = false, bends_ = false;
};

// The findings for every instruction set. Exact values take most of the time, so all sets share
// them.
std::vector<Findings> Sweep(Activation activation) {
  const std::vector<KernelSet>& sets = KernelSets();
  const Sample sample;
  std::atomic<uint64_t> next = 0;
  std::mutex mutex;
  std::vector<Findings> all(sets.size());
  const auto work = [&] {
    std::vector<Findings> own(sets.size());
    for (uint64_t i; (i = next.fetch_add(1)) < kFloats / kBlock;) {
      if (!sample.Has(i)) continue;
      Block block(activation, i);
      for (size_t k = 0; k < sets.size(); ++k) block.AddTo(sets[k], &own[k]);
    }
    const std::lock_guard lock(mutex);
    for (size_t k = 0; k < sets.size(); ++k) all[k].Add(own[k]);
  };
  std::vector<std::thread> threads(static_cast<size_t>(std::min(AvailableCores(), 8)));
  for (std::thread& t : threads) t = std::thread(work);
  for (std::thread& t : threads) t.join();
  return all;
}

std::string NameOf(Activation activation) {
  for (const ActivationName& row : kActivationNames)
    if (row.activation == activation) return std::string(row.name);
  return "?";
}

void Print(const KernelSet& set, const Promise& promise, const Findings& found) {
  std::printf(
      "%-8s %-10s %.2f ulp near %.9g; denormal %.2f near %.9g; falls %llu (%.3g at %.9g); "
      "beyond 1: %llu\n",
      set.name.c_str(), NameOf(promise.activation).c_str(), found.normal.error, found.normal.at,
      found.denormal.error, found.denormal.at, static_cast<unsigned long long>(found.falls),
      found.fall.error, found.fall.at, static_cast<unsigned long long>(found.beyond_one));
  std::fflush(stdout);
}

void ExpectKept(const Promise& promise, const Findings& found) {
  EXPECT_LE(found.normal.error, promise.normal) << "at " << found.normal.at;
  EXPECT_LE(found.denormal.error, promise.denormal) << "at " << found.denormal.at;
  EXPECT_EQ(found.nans_changed, 0U);
  if (promise.monotone) {
    EXPECT_EQ(found.falls, 0U) << "at " << found.fall.at;
  }
  if (promise.activation == Activation::kTanh) {
    EXPECT_EQ(found.beyond_one, 0U);
  }
}

TEST(ActivationSweepTest, KeepsWhatIsPromised) {
  if (cpu::DetectInstructionSet() < cpu::InstructionSet::kAvx2)
    GTEST_SKIP() << "the oracle needs AVX2";
  for (const Promise& promise : kPromises) {
    const std::vector<Findings> found = Sweep(promise.activation);
    for (size_t k = 0; k < found.size(); ++k) {
      const KernelSet& set = KernelSets()[k];
      SCOPED_TRACE(set.name + " " + NameOf(promise.activation));
      Print(set, promise, found[k]);
      ExpectKept(promise, found[k]);
    }
  }
}

// Checks the oracle itself by functions of the C library that share only their origin with the
// vectorised ones.
TEST(ExactActivationTest, IsTheReferenceInDouble) {
  if (cpu::DetectInstructionSet() < cpu::InstructionSet::kAvx2) GTEST_SKIP() << "needs AVX2";
  std::vector<float> x;
  for (uint64_t bits = 0; bits < kFloats; bits += 65537) {
    const float a = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isfinite(a)) x.push_back(a);
  }
  for (int i = -120 * 64; i <= 120 * 64; ++i) x.push_back(static_cast<float>(i) / 64.0F);
  std::vector<double> got(x.size());
  for (const ActivationName& row : kActivationNames) {
    ExactActivation(row.activation, x.data(), got.data(), std::ssize(x));
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = reference::Activate(row.activation, x[i]);
      const double size = std::max(std::fabs(want), double{FLT_MIN});
      ASSERT_NEAR(got[i], want, 1e-11 * size) << row.name << " at " << x[i];
    }
  }
}

}  // namespace
}  // namespace deeppcr::testing
