// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_CPU_DIFFUSION_RUNNING_ERROR_H_
#define DEEPPCR_TESTS_KERNELS_CPU_DIFFUSION_RUNNING_ERROR_H_

// Scalars for plain loops that are written once: double; Bounded, a double with a bound on its
// distance from any float32 evaluation, in any order; Dual, a value with its derivative along one
// direction. Dual<Bounded> thus bounds float32 tangents. Tolerances of tests are these bounds,
// doubled for the second-order terms that they leave out.

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace deeppcr::testing {

inline constexpr double kUnit = 0x1p-24;

struct Bounded {
  double value = 0, error = 0;

  Bounded() = default;
  Bounded(double v, double e = 0) : value(v), error(e) {}  // NOLINT: numbers are exact

  // A result with one more rounding.
  static Bounded Rounded(double v, double inherited) {
    return {v, inherited + kUnit * std::fabs(v)};
  }

  friend Bounded operator+(Bounded a, Bounded b) {
    return Rounded(a.value + b.value, a.error + b.error);
  }
  friend Bounded operator-(Bounded a, Bounded b) {
    return Rounded(a.value - b.value, a.error + b.error);
  }
  friend Bounded operator*(Bounded a, Bounded b) {
    return Rounded(a.value * b.value, std::fabs(a.value) * b.error + std::fabs(b.value) * a.error);
  }
  friend Bounded operator/(Bounded a, Bounded b) {
    const double q = a.value / b.value;
    return Rounded(q, (a.error + std::fabs(q) * b.error) / std::fabs(b.value));
  }
};

template <class T>
struct Dual {
  T value = 0, slope = 0;

  Dual() = default;
  Dual(double v) : value(v) {}  // NOLINT: a constant
  Dual(T v, T s) : value(v), slope(s) {}

  friend Dual operator+(Dual a, Dual b) { return {a.value + b.value, a.slope + b.slope}; }
  friend Dual operator-(Dual a, Dual b) { return {a.value - b.value, a.slope - b.slope}; }
  friend Dual operator*(Dual a, Dual b) {
    return {a.value * b.value, a.slope * b.value + a.value * b.slope};
  }
  friend Dual operator/(Dual a, Dual b) {
    const T q = a.value / b.value;
    return {q, (a.slope - q * b.slope) / b.value};
  }
};

// A constant that the kernels keep as a float.
inline void AsFloat(double v, double* x) { *x = v; }
inline void AsFloat(double v, Bounded* x) { *x = {v, kUnit * std::fabs(v)}; }
template <class T>
void AsFloat(double v, Dual<T>* x) {
  AsFloat(v, &x->value);
}
template <class T>
T AsFloat(double v) {
  T x;
  AsFloat(v, &x);
  return x;
}

// f(x) for a function f that the kernels evaluate to within 16 units of its size and `floor`. The
// effect of an error of x is found by trying, which holds at kinks and jumps too.
inline double Through(double x, double, const auto& f) { return f(x); }
inline Bounded Through(Bounded x, double floor, const auto& f) {
  const double y = f(x.value);
  const double up = std::fabs(f(x.value + x.error) - y);
  const double down = std::fabs(f(x.value - x.error) - y);
  return {y, std::max(up, down) + 16 * kUnit * (std::fabs(y) + floor)};
}
// Applies a function with its derivative; a derivative may cancel, hence its floor.
inline double Apply(double x, const auto& f, const auto&) { return f(x); }
inline Bounded Apply(Bounded x, const auto& f, const auto&) { return Through(x, 0, f); }
template <class T>
Dual<T> Apply(Dual<T> x, const auto& f, const auto& derivative) {
  return {Through(x.value, 0, f), x.slope * Through(x.value, 1, derivative)};
}

// bias + sum_k w_k x_k, summed in any order.
inline double Dot(double bias, std::span<const float> w, const std::vector<double>& x) {
  double sum = bias;
  for (size_t k = 0; k < w.size(); ++k) sum += double{w[k]} * x[k];
  return sum;
}
inline Bounded Dot(double bias, std::span<const float> w, const std::vector<Bounded>& x) {
  double sum = bias, size = std::fabs(bias), inherited = 0;
  for (size_t k = 0; k < w.size(); ++k) {
    const double term = double{w[k]} * x[k].value;
    sum += term;
    size += std::fabs(term);
    inherited += std::fabs(double{w[k]}) * x[k].error;
  }
  // Without fused operations every term is rounded twice: alone and in a sum.
  return {sum, inherited + (2 * static_cast<double>(w.size()) + 1) * kUnit * size};
}
template <class T>
Dual<T> Dot(double bias, std::span<const float> w, const std::vector<Dual<T>>& x) {
  std::vector<T> values, slopes;
  for (const Dual<T>& v : x) {
    values.push_back(v.value);
    slopes.push_back(v.slope);
  }
  return {Dot(bias, w, values), Dot(0.0, w, slopes)};
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_KERNELS_CPU_DIFFUSION_RUNNING_ERROR_H_
