// SPDX-License-Identifier: Apache-2.0
// The steps of named denoisers as programs, for every instruction set: states, predictions and
// tangents compared with plain loops in double, whose running error bounds are the tolerances; and
// bits that must agree.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/program/executor.h"
#include "kernels/cpu/program/system.h"
#include "tests/kernels/cpu/diffusion/plain_diffusion.h"

namespace deeppcr::testing {
namespace {

using cpu::PackedProgramSystem;

// Runs rows of a step: `states` [rows, X] become those after it, and `tangents` [rows, columns, X],
// of which the first `probes` of each row pick up rounding, their images. Predictions [rows, X].
std::vector<float> RunRows(const PackedProgramSystem& model, const cpu::RowContext* contexts,
                           const cpu::TangentRows& along, std::vector<float>* states,
                           std::vector<float>* tangents) {
  const cpu::PackedProgram& program = model.program;
  const int64_t width = program.state_input.width;
  const int64_t count = std::ssize(*states) / width, columns = along.columns;
  cpu::Executor step(program.state, model.program_kernels, model.clip_range, count,
                     count * columns);
  for (int64_t r = 0; r < count; ++r) {
    float* z = step.Row(program.state_input, r);
    std::copy_n(states->begin() + r * width, width, z);
    if (along.probes > 0)
      model.program_kernels.scaled_size(1, z, step.Size(program.state_input, r), width);
  }
  for (int64_t t = 0; t < count * columns; ++t)
    std::copy_n(tangents->begin() + t * width, width, step.Tangent(program.state_input, t));
  step.Run(contexts, count, along, nullptr);
  std::vector<float> predictions;
  for (int64_t r = 0; r < count; ++r) {
    std::copy_n(step.Row(program.output, r), width, states->begin() + r * width);
    const float* m = step.Row(program.prediction, r);
    predictions.insert(predictions.end(), m, m + width);
  }
  for (int64_t t = 0; t < count * columns; ++t)
    std::copy_n(step.Tangent(program.output, t), width, tangents->begin() + t * width);
  return predictions;
}

// A model with rows at different states and steps.
class Rows {
 public:
  Rows(const DiffusionOptions& options, const cpu::KernelSet& set, int64_t count)
      : random_(options),
        packed_(*cpu::PackProgramSystem(random_.spec(), set, {})),
        model_(static_cast<const PackedProgramSystem&>(*packed_)),
        width_(model_.program.state_input.width) {
    const int64_t dim = options.state_dim;
    for (int64_t r = 0; r < count; ++r) {
      z_.push_back(random_.Vector(dim));
      z_.back().resize(width_);
      noise_.push_back(random_.Vector(dim));
      noise_.back().resize(width_);
      const int64_t step = r % options.num_steps;
      rows_.push_back(model_.ContextOf(step, nullptr));
      if (model_.coefficients[step].sigma != 0) rows_.back().noise = noise_[r].data();
    }
  }

  struct Result {
    std::vector<float> states, predictions;
  };

  // Steps with so many tangents along, which are of no interest.
  Result Step(int64_t first, int64_t count, const cpu::TangentRows& along) const {
    Result result;
    for (int64_t r = first; r < first + count; ++r)
      result.states.insert(result.states.end(), z_[r].begin(), z_[r].end());
    std::vector<float> tangents(count * along.columns * width_);
    result.predictions = RunRows(model_, rows_.data() + first, along, &result.states, &tangents);
    return result;
  }

  // Replaces `tangents` [count, columns, X] of the first `count` rows by their images.
  void Tangents(int64_t count, const cpu::TangentRows& along, std::vector<float>* tangents) const {
    std::vector<float> states;
    for (int64_t r = 0; r < count; ++r) states.insert(states.end(), z_[r].begin(), z_[r].end());
    RunRows(model_, rows_.data(), along, &states, tangents);
  }

