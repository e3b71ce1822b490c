// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/diffusion_ops.h"

#include <cmath>
#include <initializer_list>
#include <utility>

#include "kernels/reference/reference_ops.h"

namespace deeppcr::reference {
namespace {

// Jet of forward mode: n values and their derivatives by the state. Without columns: values only,
// so that the same lines serve both.
struct Jet {
  std::vector<double> value;  // [n]
  std::vector<double> slope;  // [n, columns] row-major
  int64_t columns = 0;
};

Jet Values(std::span<const double> z) { return {.value = {z.begin(), z.end()}}; }

// z as a jet: its derivative is the unit matrix.
Jet Variables(std::span<const double> z) {
  const auto dim = static_cast<int64_t>(z.size());
  Jet x = {.value = {z.begin(), z.end()}, .slope = std::vector<double>(dim * dim), .columns = dim};
  for (int64_t i = 0; i < dim; ++i) x.slope[i * dim + i] = 1;
  return x;
}

// Element i becomes factor * element + offset.
void Stretch(Jet& x, int64_t i, double factor, double offset) {
  x.value[i] = factor * x.value[i] + offset;
  for (int64_t j = 0; j < x.columns; ++j) x.slope[i * x.columns + j] *= factor;
}

void Add(Jet& sum, const Jet& x) {
  for (size_t i = 0; i < sum.value.size(); ++i) sum.value[i] += x.value[i];
  for (size_t i = 0; i < sum.slope.size(); ++i) sum.slope[i] += x.slope[i];
}

// W x + b, without the activation.
Jet Linear(const DenseSpec& layer, const Jet& x) {
  Jet y = {.value = std::vector<double>(layer.rows),
           .slope = std::vector<double>(layer.rows * x.columns),
           .columns = x.columns};
  for (int64_t i = 0; i < layer.rows; ++i) {
    y.value[i] = layer.bias.empty() ? 0.0 : layer.bias[i];
    for (int64_t k = 0; k < layer.cols; ++k) {
      const double weight = layer.weight[i * layer.cols + k];
      y.value[i] += weight * x.value[k];
      for (int64_t j = 0; j < x.columns; ++j)
        y.slope[i * x.columns + j] += weight * x.slope[k * x.columns + j];
    }
  }
  return y;
}

Jet Activated(Activation activation, Jet x) {
  for (int64_t i = 0; i < std::ssize(x.value); ++i) {
    const double a = x.value[i];
    Stretch(x, i, Differentiate(activation, a), 0);
    x.value[i] = Activate(activation, a);
  }
  return x;
}

Jet Layer(const DenseSpec& layer, const Jet& x) {
  return Activated(layer.activation, Linear(layer, x));
}

// u = (h - mean) / deviation with deviation^2 = mean((h - mean)^2) + epsilon. By the state:
// d(deviation) = mean(u dh), so du = (dh - mean(dh) - u mean(u dh)) / deviation.
Jet Normalized(Jet h) {
  const auto size = static_cast<int64_t>(h.value.size());
  const auto count = static_cast<double>(size);
  double mean = 0, variance = 0;
  for (const double x : h.value) mean += x / count;
  for (const double x : h.value) variance += (x - mean) * (x - mean) / count;
  const double deviation = std::sqrt(variance + kNormEpsilon);
  for (double& x : h.value) x = (x - mean) / deviation;
  for (int64_t j = 0; j < h.columns; ++j) {
    double mean_slope = 0, deviation_slope = 0;
    for (int64_t i = 0; i < size; ++i) {
      mean_slope += h.slope[i * h.columns + j] / count;
      deviation_slope += h.value[i] * h.slope[i * h.columns + j] / count;
    }
    for (int64_t i = 0; i < size; ++i) {
      double& slope = h.slope[i * h.columns + j];
      slope = (slope - mean_slope - h.value[i] * deviation_slope) / deviation;
    }
  }
  return h;
}

// u (1 + scale) + shift.
Jet Modulated(Jet u, std::span<const double> shift, std::span<const double> scale) {
  for (int64_t i = 0; i < std::ssize(u.value); ++i) Stretch(u, i, 1 + scale[i], shift[i]);
  return u;
}

// Matrix i of a stack of square ones, as a layer.
DenseSpec BlockLayer(std::span<const float> weights, std::span<const float> biases, int64_t dim,
                     int64_t i) {
  DenseSpec layer = {.rows = dim, .cols = dim, .weight = weights.subspan(i * dim * dim, dim * dim)};
  if (!biases.empty()) layer.bias = biases.subspan(i * dim, dim);
  return layer;
}

Jet ResidualMlp(const DenoiserSpec& net, std::span<const double> mu, const Jet& z) {
  const int64_t width = net.hidden_dim;
  Jet h = Layer(net.input, z);
  for (int64_t i = 0; i < net.num_blocks; ++i) {
    Jet branch = Linear(BlockLayer(net.first_weight, net.first_bias, width, i), h);
    for (int64_t k = 0; k < width; ++k) branch.value[k] += mu[i * width + k];
    Add(h, Activated(net.activation, branch));
  }
  return Layer(net.output, h);
}

Jet AdaLnMlp(const DenoiserSpec& net, std::span<const double> mu, const Jet& z) {
  const int64_t width = net.hidden_dim;
  const auto part = [&](int64_t p) { return mu.subspan(p * width, width); };
  Jet h = Layer(net.input, z);
  for (int64_t i = 0; i < net.num_blocks; ++i) {
    Jet u = Normalized(h);
    for (int64_t k = 0; k < width; ++k)
      Stretch(u, k, net.norm_weight[i * width + k], net.norm_bias[i * width + k]);
    u = Modulated(u, part(3 * i), part(3 * i + 1));
    u = Linear(BlockLayer(net.first_weight, net.first_bias, width, i), u);
    u = Activated(net.activation, u);
    u = Linear(BlockLayer(net.second_weight, net.second_bias, width, i), u);
    for (int64_t k = 0; k < width; ++k) Stretch(u, k, part(3 * i + 2)[k], 0);
    Add(h, u);
  }
  return Layer(net.output,
               Modulated(Normalized(h), part(3 * net.num_blocks), part(3 * net.num_blocks + 1)));
}

// mu: the same for every state of a step.
std::vector<double> Modulation(const DiffusionSpec& spec, int64_t step,
                               std::span<const double> condition) {
  const int64_t width = spec.denoiser.hidden_dim;
  std::vector<double> y(width);
  for (int64_t k = 0; k < width; ++k)
    y[k] = Activate(Activation::kSilu, spec.time_embedding[step * width + k] + condition[k]);
  return Dense(spec.denoiser.modulation, y);
}

Jet Denoised(const DiffusionSpec& spec, int64_t step, std::span<const double> condition,
             const Jet& z) {
  const std::vector<double> mu = Modulation(spec, step, condition);
  return spec.denoiser.kind == DenoiserKind::kResidualMlp ? ResidualMlp(spec.denoiser, mu, z)
                                                          : AdaLnMlp(spec.denoiser, mu, z);
}

Jet Decoded(const DiffusionSpec& spec, Jet state) {
  for (const DenseSpec& layer : spec.decoder) state = Layer(layer, state);
  return state;
}

}  // namespace

std::vector<double> Condition(const DiffusionSpec& spec, const float* inputs, int32_t label) {
  const int64_t width = spec.denoiser.hidden_dim;
  if (spec.num_classes > 0) {
    const auto row = spec.class_embedding.subspan(label * width, width);
    return {row.begin(), row.end()};
  }
  if (spec.condition.rows == 0) return std::vector<double>(width);
  const std::vector<double> vector(inputs, inputs + spec.condition.cols);
  return Dense(spec.condition, vector);
}

std::vector<double> Denoise(const DiffusionSpec& spec, int64_t step,
                            std::span<const double> condition, std::span<const double> z) {
  return Denoised(spec, step, condition, Values(z)).value;
}

std::vector<double> DenoiseJacobian(const DiffusionSpec& spec, int64_t step,
                                    std::span<const double> condition, std::span<const double> z) {
  return Denoised(spec, step, condition, Variables(z)).slope;
}

// Clips without std::clamp, which does not allow a NaN.
double Clip(double x, double range) {
  if (x > range) return range;
  if (x < -range) return -range;
  return x;
}

double ClipDerivative(double x, double range) { return std::fabs(x) <= range ? 1 : 0; }

double RawDenoised(const ReverseStep& step, double z, double m) {
  return step.x0_z * z + step.x0_m * m;
}

double NextState(const ReverseStep& step, double clip_range, double raw_denoised, double z,
                 double m, double noise) {
  const double x0 = Clip(raw_denoised, clip_range);
  return step.z_z * z + step.z_m * m + step.z_x0 * x0 + step.sigma * noise;
}

namespace {

// One element of a jet.
struct Variable {
  const Jet& of;
  int64_t i;

