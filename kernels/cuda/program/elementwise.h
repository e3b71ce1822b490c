// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_ELEMENTWISE_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_ELEMENTWISE_H_

// The elementwise operations of step programs and their partial derivatives, on one element. A
// switch is the same for all threads.

#include <math.h>

#include "kernels/cuda/math/activation.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/problem/activation.h"
#include "kernels/program/op.h"

namespace deeppcr::cuda {

// The activation that an operation is; the identity for any other.
constexpr Activation ActivationOf(program::Op op) {
  using program::Op;
  switch (op) {
    case Op::kTanh:
      return Activation::kTanh;
    case Op::kSigmoid:
      return Activation::kSigmoid;
    case Op::kSilu:
      return Activation::kSilu;
    case Op::kGelu:
      return Activation::kGelu;
    case Op::kGeluTanh:
      return Activation::kGeluTanh;
    case Op::kRelu:
      return Activation::kRelu;
    case Op::kLeakyRelu:
      return Activation::kLeakyRelu;
    case Op::kElu:
      return Activation::kElu;
    case Op::kSoftplus:
      return Activation::kSoftplus;
    case Op::kMish:
      return Activation::kMish;
    default:
      return Activation::kIdentity;
  }
}

// An operation as a type: the code of all others is gone before a compiler sees it.
template <program::Op kOp>
struct FixedOp {
  constexpr operator program::Op() const { return kOp; }
};

// Returns f(FixedOp) of an operation on elements, by a switch, as which a compiler knows this
// chain.
template <int kFirst = 0, class F>
DEEPPCR_DEVICE auto OfOp(program::Op op, const F& f) {
  constexpr auto kOp = static_cast<program::Op>(kFirst);
  if constexpr (kFirst + 1 == program::kNumOps) {
    return f(FixedOp<kOp>());
  } else if constexpr (program::RowOf(kOp).kind != program::OpKind::kElementwise) {
    return OfOp<kFirst + 1>(op, f);
  } else {
    return op == kOp ? f(FixedOp<kOp>()) : OfOp<kFirst + 1>(op, f);
  }
}

// The larger and the smaller of two values; a NaN if there is one.
DEEPPCR_DEVICE float LargerOrNan(float a, float b) { return a > b || a != a ? a : b; }
DEEPPCR_DEVICE float SmallerOrNan(float a, float b) { return a < b || a != a ? a : b; }

template <program::Op kOp>
DEEPPCR_DEVICE float ValueOf(FixedOp<kOp>, float a, float b, float c) {
  using program::Op;
  if constexpr (kOp == Op::kNegate) {
    return -a;
  } else if constexpr (kOp == Op::kAbs) {
    return fabsf(a);
  } else if constexpr (kOp == Op::kSquare) {
    return a * a;
  } else if constexpr (kOp == Op::kReciprocal) {
    return 1.0F / a;
  } else if constexpr (kOp == Op::kSqrt) {
    return sqrtf(a);
  } else if constexpr (kOp == Op::kExp) {
    return expf(a);
  } else if constexpr (kOp == Op::kLog) {
    return logf(a);
  } else if constexpr (kOp == Op::kSin) {
    return sinf(a);
  } else if constexpr (kOp == Op::kCos) {
    return cosf(a);
  } else if constexpr (kOp == Op::kAtan) {
    return atanf(a);
  } else if constexpr (kOp == Op::kErf) {
    return erff(a);
  } else if constexpr (kOp == Op::kExpMinusOne) {
    return expm1f(a);
  } else if constexpr (kOp == Op::kFloor) {
    return floorf(a);
  } else if constexpr (kOp == Op::kAdd) {
    return a + b;
  } else if constexpr (kOp == Op::kSubtract) {
    return a - b;
  } else if constexpr (kOp == Op::kMultiply) {
    return a * b;
  } else if constexpr (kOp == Op::kDivide) {
    return a / b;
  } else if constexpr (kOp == Op::kMaximum) {
    return LargerOrNan(a, b);
  } else if constexpr (kOp == Op::kMinimum) {
    return SmallerOrNan(a, b);
  } else if constexpr (kOp == Op::kPower) {
    return powf(a, b);
  } else if constexpr (kOp == Op::kLess) {
    return a < b ? 1.0F : 0.0F;
  } else if constexpr (kOp == Op::kEqual) {
    return a == b ? 1.0F : 0.0F;
  } else if constexpr (kOp == Op::kSelect) {
    return a == 0.0F ? c : b;
  } else {
    return Activate(FixedActivation<ActivationOf(kOp)>(), a);
  }
}
DEEPPCR_DEVICE_CALL float ValueOf(program::Op op, float a, float b, float c) {
  return OfOp(op, [&](auto fixed) { return ValueOf(fixed, a, b, c); });
}

// d a^b / da, b a^(b - 1): zero where b is, whatever a is.
DEEPPCR_DEVICE float PowerSlopeByBase(float a, float b) {
  return b == 0.0F ? 0.0F : b * powf(a, b - 1.0F);
}
// d a^b / db, a^b log a: zero where a <= 0, as a negative number has powers by whole numbers only.
DEEPPCR_DEVICE float PowerSlopeByExponent(float a, float b) {
  return a > 0.0F ? powf(a, b) * logf(a) : 0.0F;
}

// The slope of an operation of one operand.
template <program::Op kOp>
DEEPPCR_DEVICE float SlopeOf(FixedOp<kOp>, float a) {
  using program::Op;
  if constexpr (kOp == Op::kNegate) {
    return -1.0F;
  } else if constexpr (kOp == Op::kAbs) {
    return a > 0.0F ? 1.0F : a < 0.0F ? -1.0F : 0.0F;
  } else if constexpr (kOp == Op::kSquare) {
    return a + a;
  } else if constexpr (kOp == Op::kReciprocal) {
    const float inverse = 1.0F / a;
    return -(inverse * inverse);
  } else if constexpr (kOp == Op::kSqrt) {
    return 0.5F / sqrtf(a);
  } else if constexpr (kOp == Op::kExp || kOp == Op::kExpMinusOne) {
    return expf(a);
  } else if constexpr (kOp == Op::kLog) {
    return 1.0F / a;
  } else if constexpr (kOp == Op::kSin) {
    return cosf(a);
  } else if constexpr (kOp == Op::kCos) {
    return -sinf(a);
  } else if constexpr (kOp == Op::kAtan) {
    return 1.0F / fmaf(a, a, 1.0F);
  } else if constexpr (kOp == Op::kErf) {
    return expf(-(a * a)) * 1.12837917F;  // 2 / sqrt(pi)
  } else if constexpr (kOp == Op::kFloor) {
    return 0.0F;
  } else {
    return Differentiate(FixedActivation<ActivationOf(kOp)>(), a);
  }
}
DEEPPCR_DEVICE_CALL float SlopeOf(program::Op op, float a) {
  return OfOp(op, [&](auto fixed) { return SlopeOf(fixed, a); });
}

// The slopes of an operation of two operands, by each of them.
struct TwoSlopes {
  float first, second;
};
// Of equal values each counts half.
template <program::Op kOp>
DEEPPCR_DEVICE TwoSlopes SlopesOf(FixedOp<kOp>, float a, float b) {
  using program::Op;
  if constexpr (kOp == Op::kAdd) {
    return {1.0F, 1.0F};
  } else if constexpr (kOp == Op::kSubtract) {
    return {1.0F, -1.0F};
  } else if constexpr (kOp == Op::kMultiply) {
    return {b, a};
  } else if constexpr (kOp == Op::kDivide) {
    return {1.0F / b, -(a / b) / b};
  } else if constexpr (kOp == Op::kMaximum) {
    const float first = a > b ? 1.0F : a == b ? 0.5F : 0.0F;
    return {first, 1.0F - first};
  } else if constexpr (kOp == Op::kMinimum) {
    const float first = b > a ? 1.0F : a == b ? 0.5F : 0.0F;
    return {first, 1.0F - first};
  } else if constexpr (kOp == Op::kPower) {
    return {PowerSlopeByBase(a, b), PowerSlopeByExponent(a, b)};
  } else {
    return {0.0F, 0.0F};
  }
}
DEEPPCR_DEVICE_CALL TwoSlopes SlopesOf(program::Op op, float a, float b) {
  return OfOp(op, [&](auto fixed) { return SlopesOf(fixed, a, b); });
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_ELEMENTWISE_H_
