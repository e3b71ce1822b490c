// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_OP_H_
#define DEEPPCR_KERNELS_PROGRAM_OP_H_

// The operations of step programs, one row each. Shape rules, evaluation, tangents, rounding, the
// compiler's listing and the table of kernels/program/README.md follow from the rows; the formulas
// of the elementwise ones are in elementwise.h. Nothing but the standard library's plain headers is
// included: the translation units of one instruction set read the rows too.

#include <cstdint>

namespace deeppcr::program {

enum class Op : uint8_t {
  // One operand.
  kNegate,
  kAbs,
  kSquare,
  kReciprocal,
  kSqrt,
  kExp,
  kLog,
  kSin,
  kCos,
  kAtan,
  kTanh,
  kErf,
  kSigmoid,
  kSilu,
  kGelu,
  kGeluTanh,
  kRelu,
  kLeakyRelu,
  kElu,
  kSoftplus,
  kMish,
  kExpMinusOne,
  kFloor,
  // Two operands.
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kMaximum,
  kMinimum,
  kPower,
  kLess,
  kEqual,
  // Three operands.
  kSelect,
  // Over an axis of the vector.
  kSum,
  kMean,
  kLargest,
  kStandardize,  // layer and group norm, before weight and bias
  kScaleToUnit,  // RMS norm, before the weight
  kSoftmax,
  // With a matrix.
  kLinear,
  kProduct,
  kLookup,
  // Of elements.
  kArrange,
  // Of the sampler.
  kReverseStep,
};

enum class OpKind : uint8_t {
  kElementwise,  // result[i] = f(operands[..][i]); all as long as the result
  kReduction,    // [outer, axis, inner] -> [outer, inner]
  kAlongAxis,    // [outer, axis, inner] -> the same
  kLinear,       // [repeat, cols] -> [repeat, rows]
  kProduct,      // the same, by a matrix (and a bias) that depend on the time alone
  kLookup,       // an index -> a row of a table
  kArrange,      // elements of its operands, in any order
  kReverseStep,  // (z, m) -> z'
};

// What a result may depend on beside its operands' smooth change, for the probes of rounding.
enum class Bend : uint8_t {
  kSmooth,
  kKinked,  // slopes jump somewhere
  kJumps,   // values jump somewhere
};

struct OpRow {
  Op op;
  const char* name;
  OpKind kind;
  int operands;  // -1: any number
  Bend bend;
  // Rounding error of a result in float32, at most, beyond what its operands bring: in units of
  // 2^-24 of the result, half a unit in its last place or more. 0: exact. More where UlpsAt says
  // so.
  float ulps;
  const char* formula;  // for documentation
};

inline constexpr OpRow kOps[] = {
    {Op::kNegate, "negate", OpKind::kElementwise, 1, Bend::kSmooth, 0, "-a"},
    {Op::kAbs, "abs", OpKind::kElementwise, 1, Bend::kKinked, 0, "abs a"},
    {Op::kSquare, "square", OpKind::kElementwise, 1, Bend::kSmooth, 1, "a a"},
    {Op::kReciprocal, "reciprocal", OpKind::kElementwise, 1, Bend::kSmooth, 1, "1 / a"},
    {Op::kSqrt, "sqrt", OpKind::kElementwise, 1, Bend::kSmooth, 1, "sqrt(a)"},
    {Op::kExp, "exp", OpKind::kElementwise, 1, Bend::kSmooth, 2, "e^a"},
    {Op::kLog, "log", OpKind::kElementwise, 1, Bend::kSmooth, 2, "ln a"},
    {Op::kSin, "sin", OpKind::kElementwise, 1, Bend::kSmooth, 2, "sin a"},
    {Op::kCos, "cos", OpKind::kElementwise, 1, Bend::kSmooth, 2, "cos a"},
    {Op::kAtan, "atan", OpKind::kElementwise, 1, Bend::kSmooth, 2, "atan a"},
    {Op::kTanh, "tanh", OpKind::kElementwise, 1, Bend::kSmooth, 6, "tanh a"},
    {Op::kErf, "erf", OpKind::kElementwise, 1, Bend::kSmooth, 2, "erf a"},
    {Op::kSigmoid, "sigmoid", OpKind::kElementwise, 1, Bend::kSmooth, 3, "1 / (1 + e^-a)"},
    {Op::kSilu, "silu", OpKind::kElementwise, 1, Bend::kSmooth, 4, "a sigmoid(a)"},
    {Op::kGelu, "gelu", OpKind::kElementwise, 1, Bend::kSmooth, 5, "a (1 + erf(a / sqrt 2)) / 2"},
    {Op::kGeluTanh, "gelu_tanh", OpKind::kElementwise, 1, Bend::kSmooth, 5,
     "a sigmoid(2 sqrt(2 / pi) (a + 0.044715 a^3))"},
    {Op::kRelu, "relu", OpKind::kElementwise, 1, Bend::kKinked, 0, "max(a, 0)"},
    {Op::kLeakyRelu, "leaky_relu", OpKind::kElementwise, 1, Bend::kKinked, 2, "a < 0 ? 0.01 a : a"},
    {Op::kElu, "elu", OpKind::kElementwise, 1, Bend::kSmooth, 2, "a < 0 ? e^a - 1 : a"},
    {Op::kSoftplus, "softplus", OpKind::kElementwise, 1, Bend::kSmooth, 4, "ln(1 + e^a)"},
    {Op::kMish, "mish", OpKind::kElementwise, 1, Bend::kSmooth, 5, "a tanh(softplus(a))"},
    {Op::kExpMinusOne, "exp_minus_one", OpKind::kElementwise, 1, Bend::kSmooth, 3, "e^a - 1"},
    {Op::kFloor, "floor", OpKind::kElementwise, 1, Bend::kJumps, 0, "largest integer <= a"},
    {Op::kAdd, "add", OpKind::kElementwise, 2, Bend::kSmooth, 1, "a + b"},
    {Op::kSubtract, "subtract", OpKind::kElementwise, 2, Bend::kSmooth, 1, "a - b"},
    {Op::kMultiply, "multiply", OpKind::kElementwise, 2, Bend::kSmooth, 1, "a b"},
    {Op::kDivide, "divide", OpKind::kElementwise, 2, Bend::kSmooth, 1, "a / b"},
    {Op::kMaximum, "maximum", OpKind::kElementwise, 2, Bend::kKinked, 0, "max(a, b)"},
    {Op::kMinimum, "minimum", OpKind::kElementwise, 2, Bend::kKinked, 0, "min(a, b)"},
    {Op::kPower, "power", OpKind::kElementwise, 2, Bend::kSmooth, 3, "a^b"},
    {Op::kLess, "less", OpKind::kElementwise, 2, Bend::kJumps, 0, "a < b ? 1 : 0"},
    {Op::kEqual, "equal", OpKind::kElementwise, 2, Bend::kJumps, 0, "a = b ? 1 : 0"},
    {Op::kSelect, "select", OpKind::kElementwise, 3, Bend::kSmooth, 0, "a != 0 ? b : c"},
    {Op::kSum, "sum", OpKind::kReduction, 1, Bend::kSmooth, 1, "sum a"},
    {Op::kMean, "mean", OpKind::kReduction, 1, Bend::kSmooth, 2, "sum a / n"},
    {Op::kLargest, "largest", OpKind::kReduction, 1, Bend::kKinked, 0, "max a"},
    {Op::kStandardize, "standardize", OpKind::kAlongAxis, 1, Bend::kSmooth, 2,
     "(a - mean a) / sqrt(var a + epsilon)"},
    {Op::kScaleToUnit, "scale_to_unit", OpKind::kAlongAxis, 1, Bend::kSmooth, 2,
     "a / sqrt(mean(a a) + epsilon)"},
    {Op::kSoftmax, "softmax", OpKind::kAlongAxis, 1, Bend::kSmooth, 4, "e^a / sum e^a"},
    {Op::kLinear, "linear", OpKind::kLinear, 1, Bend::kSmooth, 1, "W a + b"},
    {Op::kProduct, "product", OpKind::kProduct, -1, Bend::kSmooth, 1,
     "A x + b, where A and b are made anew for each step"},
    {Op::kLookup, "lookup", OpKind::kLookup, 1, Bend::kJumps, 0, "row a of a table"},
    {Op::kArrange, "arrange", OpKind::kArrange, -1, Bend::kSmooth, 0, "elements, in an order"},
    {Op::kReverseStep, "reverse_step", OpKind::kReverseStep, 2, Bend::kKinked, 1,
     "the reverse step of kernels/problem/reverse_step.h"},
};

inline constexpr int kNumOps = sizeof(kOps) / sizeof(kOps[0]);

constexpr const char* NameOf(OpKind kind) {
  constexpr const char* kNames[] = {"elementwise", "reduction", "along an axis", "linear",
                                    "product",     "lookup",    "arrange",       "reverse step"};
  return kNames[static_cast<int>(kind)];
}
constexpr const char* NameOf(Bend bend) {
  constexpr const char* kNames[] = {"smooth", "kinked", "jumps"};
  return kNames[static_cast<int>(bend)];
}

constexpr const OpRow& RowOf(Op op) { return kOps[static_cast<int>(op)]; }

// The rounding of gelu_tanh at a, of which `ulps` is that at positive numbers: of a negative number
// it is nearly a e^b, where b = 2 sqrt(2 / pi) (a + 0.044715 a^3) rounds by three units of its own,
// until the result is zero.
constexpr float GeluTanhUlps(float ulps, float a) {
  if (!(a < 0)) return ulps;
  constexpr float kMost = 264;
  const float of_argument = -3 * a * (1.5957691F + 0.0713548F * a * a);
  return of_argument < ulps ? ulps : of_argument < kMost ? of_argument : kMost;
}
// The rounding of an operation at its first operand, as `ulps` states it.
constexpr float UlpsAt(Op op, float a) {
  const float ulps = RowOf(op).ulps;
  return op == Op::kGeluTanh ? GeluTanhUlps(ulps, a) : ulps;
}

// What x moves through a slope: nothing where either is zero, be the other one infinite as the
// slope of a root at zero. What stands still moves nothing, and a unit at rest passes nothing on.
// Where a slope is zero because its operand is infinite, this is the limit of a sigmoid that is
// written with an exponential that overflows, and none at a pole: of atan(1 / x) at exactly zero it
// makes 0.
template <class T>
constexpr T MovedBy(T slope, T x) {
  return slope == 0 || x == 0 ? T{0} : slope * x;
}

constexpr bool RowsFollowTheEnumerators() {
  for (int i = 0; i < kNumOps; ++i) {
    if (static_cast<int>(kOps[i].op) != i) return false;
  }
  return static_cast<int>(Op::kReverseStep) + 1 == kNumOps;
}
static_assert(RowsFollowTheEnumerators());

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_OP_H_
