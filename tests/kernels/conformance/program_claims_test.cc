// SPDX-License-Identifier: Apache-2.0
// Claims of systems whose probes cancel, or are not finite while the states are, on every backend:
// none may be far from the sequential states in double.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/reference/reference_backend.h"
#include "tests/kernels/program/draft.h"
#include "tests/testing/solver_rig.h"

namespace deeppcr::testing {
namespace {

using program::Draft;
using program::Op;
using program::Program;
using program::ValueId;

constexpr int kSamples = 100;

std::vector<ReverseStep> StepsWith(int64_t num_steps, double of_state, double of_prediction) {
  std::vector<ReverseStep> steps;
  for (int64_t l = 0; l < num_steps; ++l)
    steps.push_back({.timestep = static_cast<double>(num_steps - l),
                     .x0_z = 1,
                     .z_z = of_state,
                     .z_m = of_prediction});
  return steps;
}

class ProgramClaimsTest : public ::testing::TestWithParam<size_t> {
 protected:
  std::unique_ptr<Backend> NewBackend() const { return BackendCases()[GetParam()].create(); }

  void ExpectNoFalseClaim(const SystemSpec& spec, int64_t num_steps) const {
    const SolverRig rig(NewBackend(), spec), exact(reference::NewReferenceBackend(), spec);
    ResolvedOptions newton = OptionsFor("newton", num_steps, 1, 1e-4);
    newton.initial_guess = InitialGuess::kCoarse;
    for (int seed = 1; seed <= kSamples; ++seed) {
      const SampleInputs request{.num_samples = 1, .seed = static_cast<uint64_t>(seed)};
      const Solved solved = rig.Solve(newton, request);
      if (!solved.reports[0].converged || solved.reports[0].fallback) continue;
      const Solved right = exact.Solve({.solver = "sequential"}, request);
      double off = 0, size = 0;
      for (size_t i = 0; i < right.trajectory.size(); ++i) {
        off = std::max(off, std::fabs(double{solved.trajectory[i]} - right.trajectory[i]));
        size = std::max(size, std::fabs(double{right.trajectory[i]}));
      }
      EXPECT_LE(off, 1e-2 * size) << "seed " << seed;
    }
  }

  // A process of two elements, the first of which is moved by `first`, made of the two.
  void ExpectNoFalseClaimOf(
      const std::function<ValueId(Draft& draft, ValueId z0, ValueId z1)>& first) const {
    constexpr int64_t kSteps = 4;
    Draft draft(3);
    const ValueId z = draft.State(2);
    const ValueId z1 = draft.Slice(z, 1, 2);
    const ValueId moved = draft.Concatenate(
        {first(draft, draft.Slice(z, 0, 1), z1), draft.By(Op::kMultiply, z1, 0.1)});
    const Program program = draft.Finish(draft.ReverseStep(z, moved), moved);
    ExpectNoFalseClaim(DiffusionProgramSpec{.state_dim = 2,
                                            .steps = StepsWith(kSteps, 0.5, 0.2),
                                            .clip_range = INFINITY,
                                            .program = &program,
                                            .step_weights = 10},
                       kSteps);
  }