  double value() const { return of.value[i]; }
};

// Sets element i of a jet to `value`, and its slopes to the sum of factor times slopes.
void Set(Jet& x, int64_t i, double value,
         std::initializer_list<std::pair<double, Variable>> terms) {
  x.value[i] = value;
  for (int64_t j = 0; j < x.columns; ++j)
    for (const auto& [factor, from] : terms)
      x.slope[i * x.columns + j] += factor * from.of.slope[from.i * x.columns + j];
}

// z, the first elements of a state.
Jet Leading(const Jet& state, int64_t dim) {
  return {.value = {state.value.begin(), state.value.begin() + dim},
          .slope = {state.slope.begin(), state.slope.begin() + dim * state.columns},
          .columns = state.columns};
}

// The next state as a jet of the same variables.
Jet Next(const DiffusionSpec& spec, int64_t step, std::span<const double> condition,
         std::span<const float> noise, const Jet& state) {
  const int64_t dim = spec.state_dim;
  const ReverseStep& by = spec.steps[step];
  const NoiseScale kind = spec.form.noise_scale;
  const Jet m = Denoised(spec, step, condition, Leading(state, dim));
  Jet next = {.value = std::vector<double>(state.value.size()),
              .slope = std::vector<double>(state.slope.size()),
              .columns = state.columns};
  for (int64_t i = 0; i < dim; ++i) {
    const Variable z = {state, i}, of_m = {m, i};
    const double raw = RawDenoised(by, z.value(), of_m.value());
    const double inside = ClipDerivative(raw, spec.clip_range);
    const double v = kind == NoiseScale::kFixed ? 0 : m.value[dim + i];
    const double unit = noise.empty() ? 0 : noise[i];
    const double plain = NextState(by, spec.clip_range, raw, z.value(), of_m.value(),
                                   NoiseScaleAt(kind, by, v) * unit);
    const double by_z = by.z_z + inside * by.z_x0 * by.x0_z;
    const double by_m = by.z_m + inside * by.z_x0 * by.x0_m;
    Set(next, i, plain, {{by_m, of_m}, {by_z, z}});
    if (kind != NoiseScale::kFixed)
      Set(next, i, next.value[i],
          {{by.sigma * NoiseScaleSlopeAt(kind, by, v) * unit, {m, dim + i}}});
    if (!spec.form.carries) continue;
    const Variable c = {state, dim + i};
    Set(next, i, next.value[i] + by.z_c * c.value(), {{by.z_c, c}});
    // The last term keeps a zero from being negative, which no update would find.
    Set(next, dim + i,
        by.c_z * z.value() + by.c_m * of_m.value() + by.c_x0 * Clip(raw, spec.clip_range) + 0.0,
        {{by.c_z + inside * by.c_x0 * by.x0_z, z}, {by.c_m + inside * by.c_x0 * by.x0_m, of_m}});
  }
  return next;
}

}  // namespace

std::vector<double> Step(const DiffusionSpec& spec, int64_t step, std::span<const double> condition,
                         std::span<const float> noise, std::span<const double> state) {
  return Next(spec, step, condition, noise, Values(state)).value;
}

std::vector<double> StepJacobian(const DiffusionSpec& spec, int64_t step,
                                 std::span<const double> condition, std::span<const double> state,
                                 std::span<const float> noise) {
  return Next(spec, step, condition, noise, Variables(state)).slope;
}

std::vector<double> StepByNoise(const DiffusionSpec& spec, int64_t step,
                                std::span<const double> condition, std::span<const double> state) {
  const int64_t dim = spec.state_dim;
  const NoiseScale kind = spec.form.noise_scale;
  std::vector<double> factors(dim, spec.steps[step].sigma);
  if (kind == NoiseScale::kFixed) return factors;
  const std::vector<double> m = Denoise(spec, step, condition, state.first(dim));
  for (int64_t i = 0; i < dim; ++i) factors[i] *= NoiseScaleAt(kind, spec.steps[step], m[dim + i]);
  return factors;
}

std::vector<double> StepByInputs(const DiffusionSpec& spec, int64_t step, const float* inputs,
                                 int32_t /*label*/, std::span<const double> state,
                                 std::span<const float> noise) {
  constexpr double kDistance = 1e-5;
  const auto rows = static_cast<int64_t>(state.size());
  const int64_t columns = spec.input_dim();
  std::vector<double> jacobian(rows * columns);
  for (int64_t k = 0; k < columns; ++k) {
    std::vector<double> at(inputs, inputs + columns);
    const auto next = [&](double x) {
      at[k] = x;
      return Step(spec, step, Dense(spec.condition, at), noise, state);
    };
    const std::vector<double> above = next(inputs[k] + kDistance);
    const std::vector<double> below = next(inputs[k] - kDistance);
    for (int64_t i = 0; i < rows; ++i)
      jacobian[i * columns + k] = (above[i] - below[i]) / (2 * kDistance);
  }
  return jacobian;
}

std::vector<double> Decode(const DiffusionSpec& spec, std::span<const double> state) {
  return Decoded(spec, Values(state)).value;
}

std::vector<double> DecodeJacobian(const DiffusionSpec& spec, std::span<const double> state) {
  return Decoded(spec, Variables(state)).slope;
}

}  // namespace deeppcr::reference
