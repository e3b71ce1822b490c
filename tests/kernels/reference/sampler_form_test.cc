// SPDX-License-Identifier: Apache-2.0
// Memories and learned scales of the noise in the reference: a named denoiser, and the program that
// it is, against the formulas of kernels/problem/reverse_step.h and central differences.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kernels/program/denoiser_program.h"
#include "kernels/reference/diffusion_ops.h"
#include "kernels/reference/program_ops.h"
#include "tests/testing/random_diffusion.h"

namespace deeppcr::testing {
namespace {

using Vector = std::vector<double>;

constexpr int64_t kDim = 3;

struct FormCase {
  const char* name;
  SamplerForm form;
  bool clip = true;
};
constexpr FormCase kForms[] = {
    {"Memory", {.carries = true}},
    {"MemoryUnclipped", {.carries = true}, false},
    {"Range", {.noise_scale = NoiseScale::kLearnedRange}},
    {"Learned", {.noise_scale = NoiseScale::kLearned}},
    {"MemoryAndRange", {.carries = true, .noise_scale = NoiseScale::kLearnedRange}},
};

class SamplerFormTest : public ::testing::TestWithParam<FormCase> {
 protected:
  SamplerFormTest()
      : random_({.state_dim = kDim,
                 .num_steps = 6,
                 .clip = GetParam().clip,
                 .condition_dim = 2,
                 .form = GetParam().form,
                 .seed = 11}),
        spec_(random_.spec()),
        program_(*program::ProgramOfDenoiser(spec_)),
        of_program_(program::WithProgram(spec_, program_)),
        inputs_(random_.Vector(2)),
        noise_(random_.Vector(kDim)) {
    const int64_t size = GetParam().form.carries ? 2 * kDim : kDim;
    for (const float value : random_.Vector(size)) state_.push_back(0.4 * value);
  }

  // Calls check(step, condition, program's condition) for every step.
  template <class Check>
  void ForSteps(const Check& check) const {
    for (int64_t l = 0; l < spec_.num_steps(); ++l)
      check(l, reference::Condition(spec_, inputs_.data(), 0),
            reference::Condition(of_program_, inputs_.data(), 0));
  }

  RandomDiffusion random_;
  const DiffusionSpec& spec_;
  program::Program program_;
  DiffusionProgramSpec of_program_;
  std::vector<float> inputs_, noise_;
  Vector state_;
};

void ExpectNear(const Vector& got, const Vector& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << what;
}

TEST_P(SamplerFormTest, AStepIsTheFormulaOfItsElements) {
  const SamplerForm form = GetParam().form;
  ForSteps([&](int64_t l, const Vector& condition, const Vector& of_program) {
    const ReverseStep& step = spec_.steps[l];
    const Vector m =
        reference::Denoise(spec_, l, condition, std::span<const double>(state_).first(kDim));
    ASSERT_EQ(std::ssize(m), form.noise_scale == NoiseScale::kFixed ? kDim : 2 * kDim);
    Vector want(state_.size());
    for (int64_t i = 0; i < kDim; ++i) {
      double scale = 1;
      if (form.noise_scale == NoiseScale::kLearnedRange)
        scale = std::exp(step.sigma_v * m[kDim + i]);
      if (form.noise_scale == NoiseScale::kLearned)
        scale = std::sqrt(m[kDim + i] > 1e-20 ? m[kDim + i] : 1e-20);
      const double c = form.carries ? state_[kDim + i] : 0;
      double x0 = step.x0_z * state_[i] + step.x0_m * m[i];
      if (GetParam().clip) x0 = std::fmin(std::fmax(x0, -1), 1);
      want[i] = step.z_z * state_[i] + step.z_m * m[i] + step.z_x0 * x0 + step.z_c * c +
                step.sigma * scale * noise_[i];
      if (form.carries) want[kDim + i] = step.c_z * state_[i] + step.c_m * m[i] + step.c_x0 * x0;
    }
    ExpectNear(reference::Step(spec_, l, condition, noise_, state_), want, 1e-14, "named");
    // The program has time embeddings and constants as float32 does.
    ExpectNear(reference::Step(of_program_, l, of_program, noise_, state_), want, 1e-6, "program");
  });
}

TEST_P(SamplerFormTest, JacobiansAreThoseOfCentralDifferences) {
  constexpr double kDistance = 1e-6;
  const auto size = static_cast<int64_t>(state_.size());
  ForSteps([&](int64_t l, const Vector& condition, const Vector& of_program) {
    const auto differences = [&](const auto& spec, const Vector& c) {
      Vector jacobian(static_cast<size_t>(size * size));
      for (int64_t k = 0; k < size; ++k) {
        Vector above = state_, below = state_;
        above[k] += kDistance;
        below[k] -= kDistance;
        const Vector a = reference::Step(spec, l, c, noise_, above);
        const Vector b = reference::Step(spec, l, c, noise_, below);
        for (int64_t i = 0; i < size; ++i) jacobian[i * size + k] = (a[i] - b[i]) / (2 * kDistance);
      }
      return jacobian;
    };
    ExpectNear(reference::StepJacobian(spec_, l, condition, state_, noise_),
               differences(spec_, condition), 1e-6, "named");
    ExpectNear(reference::StepJacobian(of_program_, l, of_program, state_, noise_),
               differences(of_program_, of_program), 1e-6, "program");
  });
}

// By the noise and by the condition.
TEST_P(SamplerFormTest, DerivativesByWhatASampleBringsAreThoseOfDifferences) {
  constexpr float kDistance = 0x1p-10F;
  ForSteps([&](int64_t l, const Vector& condition, const Vector& of_program) {
    const auto check = [&](const auto& spec, const Vector& c, const std::string& what) {
      const Vector factors = reference::StepByNoise(spec, l, c, state_);
      const Vector by_inputs = reference::StepByInputs(spec, l, inputs_.data(), 0, state_, noise_);
      ASSERT_EQ(std::ssize(factors), kDim);
      ASSERT_EQ(by_inputs.size(), 2 * state_.size());
      for (int64_t k = 0; k < kDim; ++k) {
        std::vector<float> more = noise_;
        more[k] += 1;
        const Vector a = reference::Step(spec, l, c, more, state_);
        const Vector b = reference::Step(spec, l, c, noise_, state_);
        for (int64_t i = 0; i < kDim; ++i)
          EXPECT_NEAR(a[i] - b[i], i == k ? factors[k] * (double{more[k]} - noise_[k]) : 0, 1e-13)
              << what;
      }
      for (int64_t k = 0; k < 2; ++k) {
        std::vector<float> above = inputs_, below = inputs_;
        above[k] += kDistance;
        below[k] -= kDistance;
        const Vector a =
            reference::Step(spec, l, reference::Condition(spec, above.data(), 0), noise_, state_);
        const Vector b =
            reference::Step(spec, l, reference::Condition(spec, below.data(), 0), noise_, state_);
        const double width = double{above[k]} - below[k];
        for (size_t i = 0; i < state_.size(); ++i)
          EXPECT_NEAR(by_inputs[i * 2 + k], (a[i] - b[i]) / width, 2e-6) << what;
      }
    };
    check(spec_, condition, "named");
    check(of_program_, of_program, "program");
  });
}

INSTANTIATE_TEST_SUITE_P(Forms, SamplerFormTest, ::testing::ValuesIn(kForms),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace deeppcr::testing