  // A step that is `op` near `at`, over its size.
  void ExpectErrorsWithinClaims(Op op, float at) const {
    Draft draft(3);
    const ValueId z = draft.State(1);
    const double gelu = 0.5 * at * std::erfc(-at / std::sqrt(2.0));
    const ValueId moved = draft.By(Op::kMultiply, draft.Do(op, {z}), 1 / std::fabs(gelu));
    const Program program = draft.Finish(draft.ReverseStep(z, moved), moved);
    const std::vector<ReverseStep> steps = StepsWith(1, 0, 1);
    const SystemSpec spec = DiffusionProgramSpec{.state_dim = 1,
                                                 .steps = steps,
                                                 .clip_range = INFINITY,
                                                 .program = &program,
                                                 .step_weights = 10};
    const SolverRig rig(NewBackend(), spec), exact(reference::NewReferenceBackend(), spec);
    const ResolvedOptions newton = OptionsFor("newton", 1, 1, 1e-4);
    std::mt19937 random(1);
    std::uniform_real_distribution<float> near(-0.05F, 0.05F);
    for (int i = 0; i < kSamples; ++i) {
      const std::vector<float> noise = {at + near(random)};
      const SampleInputs request{.num_samples = 1, .initial_noise = noise};
      const Solved solved = rig.Solve(newton, request);
      if (!solved.reports[0].converged || solved.reports[0].fallback) continue;
      const double right = exact.Solve({.solver = "sequential"}, request).trajectory[1];
      const double error = std::fabs(solved.trajectory[1] - right);
      const double scale = std::fabs(right) + newton.atol / newton.rtol;
      // The result itself is rounded to float32, by at most 6e-8.
      EXPECT_LE(error, (solved.reports[0].error_estimate.value_or(0) + 6e-8) * scale)
          << program::RowOf(op).name << " at " << noise[0];
    }
  }
};

// What the rounding of z leaves of (z + offset) - z.
ValueId Rest(Draft& draft, ValueId z, double offset) {
  return draft.Subtract(draft.By(Op::kAdd, z, offset), z);
}
// A tanh of nothing but rounding, through factors that probes overflow in.
ValueId WildTanh(Draft& draft, ValueId z) {
  const ValueId wild = draft.By(Op::kMultiply, Rest(draft, z, 1e-9), 1e25);
  return draft.Do(Op::kTanh, {draft.By(Op::kMultiply, wild, 1e25)});
}

// The largest element has a probe that is not finite, the other one has not.
TEST_P(ProgramClaimsTest, LargestKeepsProbesThatAreNotFinite) {
  for (const bool wild_first : {false, true}) {
    ExpectNoFalseClaimOf([&](Draft& draft, ValueId z0, ValueId z1) {
      const ValueId wild = draft.By(Op::kAdd, WildTanh(draft, z0), 3);
      const ValueId calm = draft.By(Op::kAdd, draft.By(Op::kMultiply, z1, 1e-6), 2.9999);
      const ValueId both = wild_first ? draft.Concatenate({wild, calm})  //
                                      : draft.Concatenate({calm, wild});
      return draft.Along(Op::kLargest, both, {1, 2, 1});
    });
  }
}

TEST_P(ProgramClaimsTest, BothSidesOfAKinkKeepProbesThatAreNotFinite) {
  for (const Op op : {Op::kAbs, Op::kRelu}) {
    ExpectNoFalseClaimOf([&](Draft& draft, ValueId z0, ValueId) {
      return draft.By(Op::kAdd, draft.Do(op, {WildTanh(draft, z0)}), 3);
    });
  }
}

// Elements that tie, but for their rounding, minus one of them.
TEST_P(ProgramClaimsTest, TheLargestOfATieDoesNotCancel) {
  ExpectNoFalseClaimOf([](Draft& draft, ValueId z0, ValueId z1) {
    const ValueId rests = draft.Concatenate({Rest(draft, z0, 1e-5), Rest(draft, z1, 1e-5)});
    const ValueId largest = draft.Along(Op::kLargest, rests, {1, 2, 1});
    const ValueId other = draft.Subtract(largest, draft.Slice(rests, 0, 1));
    return draft.Do(Op::kTanh, {draft.By(Op::kMultiply, other, 1e8)});
  });
}

// A named denoiser with a unit whose probes overflow in weights, and its states do not.
TEST_P(ProgramClaimsTest, DenoisersKeepProbesThatAreNotFinite) {
  constexpr int64_t kDim = 2, kHidden = 4, kBlocks = 2, kSteps = 3;
  constexpr float kWeight = 1e25F;
  const std::vector<float> input = {1, 1, 1, 0, 0, 1, 0, 0}, zeros(kBlocks * kHidden * kHidden);
  std::vector<float> output(kDim * kHidden), first(kBlocks * kHidden * kHidden);
  output[3] = 1;
  first[3 * kHidden] = kWeight;
  first[3 * kHidden + 1] = first[3 * kHidden + 2] = -kWeight;
  first[(kHidden + 3) * kHidden + 3] = 1;
  const std::vector<double> time_embedding(kSteps * kHidden);
  const std::vector<ReverseStep> steps = StepsWith(kSteps, 0.5, 0.1);
  const auto none = [&](int64_t count) { return std::span(zeros).first(count); };
  DiffusionSpec spec;
  spec.state_dim = kDim;
  spec.steps = steps;
  spec.clip_range = INFINITY;
  spec.time_embedding = time_embedding;
  spec.denoiser.hidden_dim = kHidden;
  spec.denoiser.num_blocks = kBlocks;
  spec.denoiser.activation = Activation::kTanh;
  spec.denoiser.input = {.rows = kHidden, .cols = kDim, .weight = input, .bias = none(kHidden)};
  spec.denoiser.output = {.rows = kDim, .cols = kHidden, .weight = output, .bias = none(kDim)};
  spec.denoiser.first_weight = first;
  spec.denoiser.first_bias = none(kBlocks * kHidden);
  spec.denoiser.modulation = {.rows = kBlocks * kHidden,
                              .cols = kHidden,
                              .weight = none(kBlocks * kHidden * kHidden),
                              .bias = none(kBlocks * kHidden)};
  ExpectNoFalseClaim(spec, kSteps);
}

// gelu of a negative number rounds by more units the further off it is.
TEST_P(ProgramClaimsTest, TailsOfGeluRoundAsTheySay) {
  for (const Op op : {Op::kGelu, Op::kGeluTanh})
    for (const float at : {-3.0F, -5.0F, -7.0F, -10.0F}) ExpectErrorsWithinClaims(op, at);
}

INSTANTIATE_TEST_SUITE_P(Backends, ProgramClaimsTest,
                         ::testing::Range(size_t{0}, BackendCases().size()),
                         [](const auto& test) { return BackendCases()[test.param].name; });

}  // namespace
}  // namespace deeppcr::testing