  // The tangent of row r along a direction of the state, by plain loops.
  template <class T>
  Values<Dual<T>> PlainAlong(int64_t r, const std::vector<double>& direction,
                             Values<Dual<T>>* prediction = nullptr) const {
    const auto mu = PlainModulation<T>(spec(), rows_[r].step, {});
    return PlainStep(spec(), rows_[r].step, Constants(mu), rows_[r].noise,
                     Along<T>(z_[r].data(), direction), prediction);
  }

  const DiffusionSpec& spec() const { return random_.spec(); }
  int64_t width() const { return width_; }
  std::vector<float>& z(int64_t r) { return z_[r]; }
  const std::vector<float>& z(int64_t r) const { return z_[r]; }
  const cpu::RowContext& row(int64_t r) const { return rows_[r]; }

 private:
  RandomDiffusion random_;
  std::unique_ptr<cpu::PackedSystem> packed_;
  const PackedProgramSystem& model_;
  int64_t width_;
  std::vector<std::vector<float>> z_, noise_;
  std::vector<cpu::RowContext> rows_;
};

class ReverseStepTest : public ::testing::TestWithParam<std::tuple<size_t, DenoiserKind, int64_t>> {
 protected:
  const cpu::KernelSet& set() const { return KernelsOfThisMachine()[std::get<0>(GetParam())].set; }

