// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_CPU_DIFFUSION_PLAIN_DIFFUSION_H_
#define DEEPPCR_TESTS_KERNELS_CPU_DIFFUSION_PLAIN_DIFFUSION_H_

// Reverse processes in plain loops over the scalars of running_error.h.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/kernel_set.h"
#include "kernels/problem/spec.h"
#include "tests/kernels/cpu/diffusion/running_error.h"
#include "tests/testing/random_diffusion.h"

namespace deeppcr::testing {

inline double PlainActivate(Activation activation, double x) {
  switch (activation) {
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kRelu:
      return x > 0 ? x : 0;
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kIdentity:
      return x;
    default:
      std::abort();  // no plain form of this activation has been written yet
  }
}
inline double PlainDerivative(Activation activation, double x) {
  const double s = 1 / (1 + std::exp(-x)), t = std::tanh(x);
  switch (activation) {
    case Activation::kTanh:
      return 1 - t * t;
    case Activation::kRelu:
      return x > 0 ? 1 : 0;
    case Activation::kSilu:
      return s + x * s * (1 - s);
    case Activation::kIdentity:
      return 1;
    default:
      std::abort();
  }
}

template <class T>
using Values = std::vector<T>;

template <class T>
T Act(Activation activation, T x) {
  return Apply(
      x, [=](double v) { return PlainActivate(activation, v); },
      [=](double v) { return PlainDerivative(activation, v); });
}

// act(W x + b) for `rows` rows of stacked layers, from row `first` on.
template <class T>
Values<T> PlainDense(std::span<const float> weight, std::span<const float> bias, int64_t rows,
                     const Values<T>& x, int64_t first = 0,
                     Activation activation = Activation::kIdentity) {
  const auto cols = static_cast<int64_t>(x.size());
  Values<T> out;
  for (int64_t i = first; i < first + rows; ++i) {
    const T a = Dot(bias.empty() ? 0.0 : bias[i], weight.subspan(i * cols, cols), x);
    out.push_back(activation == Activation::kIdentity ? a : Act(activation, a));
  }
  return out;
}
template <class T>
Values<T> PlainDense(const DenseSpec& layer, const Values<T>& x) {
  return PlainDense(layer.weight, layer.bias, layer.rows, x, 0, layer.activation);
}

template <class T>
Values<T> PlainNorm(const Values<T>& x) {
  const auto size = static_cast<double>(x.size());
  const std::vector<float> ones(x.size(), 1.0F);
  const T mean = Dot(0.0, ones, x) / T(size);
  Values<T> centred, squares;
  for (const T& v : x) centred.push_back(v - mean);
  for (const T& v : centred) squares.push_back(v * v);
  const T variance = Dot(0.0, ones, squares) / T(size) + AsFloat<T>(1e-6);
  const T deviation = Apply(
      variance, [](double v) { return std::sqrt(v); }, [](double v) { return 0.5 / std::sqrt(v); });
  for (T& v : centred) v = v / deviation;
  return centred;
}

// The modulation mu of a step; the embedding of the condition, [H], may be empty.
template <class T>
Values<T> PlainModulation(const DiffusionSpec& spec, int64_t step, const Values<T>& condition) {
  const int64_t hidden = spec.denoiser.hidden_dim;
  Values<T> y;
  for (int64_t i = 0; i < hidden; ++i) {
    T value = AsFloat<T>(spec.time_embedding[step * hidden + i]);
    if (!condition.empty()) value = value + condition[i];
    y.push_back(Act(Activation::kSilu, value));
  }
  return PlainDense(spec.denoiser.modulation, y);
}

template <class T>
Values<T> PlainDenoiser(const DenoiserSpec& d, const Values<T>& mu, const Values<T>& z) {
  const int64_t hidden = d.hidden_dim;
  Values<T> h = PlainDense(d.input, z);
  const auto part = [&](int64_t p, int64_t k) { return mu[p * hidden + k]; };
  for (int64_t i = 0; i < d.num_blocks; ++i) {
    if (d.kind == DenoiserKind::kResidualMlp) {
      const Values<T> a = PlainDense(d.first_weight, d.first_bias, hidden, h, i * hidden);
      for (int64_t k = 0; k < hidden; ++k) h[k] = h[k] + Act(d.activation, a[k] + part(i, k));
      continue;
    }
    Values<T> u = PlainNorm(h);
    for (int64_t k = 0; k < hidden; ++k) {
      const int64_t at = i * hidden + k;
      const T normed = u[k] * T(d.norm_weight[at]) + T(d.norm_bias[at]);
      u[k] = normed * (T(1.0) + part(3 * i + 1, k)) + part(3 * i, k);
    }
    const Values<T> v =
        PlainDense(d.first_weight, d.first_bias, hidden, u, i * hidden, d.activation);
    const Values<T> w = PlainDense(d.second_weight, d.second_bias, hidden, v, i * hidden);
    for (int64_t k = 0; k < hidden; ++k) h[k] = h[k] + part(3 * i + 2, k) * w[k];
  }
  if (d.kind == DenoiserKind::kAdaLnMlp) {
    h = PlainNorm(h);
    const int64_t n = 3 * d.num_blocks;
    for (int64_t k = 0; k < hidden; ++k) h[k] = h[k] * (T(1.0) + part(n + 1, k)) + part(n, k);
  }
  return PlainDense(d.output, h);
}

template <class T>
T PlainClip(double range, T x) {
  return Apply(
      x, [=](double v) { return std::clamp(v, -range, range); },
      [=](double v) { return std::fabs(v) <= range ? 1.0 : 0.0; });
}

// The next state z' and, if wanted, m. `mu` belongs to the step; `noise` [D] may be null.
template <class T>
Values<T> PlainStep(const DiffusionSpec& spec, int64_t step, const Values<T>& mu,
                    const float* noise, const Values<T>& z, Values<T>* prediction = nullptr) {
  const ReverseStep& s = spec.steps[step];
  const Values<T> m = PlainDenoiser(spec.denoiser, mu, z);
  Values<T> next;
  for (size_t i = 0; i < z.size(); ++i) {
    const T raw = AsFloat<T>(s.x0_z) * z[i] + AsFloat<T>(s.x0_m) * m[i];
    T sum = AsFloat<T>(s.z_z) * z[i] + AsFloat<T>(s.z_m) * m[i] +
            AsFloat<T>(s.z_x0) * PlainClip(spec.clip_range, raw);
    if (noise != nullptr) sum = sum + AsFloat<T>(s.sigma) * T(noise[i]);
    next.push_back(sum);
  }
  if (prediction != nullptr) *prediction = m;
  return next;
}

// Floats as scalars or, with a direction, as points with tangents.
template <class T>
Values<T> Exactly(const float* x, int64_t n) {
  return Values<T>(x, x + n);
}
template <class T>
Values<Dual<T>> Along(const float* x, const std::vector<double>& direction) {
  Values<Dual<T>> out;
  for (size_t i = 0; i < direction.size(); ++i) out.push_back({T(x[i]), T(direction[i])});
  return out;
}
// Values that do not depend on the state, as constants.
template <class T>
Values<Dual<T>> Constants(const Values<T>& x) {
  Values<Dual<T>> out;
  for (const T& v : x) out.push_back({v, T(0.0)});
  return out;
}
inline std::vector<double> UnitVector(int64_t dim, int64_t k) {
  std::vector<double> e(dim);
  e[k] = 1;
  return e;
}

struct InstructionSetKernels {
  std::string name;
  cpu::KernelSet set;
};

// One row per instruction set of this machine, oldest first.
inline const std::vector<InstructionSetKernels>& KernelsOfThisMachine() {
  static const auto* const kAll = [] {
    auto* all = new std::vector<InstructionSetKernels>;
    const cpu::InstructionSet newest = cpu::DetectInstructionSet();
    all->push_back({"baseline", {&cpu::KernelsBaseline, &cpu::ProgramKernelsBaseline}});
    if (newest >= cpu::InstructionSet::kAvx2)
      all->push_back({"avx2", {&cpu::KernelsAvx2, &cpu::ProgramKernelsAvx2}});
    if (newest >= cpu::InstructionSet::kAvx512)
      all->push_back({"avx512", {&cpu::KernelsAvx512, &cpu::ProgramKernelsAvx512}});
    return all;
  }();
  return *kAll;
}

inline std::string KindName(DenoiserKind kind) {
  return kind == DenoiserKind::kAdaLnMlp ? "AdaLn" : "Residual";
}

inline bool SameFloats(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(float)) == 0;
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_KERNELS_CPU_DIFFUSION_PLAIN_DIFFUSION_H_
