// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_CPU_DIFFUSION_DIFFUSION_PROCESS_H_
#define DEEPPCR_TESTS_KERNELS_CPU_DIFFUSION_DIFFUSION_PROCESS_H_

// A reverse process on the CPU backend and in plain loops, for every instruction set and denoiser.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/program/system.h"
#include "kernels/problem/philox.h"
#include "tests/kernels/cpu/diffusion/plain_diffusion.h"

namespace deeppcr::testing {

// A model with a recurrence and one encoded sample.
class Process {
 public:
  Process(const DiffusionOptions& options, const cpu::KernelSet& set,
          int64_t max_class_bytes = cpu::kMaxClassBytes)
      : random(options),
        packed(*cpu::PackProgramSystem(random.spec(), set, {}, max_class_bytes)),
        recurrence(packed->NewRecurrence()),
        dim(options.state_dim),
        steps(options.num_steps),
        width(packed->width) {}

  std::vector<float> Encode(const SampleInput& input, int32_t sample = 0) {
    std::vector<float> z(width);
    recurrence->Encode(sample, input, z.data());
    return z;
  }
  // The states z_0 .. z_L of sample 0, [L + 1, D].
  std::vector<float> Trajectory(const SampleInput& input) {
    std::vector<float> z = Encode(input), trajectory((steps + 1) * dim);
    std::copy_n(z.begin(), dim, trajectory.begin());
    float* to = trajectory.data();
    EXPECT_EQ(recurrence->Advance(z.data(), 1, 0, steps, &to), steps);
    return trajectory;
  }
  std::vector<float> FinalState(const SampleInput& input) {
    const std::vector<float> trajectory = Trajectory(input);
    return {trajectory.end() - dim, trajectory.end()};
  }
  // The noise of step i from the generator.
  std::vector<float> Noise(const SampleInput& input, int64_t i) const {
    std::vector<float> noise(dim);
    FillNormals(input.seed, input.sample, static_cast<uint32_t>(i), dim, noise.data());
    return noise;
  }
  // The state after the plain steps (begin, end] of the sample of `input`, starting at z.
  template <class T>
  Values<T> Plain(const SampleInput& input, int64_t begin, int64_t end, Values<T> z,
                  const auto& modulation) const {
    for (int64_t l = begin; l < end; ++l)
      z = PlainStep(random.spec(), l, modulation(l), Noise(input, l).data(), z);
    return z;
  }
  template <class T>
  Values<T> PlainFrom(const SampleInput& input, int64_t begin, int64_t end, const Values<T>& z,
                      const Values<T>& condition = {}) const {
    return Plain(input, begin, end, z,
                 [&](int64_t l) { return PlainModulation<T>(random.spec(), l, condition); });
  }

  const cpu::PackedProgramSystem& model() const {
    return static_cast<const cpu::PackedProgramSystem&>(*packed);
  }

  RandomDiffusion random;
  std::unique_ptr<cpu::PackedSystem> packed;
  std::unique_ptr<cpu::Recurrence> recurrence;
  const int64_t dim, steps, width;
};

// An instruction set of this machine, by its index, and a denoiser.
using SetAndKind = std::tuple<size_t, DenoiserKind>;

class SetAndKindTest : public ::testing::TestWithParam<SetAndKind> {
 protected:
  const cpu::KernelSet& set() const { return KernelsOfThisMachine()[std::get<0>(GetParam())].set; }
  DenoiserKind kind() const { return std::get<1>(GetParam()); }
};

inline auto EverySetAndKind() {
  return ::testing::Combine(::testing::Range(size_t{0}, KernelsOfThisMachine().size()),
                            ::testing::Values(DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp));
}

inline std::string SetAndKindName(const SetAndKind& param) {
  const auto [set, kind] = param;
  return absl::StrCat(KernelsOfThisMachine()[set].name, "_", KindName(kind));
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_KERNELS_CPU_DIFFUSION_DIFFUSION_PROCESS_H_