  // Calls body(options) for every hidden width, number of blocks and clip.
  template <class F>
  void ForSizes(const F& body) const {
    const Activation activations[] = {Activation::kSilu, Activation::kTanh, Activation::kRelu};
    int64_t i = 0;
    for (const int64_t hidden : {5, 16, 64, 100, 128})
      for (const int64_t blocks : {1, 3})
        for (const bool clip : {false, true}) {
          SCOPED_TRACE(absl::StrCat("H ", hidden, " N ", blocks, " clip ", clip));
          body(DiffusionOptions{.kind = std::get<1>(GetParam()),
                                .state_dim = dim(),
                                .hidden_dim = hidden,
                                .num_blocks = blocks,
                                .num_steps = 5,
                                .clip = clip,
                                .activation = activations[i % 3],
                                .input_scale = hidden == 16 ? 1e-3 : 1,
                                .seed = static_cast<uint64_t>(100 + i)});
          if (HasFatalFailure()) return;
          ++i;
        }
  }
  int64_t dim() const { return std::get<2>(GetParam()); }
};

TEST_P(ReverseStepTest, StatesAndPredictionsAreThoseOfPlainLoops) {
  ForSizes([&](const DiffusionOptions& options) {
    const Rows rows(options, set(), 5);
    const Rows::Result result = rows.Step(0, 5, {});
    for (int64_t r = 0; r < 5; ++r) {
      Values<Bounded> m;
      const auto mu = PlainModulation<Bounded>(rows.spec(), rows.row(r).step, {});
      const Values<Bounded> next = PlainStep(rows.spec(), rows.row(r).step, mu, rows.row(r).noise,
                                             Exactly<Bounded>(rows.z(r).data(), dim()), &m);
      for (int64_t i = 0; i < rows.width(); ++i) {
        const int64_t at = r * rows.width() + i;
        if (i >= dim()) {
          ASSERT_EQ(result.states[at], 0.0F) << "padding";
          continue;
        }
        ASSERT_NEAR(result.predictions[at], m[i].value, 2 * m[i].error) << "m, row " << r;
        ASSERT_NEAR(result.states[at], next[i].value, 2 * next[i].error) << "z', row " << r;
      }
    }
  });
}

TEST_P(ReverseStepTest, BitsDependNeitherOnOtherRowsNorOnTangents) {
  ForSizes([&](const DiffusionOptions& options) {
    constexpr int64_t kMost = 9;
    constexpr cpu::TangentRows kAlong[] = {{}, {1, 0}, {kNumProbes + 1, kNumProbes}};
    const Rows rows(options, set(), kMost);
    for (int64_t count = 1; count <= kMost; ++count) {
      const Rows::Result together = rows.Step(0, count, kAlong[count % 3]);
      for (int64_t r = 0; r < count; ++r) {
        const Rows::Result alone = rows.Step(r, 1, {});
        const int64_t at = r * rows.width();
        ASSERT_TRUE(SameFloats(alone.states.data(), together.states.data() + at, rows.width()));
        ASSERT_TRUE(SameFloats(alone.predictions.data(), together.predictions.data() + at, dim()));
      }
    }
  });
}

TEST_P(ReverseStepTest, TangentsAreThoseOfForwardModeInDouble) {
  ForSizes([&](const DiffusionOptions& options) {
    constexpr int64_t kRows = 4;
    const Rows rows(options, set(), kRows);
    std::vector<float> tangents(kRows * dim() * rows.width());
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t j = 0; j < dim(); ++j) tangents[(r * dim() + j) * rows.width() + j] = 1.0F;
    rows.Tangents(kRows, {dim(), 0}, &tangents);
    for (int64_t r = 0; r < kRows; ++r) {
      // The plain loops take one direction at a time, so a wide state is checked along a few only.
      for (int64_t j = r % 2; j < dim(); j += 1 + dim() / 8) {
        const auto plain = rows.PlainAlong<Bounded>(r, UnitVector(dim(), j));
        const float* tangent = tangents.data() + (r * dim() + j) * rows.width();
        for (int64_t i = 0; i < rows.width(); ++i) {
          if (i >= dim()) {
            ASSERT_EQ(tangent[i], 0.0F) << "padding";
            continue;
          }
          const Bounded slope = plain[i].slope;
          ASSERT_NEAR(tangent[i], slope.value, 2 * slope.error) << "row " << r << " of " << j;
        }
      }
    }
  });
}

// Central differences need no derivative: they check the forward mode of the plain loops, and the
// kernels once more.
TEST_P(ReverseStepTest, TangentsAreThoseOfCentralDifferences) {
  for (const int64_t hidden : {5, 64}) {
    const DiffusionOptions options = {.kind = std::get<1>(GetParam()),
                                      .state_dim = dim(),
                                      .hidden_dim = hidden,
                                      .num_blocks = 2,
                                      .num_steps = 2,
                                      .clip = false,
                                      .seed = 9};
    Rows rows(options, set(), 2);
    for (int64_t r = 0; r < 2; ++r) {
      const auto mu = PlainModulation<double>(rows.spec(), rows.row(r).step, {});
      const int64_t k = dim() / 2;
      const auto along = rows.PlainAlong<Bounded>(r, UnitVector(dim(), k));
      std::vector<float> tangents(2 * rows.width());
      tangents[k] = tangents[rows.width() + k] = 1.0F;
      rows.Tangents(2, {1, 0}, &tangents);
      const auto at = [&](double h) {
        std::vector<double> z(rows.z(r).begin(), rows.z(r).begin() + dim());
        z[k] += h;
        return PlainStep(rows.spec(), rows.row(r).step, mu, rows.row(r).noise, z);
      };
      // With Richardson's extrapolation the error of order h^4 and the rounding over h both stay
      // far below 1e-8 for functions whose derivatives are of order one.
      constexpr double kStep = 1e-3;
      const auto up = at(kStep), down = at(-kStep), up2 = at(2 * kStep), down2 = at(-2 * kStep);
      for (int64_t i = 0; i < dim(); ++i) {
        const double slope = (8 * (up[i] - down[i]) - (up2[i] - down2[i])) / (12 * kStep);
        ASSERT_NEAR(along[i].slope.value, slope, 1e-8);
        ASSERT_NEAR(tangents[r * rows.width() + i], slope, 2 * along[i].slope.error + 1e-8);
      }
    }
  }
}

TEST_P(ReverseStepTest, ProbesAreTangentsThatPickUpRounding) {
  ForSizes([&](const DiffusionOptions& options) {
    constexpr int64_t kRows = 3, kProbes = cpu::kColumns - 1;
    const Rows rows(options, set(), kRows);
    const int64_t columns = kProbes + 1;
    // Rounding adds to what the probes carry: 0 for `fresh`, a value as small as rounding for
    // `carried`, so that probes look no further for their slope.
    constexpr float kCarried = 1e-7F;
    std::vector<float> fresh(kRows * columns * rows.width()), carried(fresh.size());
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t j = 0; j < columns; ++j)
        carried[(r * columns + j) * rows.width()] = j < kProbes ? kCarried : 1.0F;
    std::vector<float> alone(kRows * rows.width());
    for (int64_t r = 0; r < kRows; ++r) alone[r * rows.width()] = 1.0F;
    rows.Tangents(kRows, {columns, kProbes}, &fresh);
    rows.Tangents(kRows, {columns, kProbes}, &carried);
    rows.Tangents(kRows, {1, 0}, &alone);
    const Rows::Result step = rows.Step(0, kRows, {});
    for (int64_t r = 0; r < kRows; ++r) {
      const auto at = [&](int64_t j) { return (r * columns + j) * rows.width(); };
      ASSERT_TRUE(SameFloats(carried.data() + at(kProbes), alone.data() + r * rows.width(), dim()))
          << "a column of the matrix has the bits it has alone";
      for (int64_t i = 0; i < dim(); ++i)
        ASSERT_EQ(fresh[at(kProbes) + i], 0.0F) << "only probes pick up rounding";
      for (int64_t i = 0; i < dim(); ++i) {
        double squares = 0;
        for (int64_t j = 0; j < kProbes; ++j) {
          squares += double{fresh[at(j) + i]} * fresh[at(j) + i];
          const double image = double{kCarried} * alone[r * rows.width() + i];
          if (options.activation == Activation::kRelu) continue;  // a kink may be near
          ASSERT_NEAR(carried[at(j) + i], image + fresh[at(j) + i],
                      1e-3 * (kCarried + std::fabs(image)));
        }
        const double z = std::fabs(step.states[r * rows.width() + i]);
        ASSERT_GT(std::sqrt(squares / kProbes), 0.05 * kUnit * z) << "less than a state's rounding";
        ASSERT_LT(std::sqrt(squares / kProbes), 1e-4);
      }
    }
  });
}

