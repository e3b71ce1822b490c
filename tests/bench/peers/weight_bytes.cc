// SPDX-License-Identifier: Apache-2.0
// No peer: what it takes to read the weights of a denoiser, and nothing else. Every step reads each
// matrix once, in the order in which a denoiser multiplies with it, by loads of 64 bytes that are
// added up in registers.

#include <cstdint>

#include "tests/bench/peers/peers.h"

namespace {

typedef uint32_t Line __attribute__((vector_size(64)));
constexpr int kSums = 8;

struct Sums {
  Line lines[kSums];
};

inline void Read(const float* matrix, int64_t floats, Sums& sums) {
  const auto* line = reinterpret_cast<const Line*>(matrix);
  for (int64_t i = 0; i < floats / 16; i += kSums) {
    for (int s = 0; s < kSums; ++s) sums.lines[s] += line[i + s];
  }
}

inline uint32_t Total(const Sums& sums) {
  uint32_t total = 0;
  for (const Line& line : sums.lines) {
    for (int i = 0; i < 16; ++i) total += line[i];
  }
  return total;
}

}  // namespace

// Writes the sum of all words that were read, modulo 2^32: its low and its high 16 bits.
extern "C" int weight_bytes_run(const void* problem, const void*, const void*, void* y) {
  const auto& p = *static_cast<const PeerProblem*>(problem);
  const int64_t square = p.hidden * p.hidden, ends = p.dim * p.hidden;
  if (ends % (16 * kSums) != 0 || p.kind == kPeerStack) return 1;
  Sums sums = {};
  for (int64_t step = 0; step < p.steps; ++step) {
    asm volatile("" ::: "memory");  // the next step reads them again
    Read(p.input.weight, ends, sums);
    for (int64_t i = 0; i < p.blocks; ++i) {
      Read(p.first + i * square, square, sums);
      if (p.second != nullptr) Read(p.second + i * square, square, sums);
    }
    Read(p.output.weight, ends, sums);
  }
  const uint32_t total = Total(sums);
  static_cast<float*>(y)[0] = static_cast<float>(total & 0xFFFF);
  static_cast<float*>(y)[1] = static_cast<float>(total >> 16);
  return 0;
}

// The sum of `floats` words, a multiple of 128, read `steps` times, modulo 2^32.
extern "C" uint32_t weight_bytes_read(const float* weights, int64_t floats, int64_t steps) {
  Sums sums = {};
  for (int64_t step = 0; step < steps; ++step) {
    asm volatile("" ::: "memory");
    Read(weights, floats, sums);
  }
  return Total(sums);
}
