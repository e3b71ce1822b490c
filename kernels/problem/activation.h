// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROBLEM_ACTIVATION_H_
#define DEEPPCR_KERNELS_PROBLEM_ACTIVATION_H_

// Activation in a header of its own that needs nothing but <cstdint>, for nvcc and for the
// translation units of one instruction set.

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
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PROBLEM_ACTIVATION_H_