TEST_P(ReverseStepTest, WhatIsNotFiniteShows) {
  ForSizes([&](const DiffusionOptions& options) {
    const float inf = std::numeric_limits<float>::infinity();
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), inf, -inf}) {
      Rows rows(options, set(), 3);
      rows.z(1)[dim() - 1] = bad;
      const Rows::Result result = rows.Step(0, 3, {kNumProbes + 1, kNumProbes});
      bool finite = true;
      for (int64_t i = 0; i < dim(); ++i)
        finite = finite && std::isfinite(result.states[rows.width() + i]);
      ASSERT_FALSE(finite) << "hidden " << bad;
      for (int64_t i = dim(); i < rows.width(); ++i)
        ASSERT_EQ(result.states[rows.width() + i], 0.0F) << "padding";
      Rows clean(options, set(), 3);
      const Rows::Result expected = clean.Step(0, 3, {});
      for (const int64_t r : {0, 2})
        ASSERT_TRUE(SameFloats(result.states.data() + r * rows.width(),
                               expected.states.data() + r * rows.width(), rows.width()))
            << "a row suffers from another";
      std::vector<float> tangents(3 * rows.width(), 0.0F);
      for (int64_t r = 0; r < 3; ++r) tangents[r * rows.width()] = 1.0F;
      rows.Tangents(3, {1, 0}, &tangents);
      for (int64_t i = 0; i < dim(); ++i)
        ASSERT_TRUE(std::isfinite(tangents[i]) && std::isfinite(tangents[2 * rows.width() + i]));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, ReverseStepTest,
    ::testing::Combine(::testing::Range(size_t{0}, KernelsOfThisMachine().size()),
                       ::testing::Values(DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp),
                       ::testing::Values(1, 2, 3, 16, 17, 33)),
    [](const auto& test) {
      return absl::StrCat(KernelsOfThisMachine()[std::get<0>(test.param)].name, "_",
                          KindName(std::get<1>(test.param)), "_D", std::get<2>(test.param));
    });

