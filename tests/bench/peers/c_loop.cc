// SPDX-License-Identifier: Apache-2.0
// The yardstick: the loop that anybody writes first, with weights transposed so that the compiler
// makes vectors of outputs. Widths are constants, the number of samples is not.

#include <time.h>

#include <cmath>
#include <cstdint>

#include "tests/bench/peers/peers.h"

namespace {

constexpr int kMaxSamples = 64;
constexpr int kDim = 16;
constexpr float kEpsilon = 1e-6F;

// Sums beyond these are kept in memory anyway, and rows of weights are read once for all samples.
constexpr int kMaxLocalSums = 128;

template <int kRows>
void SumLocally(int samples, int cols, const float* __restrict w, const float* __restrict bias,
                const float* __restrict x, float* __restrict y) {
  for (int s = 0; s < samples; ++s) {
    float sum[kRows];
#pragma omp simd
    for (int j = 0; j < kRows; ++j) sum[j] = bias[j];
    for (int k = 0; k < cols; ++k) {
      const float xk = x[s * cols + k];
#pragma omp simd
      for (int j = 0; j < kRows; ++j) sum[j] += w[k * kRows + j] * xk;
    }
#pragma omp simd
    for (int j = 0; j < kRows; ++j) y[s * kRows + j] = sum[j];
  }
}

template <int kRows>
void SumInPlace(int samples, int cols, const float* __restrict w, const float* __restrict bias,
                const float* __restrict x, float* __restrict y) {
  for (int s = 0; s < samples; ++s) {
#pragma omp simd
    for (int j = 0; j < kRows; ++j) y[s * kRows + j] = bias[j];
  }
  for (int k = 0; k < cols; ++k) {
    for (int s = 0; s < samples; ++s) {
      const float xk = x[s * cols + k];
#pragma omp simd
      for (int j = 0; j < kRows; ++j) y[s * kRows + j] += w[k * kRows + j] * xk;
    }
  }
}

template <int kRows>
void Product(int samples, int cols, const float* w, const float* bias, const float* x, float* y) {
  if constexpr (kRows <= kMaxLocalSums) {
    SumLocally<kRows>(samples, cols, w, bias, x, y);
  } else {
    SumInPlace<kRows>(samples, cols, w, bias, x, y);
  }
}

void Apply(int samples, const PeerDense& layer, const float* x, float* y) {
  const auto rows = static_cast<int>(layer.rows), cols = static_cast<int>(layer.cols);
  for (int s = 0; s < samples; ++s) {
    for (int j = 0; j < rows; ++j) y[s * rows + j] = layer.bias[j];
    for (int k = 0; k < cols; ++k) {
      for (int j = 0; j < rows; ++j) {
        y[s * rows + j] += layer.weight[k * rows + j] * x[s * cols + k];
      }
    }
  }
}

float Silu(float a) { return a / (1.0F + std::exp(-a)); }

int RunStack(const PeerProblem& p, const float* x, float* y) {
  alignas(64) static float z[kMaxSamples * kDim], a[kMaxSamples * kDim];
  const auto samples = static_cast<int>(p.samples);
  Apply(samples, p.input, x, z);
  for (int64_t l = 0; l < p.steps; ++l) {
    Product<kDim>(samples, kDim, p.first + l * kDim * kDim, p.first_bias + l * kDim, z, a);
#pragma omp simd
    for (int i = 0; i < samples * kDim; ++i) z[i] += a[i] > 0 ? a[i] : 0;
  }
  Apply(samples, p.output, z, y);
  return 0;
}

// norm(h) * gain + shift of each sample.
template <int kHidden>
void Modulate(int samples, const float* __restrict h, const float* __restrict gain,
              const float* __restrict shift, float* __restrict u) {
  for (int s = 0; s < samples; ++s) {
    const float* row = h + s * kHidden;
    float mean = 0, variance = 0;
#pragma omp simd reduction(+ : mean)
    for (int j = 0; j < kHidden; ++j) mean += row[j];
    mean /= kHidden;
#pragma omp simd reduction(+ : variance)
    for (int j = 0; j < kHidden; ++j) variance += (row[j] - mean) * (row[j] - mean);
    const float factor = 1.0F / std::sqrt(variance / kHidden + kEpsilon);
#pragma omp simd
    for (int j = 0; j < kHidden; ++j) {
      u[s * kHidden + j] = (row[j] - mean) * factor * gain[j] + shift[j];
    }
  }
}

template <int kHidden>
void ResidualBlocks(const PeerProblem& p, const float* mu, float* h, float* a) {
  const auto samples = static_cast<int>(p.samples);
  for (int64_t i = 0; i < p.blocks; ++i) {
    Product<kHidden>(samples, kHidden, p.first + i * kHidden * kHidden, mu + i * kHidden, h, a);
    for (int j = 0; j < samples * kHidden; ++j) h[j] += Silu(a[j]);
  }
}

template <int kHidden>
void AdaLnBlocks(const PeerProblem& p, const float* mu, float* h, float* a, float* u) {
  const auto samples = static_cast<int>(p.samples);
  for (int64_t i = 0; i < p.blocks; ++i, mu += 3 * kHidden) {
    const int64_t at = i * kHidden;
    Modulate<kHidden>(samples, h, mu, mu + kHidden, u);
    Product<kHidden>(samples, kHidden, p.first + at * kHidden, p.first_bias + at, u, a);
    for (int j = 0; j < samples * kHidden; ++j) a[j] = Silu(a[j]);
    Product<kHidden>(samples, kHidden, p.second + at * kHidden, p.second_bias + at, a, u);
    for (int s = 0; s < samples; ++s) {
#pragma omp simd
      for (int j = 0; j < kHidden; ++j)
        h[s * kHidden + j] += mu[2 * kHidden + j] * u[s * kHidden + j];
    }
  }
  Modulate<kHidden>(samples, h, mu, mu + kHidden, u);
}

void Decode(const PeerProblem& p, const float* z, float* y) {
  alignas(64) static float hidden[kMaxSamples * 1024];
  const auto samples = static_cast<int>(p.samples);
  if (p.decoders == 0) {
    for (int i = 0; i < samples * kDim; ++i) y[i] = z[i];
    return;
  }
  Apply(samples, p.decoder[0], z, hidden);
  for (int i = 0; i < samples * p.decoder[0].rows; ++i) hidden[i] = Silu(hidden[i]);
  Apply(samples, p.decoder[1], hidden, y);
}

template <int kHidden>
int RunDiffusion(const PeerProblem& p, const float* x, const float* noise, float* y) {
  alignas(64) static float z[kMaxSamples * kDim], m[kMaxSamples * kDim];
  alignas(64) static float h[kMaxSamples * kHidden], a[kMaxSamples * kHidden],
      u[kMaxSamples * kHidden];
  const auto samples = static_cast<int>(p.samples);
  for (int i = 0; i < samples * kDim; ++i) z[i] = x[i];
  for (int64_t step = 0; step < p.steps; ++step) {
    const float* mu = p.mu + step * p.parts * kHidden;
    const float* c = p.coefficients + step * 3;
    Product<kHidden>(samples, kDim, p.input.weight, p.input.bias, z, h);
    if (p.kind == kPeerAdaLn) {
      AdaLnBlocks<kHidden>(p, mu, h, a, u);
    } else {
      ResidualBlocks<kHidden>(p, mu, h, a);
    }
    Product<kDim>(samples, kHidden, p.output.weight, p.output.bias, p.kind == kPeerAdaLn ? u : h,
                  m);
    for (int s = 0; s < samples; ++s) {
      const float* drawn = noise != nullptr ? noise + (s * p.steps + step) * kDim : nullptr;
      for (int j = 0; j < kDim; ++j) {
        float& state = z[s * kDim + j];
        state = c[0] * state + c[1] * m[s * kDim + j] + (drawn != nullptr ? c[2] * drawn[j] : 0);
      }
    }
  }
  Decode(p, z, y);
  return 0;
}

double Now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

extern "C" int c_loop_run(const void* problem, const void* x, const void* noise, void* y) {
  const auto& p = *static_cast<const PeerProblem*>(problem);
  const auto *in = static_cast<const float*>(x), *drawn = static_cast<const float*>(noise);
  auto* out = static_cast<float*>(y);
  if (p.samples > kMaxSamples || p.dim != kDim) return 1;
  if (p.kind == kPeerStack) return RunStack(p, in, out);
  if (p.hidden == 128) return RunDiffusion<128>(p, in, drawn, out);
  if (p.hidden == 1024) return RunDiffusion<1024>(p, in, drawn, out);
  return 1;
}

// Seconds of a call, for every native peer; negative if it failed.
extern "C" double peer_seconds(PeerRun run, const void* problem, const void* x, const void* noise,
                               void* y) {
  const double start = Now();
  const int status = run(problem, x, noise, y);
  const double end = Now();
  return status == 0 ? end - start : -1.0;
}
