// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROBLEM_PHILOX_H_
#define DEEPPCR_KERNELS_PROBLEM_PHILOX_H_

// Noise as a pure function of (seed, sample, step, element): every caller, in any order and in any
// batch, gets the same numbers. Philox 4x32 with 10 rounds (Salmon et al. 2011, "Parallel random
// numbers: as easy as 1, 2, 3") passes BigCrush also over such structured counters.
//
//   key      seed mod 2^32, seed / 2^32
//   counter  element / 4, step, sample mod 2^32, sample / 2^32
//   output   four words, for the elements 4 k, 4 k + 1, 4 k + 2, 4 k + 3 of a state
//
// Normals by Box and Muller from the word pairs (w0, w1) and (w2, w3), in double:
//
//   radius = sqrt(-2 log((w0 + 0.5) 2^-32)),  angle = w1 (2 pi 2^-32)
//   element 0: float(radius cos(angle)),  element 1: float(radius sin(angle))
//
// The arguments of log, cos and sin have the same bits everywhere (the first is exact, the second
// one rounded product), and doubles good to a few ulp round to floats within 1 ulp of each other:
// normals differ by at most 1 ulp between devices, and not at all on one device. Magnitudes are at
// most sqrt(66 log 2) = 6.77.
//
// C++17 and the standard library only: nvcc compiles this file too, and takes constexpr functions
// for the device (--expt-relaxed-constexpr). Thread-safe.

#include <array>
#include <cmath>
#include <cstdint>

namespace deeppcr {

using PhiloxWords = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

// Step number of the noise that a reverse process starts from; reverse step i has the number i.
inline constexpr uint32_t kInitialNoiseStep = 0xFFFFFFFFu;

namespace philox_internal {

constexpr uint32_t Low(uint64_t value) { return static_cast<uint32_t>(value); }
constexpr uint32_t High(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

constexpr PhiloxWords Round(const PhiloxWords& counter, const PhiloxKey& key) {
  const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
  const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
  return {High(product1) ^ counter[1] ^ key[0], Low(product1), High(product0) ^ counter[3] ^ key[1],
          Low(product0)};
}

// Adds the Weyl constants of Philox: the golden ratio and sqrt(3) - 1.
constexpr PhiloxKey NextKey(const PhiloxKey& key) {
  return {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
}

}  // namespace philox_internal

// Philox 4x32-10 itself.
constexpr PhiloxWords Philox4x32(PhiloxWords counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    counter = philox_internal::Round(counter, key);
    key = philox_internal::NextKey(key);
  }
  return counter;
}

// The words of elements 4 `quad` ... 4 `quad` + 3.
constexpr PhiloxWords NoiseWords(uint64_t seed, uint64_t sample, uint32_t step, uint32_t quad) {
  using philox_internal::High;
  using philox_internal::Low;
  return Philox4x32({quad, step, Low(sample), High(sample)}, {Low(seed), High(seed)});
}

// The two normals of two words. A template because clang refuses a constexpr function that can
// never be a constant, and nvcc wants one.
template <typename Real = double>
constexpr std::array<float, 2> BoxMuller(uint32_t word0, uint32_t word1) {
  constexpr Real kUnit = Real(1) / Real(4294967296.0);
  constexpr Real kTwoPi = Real(6.283185307179586476925286766559);
  const Real radius = std::sqrt(Real(-2) * std::log((Real(word0) + Real(0.5)) * kUnit));
  const Real angle = Real(word1) * (kTwoPi * kUnit);
  return {static_cast<float>(radius * std::cos(angle)),
          static_cast<float>(radius * std::sin(angle))};
}

// The normals of elements 4 `quad` ... 4 `quad` + 3.
template <typename Real = double>
constexpr std::array<float, 4> NormalQuad(uint64_t seed, uint64_t sample, uint32_t step,
                                          uint32_t quad) {
  const PhiloxWords words = NoiseWords(seed, sample, step, quad);
  const std::array<float, 2> front = BoxMuller<Real>(words[0], words[1]);
  const std::array<float, 2> back = BoxMuller<Real>(words[2], words[3]);
  return {front[0], front[1], back[0], back[1]};
}

// The normals of elements 0 ... `count` - 1 of one sample at one step. `count` at most 2^34.
template <typename Real = double>
constexpr void FillNormals(uint64_t seed, uint64_t sample, uint32_t step, int64_t count,
                           float* normals) {
  for (int64_t begin = 0; begin < count; begin += 4) {
    const auto quad = static_cast<uint32_t>(begin / 4);
    const std::array<float, 4> values = NormalQuad<Real>(seed, sample, step, quad);
    for (int64_t i = begin; i < count && i < begin + 4; ++i) {
      normals[i] = values[static_cast<uint32_t>(i - begin)];
    }
  }
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PROBLEM_PHILOX_H_
