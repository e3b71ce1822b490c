// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BACKEND_COMMON_H_
#define DEEPPCR_KERNELS_BACKEND_COMMON_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/base/strings.h"
#include "kernels/iteration/pass.h"
#include "kernels/problem/spec.h"

namespace deeppcr {

// Code that backends share.

// make(s) for the family s that the spec holds. `make` has an overload per family that the backend
// has code for, so that a family can be in one backend before it is in the others.
// Errors: those of make; kUnimplemented for a family without an overload.
template <class Make>
absl::StatusOr<std::unique_ptr<System>> NewSystemOf(const SystemSpec& spec, const Make& make) {
  return std::visit(
      [&](const auto& family) -> absl::StatusOr<std::unique_ptr<System>> {
        if constexpr (std::is_invocable_v<const Make&, decltype(family)>) {
          return make(family);
        } else {
          return absl::UnimplementedError("this backend has no code for models of this family");
        }
      },
      spec);
}

// Counts in at least `bytes` bytes of a packed model, beside those of it that are there already.
// Errors: kResourceExhausted if they are not allowed, or no memory is left for them.
inline absl::Status CheckPackedBytes(int64_t bytes, const PackingLimits& limits,
                                     int64_t beside = 0) {
  if (bytes > limits.max_bytes)
    return absl::ResourceExhaustedError(StrCat("packed, the model takes at least ", bytes,
                                               " bytes; ", limits.max_bytes,
                                               " are left of those allowed (", limits.advice, ")"));
  return limits.memory == nullptr ? absl::OkStatus() : limits.memory->Raise(beside + bytes);
}

// What is wrong with a system, while it is packed: a problem comes back to end the packing, but
// where all are kept (PackingLimits::all_problems) the packing goes on, and ends with the first.
class PackingProblems {
 public:
  explicit PackingProblems(const PackingLimits& limits) : all_(limits.all_problems) {}

  // A function that takes a problem and says whether to go on in spite of it.
  auto Notes() {
    return [this](const absl::Status& problem) {
      if (first_.ok()) first_ = problem;
      return all_ == nullptr ? problem : all_->Add(problem);
    };
  }
  const absl::Status& first() const { return first_; }

 private:
  Problems* const all_;
  absl::Status first_;
};

// Largest absolute value; NaN elements are ignored.
inline double LargestAbsolute(std::span<const float> x) {
  double largest = 0;
  for (const float value : x) largest = std::max(largest, double{std::fabs(value)});
  return largest;
}

// SolveSpace::AmplifyError, given the largest row sum of the absolute Jacobian of the outputs.
inline double AmplifiedError(double relative_error, std::span<const float> state, double floor,
                             double amplification, std::span<const float> outputs) {
  if (relative_error == 0) return 0;
  const double error = relative_error * (LargestAbsolute(state) + floor) * amplification;
  // Where the outputs do not depend on the state, they may all be zero.
  if (error == 0) return 0;
  const double largest = LargestAbsolute(outputs);
  return std::isfinite(largest) ? error / largest : std::numeric_limits<double>::infinity();
}

// Size of the rounding of a product with a row of `cols` weights whose squares sum up to `squares`,
// of an input of length 1, in units of 2^-24.
inline float RoundingSpread(double squares, int64_t cols) {
  const auto n = static_cast<double>(cols);
  return static_cast<float>(std::sqrt(squares / n * SquaredRoundingOfSum(cols)));
}

// Bias of the modulation layer, with the biases of a residual MLP's layers added: they always
// appear in a sum with their parts of mu.
inline std::vector<float> ModulationBias(const DenoiserSpec& spec) {
  std::vector<float> bias(spec.modulation.bias.begin(), spec.modulation.bias.end());
  if (spec.kind == DenoiserKind::kAdaLnMlp || spec.first_bias.empty()) return bias;
  bias.resize(spec.modulation_dim());
  for (size_t i = 0; i < bias.size(); ++i) bias[i] += spec.first_bias[i];
  return bias;
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BACKEND_COMMON_H_
