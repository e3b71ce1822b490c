// SPDX-License-Identifier: Apache-2.0
// How much sums of many terms round, in the order in which the kernels add them, against what the
// probes say.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/base/strings.h"
#include "kernels/cpu/program/system.h"
#include "kernels/program/evaluate.h"
#include "tests/kernels/cpu/diffusion/plain_diffusion.h"
#include "tests/kernels/program/draft.h"

namespace deeppcr::cpu {
namespace {

using program::Draft;
using program::Element;
using program::Op;
using program::Program;
using program::ValueId;

constexpr int64_t kState = 1024, kRowsOfLayers = 64;

// The longest sums; the slow run of this test asks for longer ones.
int64_t MostTerms() {
  const char* text = std::getenv("DEEPPCR_TEST_TERMS");
  return text == nullptr ? 4096 : std::atoll(text);
}

enum class Terms { kRandom, kPositive, kEqual, kCancelling };
constexpr const char* NameOf(Terms terms) {
  constexpr const char* kNames[] = {"random", "positive", "equal", "cancelling"};
  return kNames[static_cast<int>(terms)];
}

// A program whose every output is an operation of n terms, elements of the state in any order.
Program SumOf(Op op, int64_t n, Terms terms, std::mt19937_64& random) {
  Draft draft(random());
  const ValueId z = draft.State(kState);
  std::vector<Element> elements;
  for (int64_t i = 0; i < n; ++i)
    elements.push_back({0, static_cast<int64_t>(random() % static_cast<uint64_t>(kState))});
  const ValueId all = draft.Arrange({z}, elements);
  ValueId said = program::kNoValue;
  if (op == Op::kLinear) {
    program::LinearLayer layer = draft.Layer(kRowsOfLayers, n, false);
    std::vector<float> weights = *layer.weight;
    for (float& weight : weights) {
      if (terms == Terms::kPositive) weight = std::fabs(weight);
      if (terms == Terms::kEqual) weight = 0.7F;
    }
    layer.weight = std::make_shared<const std::vector<float>>(std::move(weights));
    said = draft.Linear(all, layer);
  } else {
    said = draft.Along(op, all, {1, n, 1}, 1e-5);
  }
  elements.clear();
  for (int64_t i = 0; i < kState; ++i) elements.push_back({0, i % draft.size(said)});
  const ValueId fitted = draft.Arrange({said}, elements);
  return draft.Finish(draft.ReverseStep(z, fitted), fitted);
}

std::vector<float> StateOf(Terms terms, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> state(kState);
  const float equal = 1 + 0.1F * normal(random);
  for (size_t i = 0; i < state.size(); ++i) {
    state[i] = normal(random);
    if (terms == Terms::kPositive) state[i] = std::fabs(state[i]);
    if (terms == Terms::kEqual) state[i] = equal;
    if (terms == Terms::kCancelling && i % 2 == 1)
      state[i] = -state[i - 1] * (1 + 1e-4F * normal(random));
  }
  return state;
}

// The largest errors and probes of one step from a state.
struct Rounding {
  double error = 0, probe = 0;
};
Rounding RoundingOf(const PackedSystem& packed, const Program& program,
                    const std::vector<float>& state, const ReverseStep& step) {
  const auto recurrence = packed.NewRecurrence();
  const int64_t width = packed.width;
  std::vector<float> from(static_cast<size_t>(2 * kColumns * width)),
      to(static_cast<size_t>(kColumns * width)), encoded(static_cast<size_t>(width));
  SampleInput input;
  input.initial_noise = state.data();
  recurrence->Encode(0, input, encoded.data());
  std::ranges::copy(state, from.begin());
  recurrence->Propagate({.interval = 1,
                         .num_intervals = 1,
                         .states = from.data(),
                         .propagated = to.data(),
                         .matrices = nullptr,
                         .diagonal = false,
                         .probes = true,
                         .token = nullptr});
  program::Evaluation evaluation(program);
  evaluation.Run({.reverse = &step, .clip_range = std::numeric_limits<double>::infinity()},
                 std::vector<double>(state.begin(), state.end()));
  Rounding rounding;
  for (int64_t i = 0; i < kState; ++i) {
    rounding.error =
        std::max(rounding.error, std::fabs(to[static_cast<size_t>(i)] -
                                           evaluation.at(program.output)[static_cast<size_t>(i)]));
    for (int64_t v = 1; v < kColumns; ++v)
      rounding.probe =
          std::max(rounding.probe, std::fabs(double{to[static_cast<size_t>(v * width + i)]}));
  }
  return rounding;
}

double Rounded(double share) { return std::round(100 * share) / 100; }

class SumsTest : public ::testing::TestWithParam<size_t> {};

TEST_P(SumsTest, RoundNoMoreThanProbesSay) {
  const ReverseStep step = {.z_z = 0, .z_m = 1};
  const std::vector<ReverseStep> steps = {step};
  std::mt19937_64 random(1);
  for (const Op op :
       {Op::kLinear, Op::kSum, Op::kMean, Op::kStandardize, Op::kScaleToUnit, Op::kSoftmax}) {
    for (const int64_t n : {64, 1024, 4096, 16384, 65536}) {
      if (n > MostTerms()) continue;
      std::string line;
      constexpr int kDraws = 3, kStates = 5;
      for (const Terms terms :
           {Terms::kRandom, Terms::kPositive, Terms::kEqual, Terms::kCancelling}) {
        double squares = 0, worst = 0;
        int tries = 0;
        for (int draw = 0; draw < kDraws; ++draw) {
          const Program program = SumOf(op, n, terms, random);
          const DiffusionProgramSpec spec = {.state_dim = kState,
                                             .steps = steps,
                                             .clip_range = std::numeric_limits<double>::infinity(),
                                             .program = &program,
                                             .step_weights = 1};
          const auto packed = *PackProgramSystem(
              spec, testing::KernelsOfThisMachine()[GetParam()].set, PackingLimits{});
          for (int state = 0; state < kStates; ++state, ++tries) {
            const Rounding rounding = RoundingOf(*packed, program, StateOf(terms, random), step);
            if (rounding.probe == 0 && rounding.error == 0) continue;
            const double share = rounding.error / rounding.probe;
            squares += share * share;
            worst = std::max(worst, share);
          }
        }
        const double typical = std::sqrt(squares / tries);
        line += StrCat(line.empty() ? " " : "; ", NameOf(terms), " ", Rounded(typical),
                       ", at most ", Rounded(worst));
        // Equal terms by equal weights round alike, all of them: no probe foretells that.
        if (op == Op::kLinear && terms == Terms::kEqual) continue;
        EXPECT_LE(typical, kRoundingFactor)
            << program::RowOf(op).name << " of " << n << ", " << NameOf(terms);
        EXPECT_LE(worst, 2 * kRoundingFactor)
            << program::RowOf(op).name << " of " << n << ", " << NameOf(terms);
      }
      std::printf("%s of %ld:%s\n", program::RowOf(op).name, static_cast<long>(n), line.c_str());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, SumsTest,
                         ::testing::Range(size_t{0}, testing::KernelsOfThisMachine().size()),
                         [](const auto& test) {
                           return testing::KernelsOfThisMachine()[test.param].name;
                         });

}  // namespace
}  // namespace deeppcr::cpu
