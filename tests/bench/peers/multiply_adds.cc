// SPDX-License-Identifier: Apache-2.0
// No peer: what it takes to multiply and add so many times, and nothing else. Every number stays in
// a register, and no result waits for the one before it.

#include <cstdint>

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Lanes __attribute__((vector_size(kLanes * 4)));
// As many as hide the latency of a product and leave registers for two factors.
constexpr int kSums = 12;

}  // namespace

// The sum of what `count` multiply-adds left, rounded up to a multiple of kSums vectors.
extern "C" float multiply_adds_run(int64_t count) {
  Lanes sums[kSums] = {}, factor = {}, term = {};
  for (int i = 0; i < kLanes; ++i) {
    factor[i] = 0.5F;
    term[i] = static_cast<float>(i);
  }
  // Held in registers, and unknown to the compiler.
  asm volatile("" : "+x"(factor), "+x"(term));
  for (int64_t done = 0; done < count; done += kSums * kLanes) {
    for (int s = 0; s < kSums; ++s) sums[s] = sums[s] * factor + term;
  }
  float total = 0;
  for (const Lanes& sum : sums) {
    for (int i = 0; i < kLanes; ++i) total += sum[i];
  }
  return total;
}
