// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BACKEND_SYSTEM_SPEC_H_
#define DEEPPCR_KERNELS_BACKEND_SYSTEM_SPEC_H_

// What a backend needs to know of a model: plain data, no model classes, so that a backend can be a
// module.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/backend/activation.h"

namespace deeppcr {

struct ActivationName {
  Activation activation;
  std::string_view name;
};

inline constexpr std::array<ActivationName, 10> kActivationNames = {{
    {Activation::kIdentity, "identity"},
    {Activation::kRelu, "relu"},
    {Activation::kLeakyRelu, "leaky_relu"},
    {Activation::kTanh, "tanh"},
    {Activation::kSigmoid, "sigmoid"},
    {Activation::kSilu, "silu"},
    {Activation::kGelu, "gelu"},
    {Activation::kGeluTanh, "gelu_tanh"},
    {Activation::kElu, "elu"},
    {Activation::kSoftplus, "softplus"},
}};

// y = act(W x + b). An absent layer (identity map) has rows == 0.
struct DenseSpec {
  int64_t rows = 0;               // outputs
  int64_t cols = 0;               // inputs
  std::span<const float> weight;  // [rows, cols], row-major
  std::span<const float> bias;    // [rows], or empty for zero
  Activation activation = Activation::kIdentity;
};

// The sequential system z_l = f_l(z_{l-1}), l = 1..L, with
//   f_l(z) = act(W_l z + b_l)             (residual == false)
//   f_l(z) = z + scale * act(W_l z + b_l) (residual == true)
// between an optional input layer z_0 = encode(x) and an optional output layer y = decode(z_L).
struct SystemSpec {
  int64_t num_steps = 0;  // L >= 1
  int64_t state_dim = 0;  // D >= 1
  bool residual = false;
  float residual_scale = 1.0F;
  Activation activation = Activation::kIdentity;
  std::span<const float> weights;  // [L, D, D], row-major
  std::span<const float> biases;   // [L, D], or empty for zero
  DenseSpec encode;
  DenseSpec decode;

  int64_t input_dim() const { return encode.rows > 0 ? encode.cols : state_dim; }
  int64_t output_dim() const { return decode.rows > 0 ? decode.rows : state_dim; }
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BACKEND_SYSTEM_SPEC_H_
