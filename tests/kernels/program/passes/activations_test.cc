// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/activations.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/program/optimize.h"
#include "tests/kernels/program/draft.h"
#include "tests/kernels/program/same_meaning.h"

namespace deeppcr::program {
namespace {

// Constants of float32 graphs are that far from what they stand for.
constexpr double kOfConstants = 1e-6;

struct Case {
  std::string name;
  Op op;  // that it comes to
  std::function<ValueId(Draft&, ValueId)> make;
};

ValueId ErfGate(Draft& draft, ValueId x) {
  return draft.By(Op::kAdd, draft.Do(Op::kErf, {draft.By(Op::kDivide, x, 1.41421354)}), 1);
}
ValueId TanhGate(Draft& draft, ValueId argument) {
  return draft.By(Op::kAdd, draft.Do(Op::kTanh, {argument}), 1);
}
ValueId OnePlusExp(Draft& draft, ValueId x) {
  return draft.Add(draft.Number(1, x), draft.Do(Op::kExp, {x}));
}
ValueId Halved(Draft& draft, ValueId x) { return draft.By(Op::kMultiply, x, 0.5); }
constexpr float kRootOfTwoOverPi = 0.7978845608F;

const std::vector<Case>& Recognised() {
  static const auto* const cases = new std::vector<Case>{
      {"silu", Op::kSilu,
       [](Draft& d, ValueId x) { return d.Multiply(x, d.Do(Op::kSigmoid, {x})); }},
      {"silu, gate first", Op::kSilu,
       [](Draft& d, ValueId x) { return d.Multiply(d.Do(Op::kSigmoid, {x}), x); }},
      {"silu in a longer product", Op::kSilu,
       [](Draft& d, ValueId x) {
         const ValueId other = d.Do(Op::kSin, {x});
         return d.Multiply(x, d.Multiply(other, d.Do(Op::kSigmoid, {x})));
       }},
      {"silu as a quotient", Op::kSilu,
       [](Draft& d, ValueId x) { return d.Divide(x, OnePlusExp(d, d.Do(Op::kNegate, {x}))); }},
      {"sigmoid", Op::kSigmoid,
       [](Draft& d, ValueId x) {
         return d.Divide(d.Number(1, x), OnePlusExp(d, d.Do(Op::kNegate, {x})));
       }},
      {"softplus", Op::kSoftplus,
       [](Draft& d, ValueId x) { return d.Do(Op::kLog, {OnePlusExp(d, x)}); }},
      {"mish", Op::kMish,
       [](Draft& d, ValueId x) {
         return d.Multiply(x, d.Do(Op::kTanh, {d.Do(Op::kSoftplus, {x})}));
       }},
      {"mish, softplus apart", Op::kMish,
       [](Draft& d, ValueId x) {
         return d.Multiply(d.Do(Op::kTanh, {d.Do(Op::kLog, {OnePlusExp(d, x)})}), x);
       }},
      {"gelu of torch 1.13", Op::kGelu,
       [](Draft& d, ValueId x) { return Halved(d, d.Multiply(x, ErfGate(d, x))); }},
      {"gelu, half of x", Op::kGelu,
       [](Draft& d, ValueId x) { return d.Multiply(Halved(d, x), ErfGate(d, x)); }},
      {"gelu, half of the gate", Op::kGelu,
       [](Draft& d, ValueId x) { return d.Multiply(x, Halved(d, ErfGate(d, x))); }},
      {"gelu, a half in front", Op::kGelu,
       [](Draft& d, ValueId x) {
         return d.Multiply(d.Multiply(d.Number(0.5, x), ErfGate(d, x)), x);
       }},
      {"gelu, divided by two", Op::kGelu,
       [](Draft& d, ValueId x) { return d.By(Op::kDivide, d.Multiply(ErfGate(d, x), x), 2); }},
      {"gelu, the inverse root", Op::kGelu,
       [](Draft& d, ValueId x) {
         const ValueId erf = d.Do(Op::kErf, {d.By(Op::kMultiply, x, 0.70710677)});
         return d.Multiply(Halved(d, x), d.Add(d.Number(1, x), erf));
       }},
      {"gelu, the half spread", Op::kGelu,
       [](Draft& d, ValueId x) {
         const ValueId erf = d.Do(Op::kErf, {d.By(Op::kMultiply, x, 0.70710677)});
         return d.Multiply(x, d.By(Op::kAdd, Halved(d, erf), 0.5));
       }},
      {"gelu_tanh, power of three", Op::kGeluTanh,
       [](Draft& d, ValueId x) {
         const ValueId cube = d.By(Op::kMultiply, d.By(Op::kPower, x, 3), 0.044715);
         const ValueId argument = d.By(Op::kMultiply, d.Add(x, cube), kRootOfTwoOverPi);
         return d.Multiply(Halved(d, x), TanhGate(d, argument));
       }},
      {"gelu_tanh, products", Op::kGeluTanh,
       [](Draft& d, ValueId x) {
         const ValueId square = d.By(Op::kMultiply, d.Multiply(x, x), 0.044715);
         const ValueId inner =
             d.Multiply(d.By(Op::kMultiply, x, kRootOfTwoOverPi), d.By(Op::kAdd, square, 1));
         return Halved(d, d.Multiply(x, TanhGate(d, inner)));
       }},
      {"gelu_tanh, as a sigmoid", Op::kGeluTanh,
       [](Draft& d, ValueId x) {
         const ValueId cube = d.Multiply(d.Multiply(x, x), x);
         const ValueId sum = d.Add(x, d.By(Op::kMultiply, cube, 0.044715));
         const ValueId argument = d.By(Op::kMultiply, sum, 2 * kRootOfTwoOverPi);
         return d.Multiply(x, d.Do(Op::kSigmoid, {argument}));
       }},
      {"relu", Op::kRelu, [](Draft& d, ValueId x) { return d.By(Op::kMaximum, x, 0); }},
      {"relu, zero first", Op::kRelu,
       [](Draft& d, ValueId x) {
         return d.Do(Op::kMaximum, {d.Number(0, x), x});
       }},
  };
  return *cases;
}

TEST(ActivationsTest, RecognisesWhatExportersTakeApart) {
  for (const Case& one : Recognised()) {
    SCOPED_TRACE(one.name);
    Draft draft;
    const ValueId x = draft.Linear(draft.State(8), 8);
    const Program before = draft.Finish(one.make(draft, x));
    const Program after = *Optimize(before);
    ExpectSameMeaning(before, after, kOfConstants);
    EXPECT_EQ(CountOf(after, one.op), 1);
    const int64_t rest = one.name == "silu in a longer product" ? 2 : 0;
    EXPECT_EQ(static_cast<int64_t>(after.instructions.size()), 2 + rest);
  }
}

TEST(ActivationsTest, RecognisesThemInAnyClass) {
  for (const Case& one : Recognised()) {
    SCOPED_TRACE(one.name);
    Draft draft;
    const ValueId z = draft.State(8);
    const ValueId made = one.make(draft, draft.Linear(draft.Time(), 8));
    const Program before = draft.Finish(draft.Add(z, made));
    const Program after = *Optimize(before);
    ExpectSameMeaning(before, after, kOfConstants);
    EXPECT_EQ(CountOf(after, one.op), 1);
  }
}

TEST(ActivationsTest, KeepsOtherFactorsAndScales) {
  Draft draft;
  const ValueId z = draft.State(8), x = draft.Linear(z, 8);
  const ValueId scale = draft.Linear(draft.Time(), 8);
  const ValueId gelu = draft.Multiply(x, draft.Multiply(scale, ErfGate(draft, x)));
  const Program before = draft.Finish(draft.By(Op::kMultiply, gelu, 0.75));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after, kOfConstants);
  EXPECT_EQ(CountOf(after, Op::kGelu), 1);
  EXPECT_EQ(CountOf(after, Op::kErf), 0);
}

TEST(ActivationsTest, GivesAValueToOneOfTwoGates) {
  Draft draft;
  const ValueId x = draft.State(8);
  const ValueId gate = draft.Do(Op::kTanh, {draft.Do(Op::kSoftplus, {x})});
  const ValueId product = draft.Multiply(draft.Do(Op::kSigmoid, {x}), draft.Multiply(x, gate));
  const Program before = draft.Finish(product);
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(CountOf(after, Op::kSilu) + CountOf(after, Op::kMish), 1);
}

TEST(ActivationsTest, LeavesWhatOnlyLooksAlike) {
  const std::vector<Case> cases = {
      {"the sigmoid of another value", Op::kSilu,
       [](Draft& d, ValueId x) { return d.Multiply(x, d.Do(Op::kSigmoid, {d.State(8)})); }},
      {"a quotient by another value's exponential", Op::kSilu,
       [](Draft& d, ValueId x) {
         return d.Divide(d.Do(Op::kSin, {x}), OnePlusExp(d, d.Do(Op::kNegate, {x})));
       }},
      {"a steeper sigmoid", Op::kSilu,
       [](Draft& d, ValueId x) {
         return d.Multiply(x, d.Do(Op::kSigmoid, {d.By(Op::kMultiply, x, 1.702)}));
       }},
      {"a sigmoid that is read elsewhere", Op::kSilu,
       [](Draft& d, ValueId x) {
         const ValueId gate = d.Do(Op::kSigmoid, {x});
         return d.Add(d.Multiply(x, gate), d.Do(Op::kSin, {gate}));
       }},
      {"the tanh of another softplus", Op::kMish,
       [](Draft& d, ValueId x) {
         const ValueId softplus = d.Do(Op::kSoftplus, {d.By(Op::kMultiply, x, 2)});
         return d.Multiply(x, d.Do(Op::kTanh, {softplus}));
       }},
      {"a root of two that is too short", Op::kGelu,
       [](Draft& d, ValueId x) {
         const ValueId erf = d.Do(Op::kErf, {d.By(Op::kDivide, x, 1.4)});
         return Halved(d, d.Multiply(x, d.By(Op::kAdd, erf, 1)));
       }},
      {"one plus twice the gate", Op::kGelu,
       [](Draft& d, ValueId x) {
         const ValueId erf = d.Do(Op::kErf, {d.By(Op::kDivide, x, 1.41421354)});
         return d.Multiply(x, d.By(Op::kAdd, d.By(Op::kMultiply, erf, 2), 1));
       }},
      {"an erf that is read elsewhere", Op::kGelu,
       [](Draft& d, ValueId x) {
         const ValueId erf = d.Do(Op::kErf, {d.By(Op::kDivide, x, 1.41421354)});
         return d.Add(d.Multiply(x, d.By(Op::kAdd, erf, 1)), d.Do(Op::kSin, {erf}));
       }},
      {"another cubic", Op::kGeluTanh,
       [](Draft& d, ValueId x) {
         const ValueId cube = d.By(Op::kMultiply, d.By(Op::kPower, x, 3), 0.05);
         const ValueId argument = d.By(Op::kMultiply, d.Add(x, cube), kRootOfTwoOverPi);
         return d.Multiply(Halved(d, x), TanhGate(d, argument));
       }},
      {"two plus e^x", Op::kSoftplus,
       [](Draft& d, ValueId x) {
         return d.Do(Op::kLog, {d.By(Op::kAdd, d.Do(Op::kExp, {x}), 2)});
       }},
      {"an exponential that is read elsewhere", Op::kSoftplus,
       [](Draft& d, ValueId x) {
         const ValueId e = d.Do(Op::kExp, {x});
         return d.Multiply(d.Do(Op::kLog, {d.By(Op::kAdd, e, 1)}), e);
       }},
      {"the larger of x and one", Op::kRelu,
       [](Draft& d, ValueId x) { return d.By(Op::kMaximum, x, 1); }},
      {"an exponent without its sign", Op::kSigmoid,
       [](Draft& d, ValueId x) { return d.Do(Op::kReciprocal, {OnePlusExp(d, x)}); }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    Draft draft;
    const bool own_state = one.name == "the sigmoid of another value";
    const ValueId z = own_state ? draft.Condition(8) : draft.State(8);
    const Program before = draft.Finish(one.make(draft, draft.Linear(z, 8)));
    const Program after = *Optimize(before);
    ExpectSameMeaning(before, after);
    EXPECT_EQ(CountOf(after, one.op), 0);
  }
}

TEST(ActivationsTest, LeavesAValueThatIsThePrediction) {
  Draft draft;
  const ValueId x = draft.State(8), gate = draft.Do(Op::kSigmoid, {x});
  const Program after = *Optimize(draft.Finish(draft.Multiply(x, gate), gate));
  EXPECT_EQ(CountOf(after, Op::kSilu), 0);
}

}  // namespace
}  // namespace deeppcr::program
