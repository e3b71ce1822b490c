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

// The larger and the smaller of two values; a NaN if there is one.
DEEPPCR_DEVICE float LargerOrNan(float a, float b) { return a > b || a != a ? a : b; }
DEEPPCR_DEVICE float SmallerOrNan(float a, float b) { return a < b || a != a ? a : b; }

DEEPPCR_DEVICE_CALL float ValueOf(program::Op op, float first, float second, float third) {
  const float a[3] = {first, second, third};
  using program::Op;
  switch (op) {
    case Op::kNegate:
      return -a[0];
    case Op::kAbs:
      return fabsf(a[0]);
    case Op::kSquare:
      return a[0] * a[0];
    case Op::kReciprocal:
      return 1.0F / a[0];
    case Op::kSqrt:
      return sqrtf(a[0]);
    case Op::kExp:
      return expf(a[0]);
    case Op::kLog:
      return logf(a[0]);
    case Op::kSin:
      return sinf(a[0]);
    case Op::kCos:
      return cosf(a[0]);
    case Op::kAtan:
      return atanf(a[0]);
    case Op::kErf:
      return erff(a[0]);
    case Op::kExpMinusOne:
      return expm1f(a[0]);
    case Op::kFloor:
      return floorf(a[0]);
    case Op::kAdd:
      return a[0] + a[1];
    case Op::kSubtract:
      return a[0] - a[1];
    case Op::kMultiply:
      return a[0] * a[1];
    case Op::kDivide:
      return a[0] / a[1];
    case Op::kMaximum:
      return LargerOrNan(a[0], a[1]);
    case Op::kMinimum:
      return SmallerOrNan(a[0], a[1]);
    case Op::kPower:
      return powf(a[0], a[1]);
    case Op::kLess:
      return a[0] < a[1] ? 1.0F : 0.0F;
    case Op::kEqual:
      return a[0] == a[1] ? 1.0F : 0.0F;
    case Op::kSelect:
      return a[0] == 0.0F ? a[2] : a[1];
    default:
      return Activate(ActivationOf(op), a[0]);
  }
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
DEEPPCR_DEVICE_CALL float SlopeOf(program::Op op, float a) {
  using program::Op;
  switch (op) {
    case Op::kNegate:
      return -1.0F;
    case Op::kAbs:
      return a > 0.0F ? 1.0F : a < 0.0F ? -1.0F : 0.0F;
    case Op::kSquare:
      return a + a;
    case Op::kReciprocal: {
      const float inverse = 1.0F / a;
      return -(inverse * inverse);
    }
    case Op::kSqrt:
      return 0.5F / sqrtf(a);
    case Op::kExp:
    case Op::kExpMinusOne:
      return expf(a);
    case Op::kLog:
      return 1.0F / a;
    case Op::kSin:
      return cosf(a);
    case Op::kCos:
      return -sinf(a);
    case Op::kAtan:
      return 1.0F / fmaf(a, a, 1.0F);
    case Op::kErf:
      return expf(-(a * a)) * 1.12837917F;  // 2 / sqrt(pi)
    case Op::kFloor:
      return 0.0F;
    default:
      return Differentiate(ActivationOf(op), a);
  }
}

// The slopes of an operation of two operands, by each of them.
struct TwoSlopes {
  float first, second;
};
// Of equal values each counts half.
DEEPPCR_DEVICE_CALL TwoSlopes SlopesOf(program::Op op, float a, float b) {
  using program::Op;
  switch (op) {
    case Op::kAdd:
      return {1.0F, 1.0F};
    case Op::kSubtract:
      return {1.0F, -1.0F};
    case Op::kMultiply:
      return {b, a};
    case Op::kDivide:
      return {1.0F / b, -(a / b) / b};
    case Op::kMaximum: {
      const float first = a > b ? 1.0F : a == b ? 0.5F : 0.0F;
      return {first, 1.0F - first};
    }
    case Op::kMinimum: {
      const float first = b > a ? 1.0F : a == b ? 0.5F : 0.0F;
      return {first, 1.0F - first};
    }
    case Op::kPower:
      return {PowerSlopeByBase(a, b), PowerSlopeByExponent(a, b)};
    default:
      return {0.0F, 0.0F};
  }
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_ELEMENTWISE_H_
