// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROBLEM_ACTIVATION_H_
#define DEEPPCR_KERNELS_PROBLEM_ACTIVATION_H_

// Activations and their names. Nothing but <cstdint> is included: the translation units of one
// instruction set must not bring functions of the library that the linker might keep for all.

#include <cstdint>

namespace deeppcr {

// Elementwise activations. Names are those of config.json; derivatives are with respect to the
// pre-activation.
enum class Activation : uint8_t {
  kIdentity,
  kRelu,       // max(x, 0); derivative 0 at 0, as in PyTorch
  kLeakyRelu,  // x > 0 ? x : 0.01 x; derivative 0.01 at 0
  kTanh,
  kSigmoid,
  kSilu,      // x sigmoid(x)
  kGelu,      // x Phi(x), by erfc so that the negative tail keeps its relative accuracy
  kGeluTanh,  // x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), the tanh approximation in its stable
              // form
  kElu,       // x > 0 ? x : expm1(x)
  kSoftplus,  // log(1 + e^x)
  kMish,      // x tanh(softplus(x)), Misra 2019 (arXiv 1908.08681)
};

struct ActivationName {
  Activation activation;
  const char* name;
};

inline constexpr ActivationName kActivationNames[] = {
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
    {Activation::kMish, "mish"},
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PROBLEM_ACTIVATION_H_