// Five states after a clipped step with these coefficients, and the image of a tangent that has the
// same value in each of them: a probe's where probes are carried, else a column's.
struct ClippedStep {
  std::vector<float> states, image;

  ClippedStep(const cpu::KernelSet& set, const ReverseStep& step, const std::vector<float>& before,
              float tangent, int64_t probes) {
    RandomDiffusion random({.state_dim = 5, .num_steps = 1, .clip = true});
    random.steps()[0] = step;
    const auto packed = *cpu::PackProgramSystem(random.spec(), set, {});
    const auto& model = static_cast<const PackedProgramSystem&>(*packed);
    const int64_t width = model.program.state_input.width;
    const int64_t columns = std::max<int64_t>(probes, 1);
    std::vector<float> z(width), tangents(columns * width);
    std::copy(before.begin(), before.end(), z.begin());
    for (int64_t j = 0; j < columns; ++j) std::fill_n(tangents.begin() + j * width, 5, tangent);
    const cpu::RowContext row = model.ContextOf(0, nullptr);
    RunRows(model, &row, {columns, probes}, &z, &tangents);
    states.assign(z.begin(), z.begin() + 5);
    image.assign(tangents.begin(), tangents.begin() + 5);
  }
};

// x0 = z on the boundary of the clip, exactly; x0_m = z_m = 0 switches the network off.
constexpr ReverseStep kPasses = {.x0_z = 1, .x0_m = 0, .z_z = 0, .z_m = 0, .z_x0 = 1, .sigma = 0};

TEST(ClipTest, DerivativeIsOneInsideAndOnTheBoundary) {
  for (const InstructionSetKernels& set : KernelsOfThisMachine()) {
    const ClippedStep step(set.set, kPasses, {0.5F, 1.0F, -1.0F, 1.0000001F, -2.0F}, 3.0F, 0);
    EXPECT_EQ(step.states, std::vector<float>({0.5F, 1.0F, -1.0F, 1.0F, -1.0F})) << set.name;
    EXPECT_EQ(step.image, std::vector<float>({3, 3, 3, 0, 0})) << set.name;
  }
}

// Probes take the side of the clip that leaves most of them, where rounding, or they themselves,
// may take the state there: inside where that passes x0, outside where x0 cancels the rest.
TEST(ClipTest, ProbesMeetBothSidesOfAClipNearBy) {
  const std::vector<float> states = {0.5F, 0.99999F, -1.00001F, 1.001F, -2.0F};
  const ReverseStep cancels = {.x0_z = 1, .x0_m = 0, .z_z = 1, .z_m = 0, .z_x0 = -1, .sigma = 0};
  const auto expect = [&](const ReverseStep& step, float probe, const std::vector<float>& passed) {
    for (const InstructionSetKernels& set : KernelsOfThisMachine()) {
      const std::vector<float> images = ClippedStep(set.set, step, states, probe, kNumProbes).image;
      for (size_t i = 0; i < 5; ++i)
        EXPECT_NEAR(images[i], passed[i] * probe, 1e-6F) << set.name << " " << i << " " << probe;
    }
  };
  expect(kPasses, 1e-5F, {1, 1, 1, 0, 0});
  expect(kPasses, 1e-3F, {1, 1, 1, 1, 0});
  expect(kPasses, 0.1F, {1, 1, 1, 1, 1});
  expect(cancels, 1e-5F, {0, 1, 1, 1, 1});
  expect(cancels, 1e-3F, {0, 1, 1, 1, 1});
  expect(cancels, 0.1F, {1, 1, 1, 1, 1});
}

}  // namespace
}  // namespace deeppcr::testing
