// SPDX-License-Identifier: Apache-2.0
// A loop over Eigen's products, as users of RTNeural write it: sizes are template arguments,
// weights column-major, and the samples of a batch the columns of a matrix of fixed size.

#include <Eigen/Dense>
#include <cstdint>

#include "tests/bench/peers/peers.h"

namespace {

constexpr int kDim = 16;
constexpr float kEpsilon = 1e-6F;

template <int kRows, int kCols>
using Mat = Eigen::Matrix<float, kRows, kCols>;
template <int kRows, int kCols>
using View = Eigen::Map<const Mat<kRows, kCols>, Eigen::Aligned64>;
// What is handed over has the alignment of the caller's arrays.
template <int kRows, int kCols>
using Given = Eigen::Map<const Mat<kRows, kCols>>;
using AnyView = Eigen::Map<const Eigen::MatrixXf>;
using AnyVector = Eigen::Map<const Eigen::VectorXf>;

template <typename Values>
auto Silu(const Eigen::ArrayBase<Values>& a) {
  return a / (1.0F + (-a).exp());
}

template <typename Input, typename Output>
void Apply(const PeerDense& layer, const Input& x, Output& y) {
  y.noalias() = AnyView(layer.weight, layer.rows, layer.cols) * x;
  y.colwise() += AnyVector(layer.bias, layer.rows);
}

template <int kSamples>
int RunStack(const PeerProblem& p, const float* x, float* y) {
  static Mat<kDim, kSamples> z, a;
  Apply(p.input, AnyView(x, p.input.cols, kSamples), z);
  for (int64_t l = 0; l < p.steps; ++l) {
    a.noalias() = View<kDim, kDim>(p.first + l * kDim * kDim) * z;
    a.colwise() += View<kDim, 1>(p.first_bias + l * kDim);
    z += a.cwiseMax(0.0F);
  }
  Eigen::Map<Eigen::MatrixXf> out(y, p.output.rows, kSamples);
  Apply(p.output, z, out);
  return 0;
}

template <int kHidden, int kSamples>
struct Denoiser {
  using Hidden = Mat<kHidden, kSamples>;
  using Vector = View<kHidden, 1>;
  using Square = View<kHidden, kHidden>;

  void Modulate(const float* gain, const float* shift) {
    const Mat<1, kSamples> mean = h.colwise().mean();
    u = h.rowwise() - mean;
    const Mat<1, kSamples> factor = (u.colwise().squaredNorm() / kHidden).array() + kEpsilon;
    u.array().rowwise() *= factor.array().rsqrt();
    u.array().colwise() *= Vector(gain).array();
    u.colwise() += Vector(shift);
  }

  void Residual(const PeerProblem& p, const float* mu) {
    for (int64_t i = 0; i < p.blocks; ++i) {
      a.noalias() = Square(p.first + i * kHidden * kHidden) * h;
      a.colwise() += Vector(mu + i * kHidden);
      h.array() += Silu(a.array());
    }
  }

  void AdaLn(const PeerProblem& p, const float* mu) {
    for (int64_t i = 0; i < p.blocks; ++i, mu += 3 * kHidden) {
      Modulate(mu, mu + kHidden);
      a.noalias() = Square(p.first + i * kHidden * kHidden) * u;
      a.colwise() += Vector(p.first_bias + i * kHidden);
      a = Silu(a.array()).matrix();
      u.noalias() = Square(p.second + i * kHidden * kHidden) * a;
      u.colwise() += Vector(p.second_bias + i * kHidden);
      h.array() += u.array().colwise() * Vector(mu + 2 * kHidden).array();
    }
    Modulate(mu, mu + kHidden);
  }

  template <typename State>
  void Run(const PeerProblem& p, const float* mu, const State& z, Mat<kDim, kSamples>& m) {
    h.noalias() = View<kHidden, kDim>(p.input.weight) * z;
    h.colwise() += Vector(p.input.bias);
    if (p.kind == kPeerAdaLn) {
      AdaLn(p, mu);
      m.noalias() = View<kDim, kHidden>(p.output.weight) * u;
    } else {
      Residual(p, mu);
      m.noalias() = View<kDim, kHidden>(p.output.weight) * h;
    }
    m.colwise() += View<kDim, 1>(p.output.bias);
  }

  Hidden h, a, u;
};

template <int kSamples>
void Decode(const PeerProblem& p, const Mat<kDim, kSamples>& z, float* y) {
  if (p.decoders == 0) {
    Eigen::Map<Mat<kDim, kSamples>>{y} = z;
    return;
  }
  Eigen::MatrixXf hidden(p.decoder[0].rows, kSamples);
  Apply(p.decoder[0], z, hidden);
  hidden = Silu(hidden.array()).matrix();
  Eigen::Map<Eigen::MatrixXf> out(y, p.decoder[1].rows, kSamples);
  Apply(p.decoder[1], hidden, out);
}

template <int kHidden, int kSamples>
int RunDiffusion(const PeerProblem& p, const float* x, const float* noise, float* y) {
  static Denoiser<kHidden, kSamples> denoiser;
  static Mat<kDim, kSamples> z, m;
  z = Given<kDim, kSamples>(x);
  for (int64_t step = 0; step < p.steps; ++step) {
    denoiser.Run(p, p.mu + step * p.parts * kHidden, z, m);
    const float* c = p.coefficients + step * 3;
    z = c[0] * z + c[1] * m;
    if (noise == nullptr) continue;
    z += c[2] * Eigen::Map<const Mat<kDim, kSamples>, 0, Eigen::OuterStride<>>(
                    noise + step * kDim, kDim, kSamples, Eigen::OuterStride<>(p.steps * kDim));
  }
  Decode<kSamples>(p, z, y);
  return 0;
}

template <int kSamples>
int Run(const PeerProblem& p, const float* x, const float* noise, float* y) {
  if (p.kind == kPeerStack) return RunStack<kSamples>(p, x, y);
  if (p.hidden == 128) return RunDiffusion<128, kSamples>(p, x, noise, y);
  if (p.hidden == 1024) return RunDiffusion<1024, kSamples>(p, x, noise, y);
  return 1;
}

}  // namespace

extern "C" int eigen_run(const void* problem, const void* x, const void* noise, void* y) {
  const auto& p = *static_cast<const PeerProblem*>(problem);
  const auto *in = static_cast<const float*>(x), *drawn = static_cast<const float*>(noise);
  auto* out = static_cast<float*>(y);
  if (p.dim != kDim) return 1;
  if (p.samples == 1) return Run<1>(p, in, drawn, out);
  if (p.samples == 8) return Run<8>(p, in, drawn, out);
  if (p.samples == 64) return Run<64>(p, in, drawn, out);
  return 1;
}

extern "C" const char* eigen_version() {
#define PEER_TEXT(x) #x
#define PEER_VERSION(a, b, c) PEER_TEXT(a) "." PEER_TEXT(b) "." PEER_TEXT(c)
  return PEER_VERSION(EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION);
}
