// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/elementwise.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace deeppcr::program {
namespace {

double Sigmoid(double a) {
  if (a >= 0) return 1 / (1 + std::exp(-a));
  const double e = std::exp(a);
  return e / (1 + e);
}

double Softplus(double a) { return a > 0 ? a + std::log1p(std::exp(-a)) : std::log1p(std::exp(a)); }

double NormalCdf(double a) { return 0.5 * std::erfc(-a / std::numbers::sqrt2); }

double NormalDensity(double a) {
  return std::exp(-0.5 * a * a) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
}

// 2 sqrt(2 / pi) (a + 0.044715 a^3), and its derivative.
constexpr double kGeluFactor = 2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
double GeluTanhArgument(double a) { return kGeluFactor * (a + 0.044715 * a * a * a); }
double GeluTanhSlope(double a) { return kGeluFactor * (1 + 3 * 0.044715 * a * a); }

// The larger or the smaller; a NaN if one is.
double Maximum(double a, double b) { return std::isnan(a) || a > b ? a : b; }
double Minimum(double a, double b) { return std::isnan(a) || a < b ? a : b; }

// Derivative of a^b by a: 0 where b is 0, whatever a.
double PowerSlope(double a, double b) { return b == 0 ? 0 : b * std::pow(a, b - 1); }

// In the order of the enumerators.
constexpr ElementwiseRow kRows[] = {
    {Op::kNegate, [](const double* a) { return -a[0]; },
     [](const double*, double* s) { s[0] = -1; }},
    {Op::kAbs, [](const double* a) { return std::fabs(a[0]); },
     [](const double* a, double* s) { s[0] = a[0] > 0   ? 1
                                             : a[0] < 0 ? -1
                                                        : 0; }},
    {Op::kSquare, [](const double* a) { return a[0] * a[0]; },
     [](const double* a, double* s) { s[0] = 2 * a[0]; }},
    {Op::kReciprocal, [](const double* a) { return 1 / a[0]; },
     [](const double* a, double* s) { s[0] = -1 / (a[0] * a[0]); }},
    {Op::kSqrt, [](const double* a) { return std::sqrt(a[0]); },
     [](const double* a, double* s) { s[0] = 0.5 / std::sqrt(a[0]); }},
    {Op::kExp, [](const double* a) { return std::exp(a[0]); },
     [](const double* a, double* s) { s[0] = std::exp(a[0]); }},
    {Op::kLog, [](const double* a) { return std::log(a[0]); },
     [](const double* a, double* s) { s[0] = 1 / a[0]; }},
    {Op::kSin, [](const double* a) { return std::sin(a[0]); },
     [](const double* a, double* s) { s[0] = std::cos(a[0]); }},
    {Op::kCos, [](const double* a) { return std::cos(a[0]); },
     [](const double* a, double* s) { s[0] = -std::sin(a[0]); }},
    {Op::kAtan, [](const double* a) { return std::atan(a[0]); },
     [](const double* a, double* s) { s[0] = 1 / (1 + a[0] * a[0]); }},
    {Op::kTanh, [](const double* a) { return std::tanh(a[0]); },
     [](const double* a, double* s) {
       const double cosh = std::cosh(a[0]);
       s[0] = 1 / (cosh * cosh);
     }},
    {Op::kErf, [](const double* a) { return std::erf(a[0]); },
     [](const double* a, double* s) {
       s[0] = 2 * std::numbers::inv_sqrtpi * std::exp(-a[0] * a[0]);
     }},
    {Op::kSigmoid, [](const double* a) { return Sigmoid(a[0]); },
     [](const double* a, double* s) { s[0] = Sigmoid(a[0]) * Sigmoid(-a[0]); }},
    {Op::kSilu, [](const double* a) { return a[0] * Sigmoid(a[0]); },
     [](const double* a, double* s) {
       s[0] = Sigmoid(a[0]) + a[0] * Sigmoid(a[0]) * Sigmoid(-a[0]);
     }},
    {Op::kGelu, [](const double* a) { return a[0] * NormalCdf(a[0]); },
     [](const double* a, double* s) { s[0] = NormalCdf(a[0]) + a[0] * NormalDensity(a[0]); }},
    {Op::kGeluTanh, [](const double* a) { return a[0] * Sigmoid(GeluTanhArgument(a[0])); },
     [](const double* a, double* s) {
       const double u = GeluTanhArgument(a[0]), sigmoid = Sigmoid(u);
       s[0] = sigmoid + a[0] * sigmoid * Sigmoid(-u) * GeluTanhSlope(a[0]);
     }},
    {Op::kRelu, [](const double* a) { return a[0] < 0 ? 0 : a[0]; },
     [](const double* a, double* s) { s[0] = a[0] > 0 ? 1 : 0; }},
    {Op::kLeakyRelu, [](const double* a) { return a[0] < 0 ? 0.01 * a[0] : a[0]; },
     [](const double* a, double* s) { s[0] = a[0] > 0 ? 1 : 0.01; }},
    {Op::kElu, [](const double* a) { return a[0] < 0 ? std::expm1(a[0]) : a[0]; },
     [](const double* a, double* s) { s[0] = a[0] > 0 ? 1 : std::exp(a[0]); }},
    {Op::kSoftplus, [](const double* a) { return Softplus(a[0]); },
     [](const double* a, double* s) { s[0] = Sigmoid(a[0]); }},
    {Op::kMish, [](const double* a) { return a[0] * std::tanh(Softplus(a[0])); },
     [](const double* a, double* s) {
       const double t = std::tanh(Softplus(a[0])), cosh = std::cosh(Softplus(a[0]));
       s[0] = t + a[0] * Sigmoid(a[0]) / (cosh * cosh);
     }},
    {Op::kExpMinusOne, [](const double* a) { return std::expm1(a[0]); },
     [](const double* a, double* s) { s[0] = std::exp(a[0]); }},
    {Op::kFloor, [](const double* a) { return std::floor(a[0]); },
     [](const double*, double* s) { s[0] = 0; }},
    {Op::kAdd, [](const double* a) { return a[0] + a[1]; },
     [](const double*, double* s) { s[0] = s[1] = 1; }},
    {Op::kSubtract, [](const double* a) { return a[0] - a[1]; },
     [](const double*, double* s) { s[0] = 1, s[1] = -1; }},
    {Op::kMultiply, [](const double* a) { return a[0] * a[1]; },
     [](const double* a, double* s) { s[0] = a[1], s[1] = a[0]; }},
    {Op::kDivide, [](const double* a) { return a[0] / a[1]; },
     [](const double* a, double* s) { s[0] = 1 / a[1], s[1] = -a[0] / a[1] / a[1]; }},
    {Op::kMaximum, [](const double* a) { return Maximum(a[0], a[1]); },
     [](const double* a, double* s) {
       s[0] = a[0] > a[1] ? 1 : a[0] == a[1] ? 0.5 : 0;
       s[1] = 1 - s[0];
     }},
    {Op::kMinimum, [](const double* a) { return Minimum(a[0], a[1]); },
     [](const double* a, double* s) {
       s[0] = a[0] < a[1] ? 1 : a[0] == a[1] ? 0.5 : 0;
       s[1] = 1 - s[0];
     }},
    {Op::kPower, [](const double* a) { return std::pow(a[0], a[1]); },
     [](const double* a, double* s) {
       s[0] = PowerSlope(a[0], a[1]);
       // A negative number has powers by whole numbers only, which do not change.
       s[1] = a[0] > 0 ? std::pow(a[0], a[1]) * std::log(a[0]) : 0;
     }},
    {Op::kLess, [](const double* a) { return a[0] < a[1] ? 1.0 : 0.0; },
     [](const double*, double* s) { s[0] = s[1] = 0; }},
    {Op::kEqual, [](const double* a) { return a[0] == a[1] ? 1.0 : 0.0; },
     [](const double*, double* s) { s[0] = s[1] = 0; }},
    {Op::kSelect, [](const double* a) { return a[0] != 0 ? a[1] : a[2]; },
     [](const double* a, double* s) {
       s[0] = 0, s[1] = a[0] != 0 ? 1 : 0;
       s[2] = 1 - s[1];
     }},
};

constexpr bool RowsFollowTheEnumerators() {
  int i = 0;
  for (const ElementwiseRow& row : kRows) {
    if (static_cast<int>(row.op) != i++) return false;
  }
  for (const OpRow& row : kOps) {
    if ((row.kind == OpKind::kElementwise) != (static_cast<int>(row.op) < i)) return false;
  }
  return true;
}
static_assert(RowsFollowTheEnumerators());

}  // namespace

const ElementwiseRow& ElementwiseRowOf(Op op) { return kRows[static_cast<int>(op)]; }

}  // namespace deeppcr::program
