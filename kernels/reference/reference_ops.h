// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_REFERENCE_REFERENCE_OPS_H_
#define DEEPPCR_KERNELS_REFERENCE_REFERENCE_OPS_H_

// The oracle: plain loops in double, written to be read, sharing nothing with the backends that it
// judges.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/problem/spec.h"

namespace deeppcr::reference {

// act(a) and act'(a).
double Activate(Activation activation, double a);
double Differentiate(Activation activation, double a);

// act(W x + b), [rows].
std::vector<double> Dense(const DenseSpec& spec, std::span<const double> x);
// act'(W x + b).
std::vector<double> DenseSlopes(const DenseSpec& spec, std::span<const double> x);
// Its Jacobian at x, [rows, cols] row-major; of an absent layer the unit matrix of x's size.
std::vector<double> DenseJacobian(const DenseSpec& spec, std::span<const double> x);

// Largest change of an output of a layer without activation, for a change of 1 in every input: the
// largest sum of a row's absolute weights; 1 where there is no layer.
double LargestRowSum(const DenseSpec& layer);

// z_0 of inputs [input_dim], and the answer of a final state; the identity where the system has no
// such layer.
std::vector<double> Encode(const DenseStackSpec& spec, std::span<const double> inputs);
std::vector<double> Decode(const DenseStackSpec& spec, std::span<const double> state);

// f_l(z), l = 1..L.
std::vector<double> Step(const DenseStackSpec& spec, int64_t l, std::span<const double> z);
// df_l/dz at z, [D, D] row-major.
std::vector<double> StepJacobian(const DenseStackSpec& spec, int64_t l, std::span<const double> z);
// The slopes dz_l / d(W_l z_{l-1} + b_l), element by element.
std::vector<double> StepSlopes(const DenseStackSpec& spec, int64_t l, std::span<const double> z);

// z_0 .. z_L, [L + 1, D].
std::vector<double> Trajectory(const DenseStackSpec& spec, std::span<const double> z0);

}  // namespace deeppcr::reference

#endif  // DEEPPCR_KERNELS_REFERENCE_REFERENCE_OPS_H_
