// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/norms.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/program/optimize.h"
#include "tests/kernels/program/draft.h"
#include "tests/kernels/program/same_meaning.h"

namespace deeppcr::program {
namespace {

// How a norm is written.
struct Form {
  bool centres = true;
  bool powers = true;  // a square as x^2, not as x x
  enum { kQuotient, kReciprocal, kPower } scale = kQuotient;
  bool broadcasts_late = true;  // the factor rather than the mean
  bool weighs = false;          // the factor times a weight before x
  double epsilon = 1e-5;
};

std::vector<Form> Forms() {
  std::vector<Form> forms;
  for (const bool centres : {false, true}) {
    for (const bool powers : {false, true}) {
      for (const auto scale : {Form::kQuotient, Form::kReciprocal, Form::kPower}) {
        for (const bool late : {false, true}) {
          forms.push_back({centres, powers, scale, late, false});
          if (scale != Form::kQuotient) forms.push_back({centres, powers, scale, late, true});
        }
      }
    }
  }
  return forms;
}

ValueId Squared(Draft& draft, const Form& form, ValueId x) {
  return form.powers ? draft.By(Op::kPower, x, 2) : draft.Multiply(x, x);
}

// The factor or divisor that the form scales with, before or after it is given to all elements.
ValueId ScaleOf(Draft& draft, const Form& form, ValueId mean) {
  const ValueId sum = draft.By(Op::kAdd, mean, form.epsilon);
  if (form.scale == Form::kPower) return draft.By(Op::kPower, sum, -0.5);
  const ValueId root = draft.Do(Op::kSqrt, {sum});
  return form.scale == Form::kQuotient ? root : draft.Divide(draft.Number(1, root), root);
}

ValueId Normed(Draft& draft, const Form& form, ValueId x, const Axis& axis) {
  if (form.centres) {
    x = draft.Subtract(x, draft.Broadcast(draft.Along(Op::kMean, x, axis), axis));
  }
  const ValueId mean = draft.Along(Op::kMean, Squared(draft, form, x), axis);
  const ValueId scale = form.broadcasts_late ? draft.Broadcast(ScaleOf(draft, form, mean), axis)
                                             : ScaleOf(draft, form, draft.Broadcast(mean, axis));
  if (form.scale == Form::kQuotient) return draft.Divide(x, scale);
  if (!form.weighs) return draft.Multiply(scale, x);
  return draft.Multiply(x, draft.Multiply(draft.Normal(draft.size(x)), scale));
}

TEST(NormsTest, RecognisesEveryWayToWriteOne) {
  for (const Form& form : Forms()) {
    for (const Axis& axis : {Axis{1, 12, 1}, Axis{3, 4, 1}, Axis{1, 4, 3}, Axis{2, 3, 2}}) {
      SCOPED_TRACE(::testing::Message()
                   << form.centres << form.powers << form.scale << form.broadcasts_late
                   << form.weighs << " " << axis.outer << " " << axis.length);
      Draft draft;
      const ValueId x = draft.Linear(draft.State(12), 12);
      const Program before = draft.Finish(Normed(draft, form, x, axis));
      const Program after = *Optimize(before);
      ExpectSameMeaning(before, after);
      const Op op = form.centres ? Op::kStandardize : Op::kScaleToUnit;
      ASSERT_EQ(CountOf(after, op), 1);
      EXPECT_EQ(after.instructions.size(), form.weighs ? 3u : 2u);
      EXPECT_EQ(after.instructions[1].epsilon, form.epsilon);
    }
  }
}

TEST(NormsTest, KeepsWeightAndBias) {
  Draft draft;
  const ValueId x = draft.Linear(draft.State(12), 12);
  const ValueId normed = Normed(draft, {}, x, {1, 12, 1});
  const ValueId weighed = draft.Multiply(normed, draft.Normal(12));
  const Program before = draft.Finish(draft.Add(weighed, draft.Normal(12)));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(CountOf(after, Op::kStandardize), 1);
  EXPECT_EQ(after.instructions.size(), 4u);
}

int64_t NormsOf(const Program& program) {
  return CountOf(program, Op::kStandardize) + CountOf(program, Op::kScaleToUnit);
}

TEST(NormsTest, LeavesAnEpsilonThatIsNotPositive) {
  for (const double epsilon : {-1e-3, 0.0}) {
    Draft draft;
    const ValueId x = draft.Linear(draft.State(12), 12);
    const Program before = draft.Finish(Normed(draft, {.epsilon = epsilon}, x, {1, 12, 1}));
    const Program after = *Optimize(before);
    ExpectSameMeaning(before, after);
    EXPECT_EQ(NormsOf(after), 0) << epsilon;
  }
}

TEST(NormsTest, LeavesAMeanThatGoesToOtherElements) {
  Draft draft;
  const ValueId x = draft.Linear(draft.State(12), 12);
  const ValueId mean = draft.Along(Op::kMean, draft.Multiply(x, x), {4, 3, 1});
  const ValueId root = draft.Do(Op::kSqrt, {draft.By(Op::kAdd, mean, 1e-5)});
  const Program before = draft.Finish(draft.Divide(x, draft.Broadcast(root, {1, 3, 4})));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(NormsOf(after), 0);
}

TEST(NormsTest, CallsWhatIsWithoutAnotherMeanNoStandardisation) {
  Draft draft;
  const ValueId x = draft.Linear(draft.State(12), 12);
  const Axis rows = {3, 4, 1}, all = {1, 12, 1};
  const ValueId centred = draft.Subtract(x, draft.Broadcast(draft.Along(Op::kMean, x, all), all));
  const Program before = draft.Finish(Normed(draft, {.centres = false}, centred, rows));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(CountOf(after, Op::kStandardize), 0);
  EXPECT_EQ(CountOf(after, Op::kScaleToUnit), 1);
}

TEST(NormsTest, KeepsACentredValueThatIsReadElsewhere) {
  Draft draft;
  const ValueId x = draft.Linear(draft.State(12), 12);
  const Axis axis = {1, 12, 1};
  const ValueId centred = draft.Subtract(x, draft.Broadcast(draft.Along(Op::kMean, x, axis), axis));
  const ValueId normed = Normed(draft, {.centres = false}, centred, axis);
  const Program before = draft.Finish(draft.Add(normed, centred));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(CountOf(after, Op::kStandardize), 0);
  EXPECT_EQ(CountOf(after, Op::kScaleToUnit), 1);
}

TEST(NormsTest, LeavesTheScaleOfAnotherValue) {
  Draft draft;
  const ValueId x = draft.Linear(draft.State(12), 12), y = draft.Do(Op::kSin, {x});
  const Axis axis = {1, 12, 1};
  const ValueId mean = draft.Along(Op::kMean, draft.Multiply(x, x), axis);
  const ValueId root = draft.Do(Op::kSqrt, {draft.By(Op::kAdd, mean, 1e-5)});
  const Program before = draft.Finish(draft.Divide(y, draft.Broadcast(root, axis)));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(NormsOf(after), 0);
}

TEST(NormsTest, LeavesAScaleThatIsReadElsewhere) {
  Draft draft;
  const ValueId x = draft.Linear(draft.State(12), 12);
  const Axis axis = {1, 12, 1};
  const ValueId mean = draft.Along(Op::kMean, draft.Multiply(x, x), axis);
  const ValueId root = draft.Broadcast(draft.Do(Op::kSqrt, {draft.By(Op::kAdd, mean, 1e-5)}), axis);
  const Program before = draft.Finish(draft.Add(draft.Divide(x, root), root));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(NormsOf(after), 0);
}

}  // namespace
}  // namespace deeppcr::program
