// SPDX-License-Identifier: Apache-2.0
#include "kernels/solver/gradient_error.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/base/status_macros.h"
#include "kernels/iteration/pass.h"
#include "kernels/problem/philox.h"

namespace deeppcr {
namespace {

// The larger one, or NaN if one of them is NaN.
double Larger(double a, double b) { return a >= b || std::isnan(a) ? a : b; }

double LargestOf(std::span<const float> row) {
  double largest = 0;
  for (const float x : row) largest = Larger(largest, std::fabs(double{x}));
  return largest;
}

// Every other displacement is as large as the error of the states, and its change counts
// kDisplacedFactor times; the others are larger by that factor themselves, so that a unit which is
// a little farther from its kink shows as well.
bool IsSmall(int displacement) { return displacement % 2 == 0; }
double SizeOf(int displacement) { return IsSmall(displacement) ? 1 : kDisplacedFactor; }
double WeightOf(int displacement) { return IsSmall(displacement) ? kDisplacedFactor : 1; }

// Sign of a displacement of element i of state l. The first one of either size has the same signs
// at all states.
float SignOf(int displacement, int64_t l, int64_t i) {
  const auto step = displacement < 2 ? 0U : static_cast<uint32_t>(l);
  const auto element = static_cast<uint32_t>(i), stream = static_cast<uint32_t>(displacement);
  const uint32_t word = Philox4x32({element / 4, step, stream, 0}, {0, 0})[element % 4];
  return word >> 31 != 0 ? 1.0F : -1.0F;
}

// What sample i has of an array of n samples, which may be absent.
template <class T>
std::span<T> SampleOf(std::span<T> all, int64_t i, int64_t n) {
  const auto size = static_cast<int64_t>(all.size()) / n;
  return all.subspan(i * size, size);
}

// kDisplacements times the part of sample i.
template <class T>
std::vector<T> Repeated(std::span<const T> all, int64_t i, int64_t n) {
  const std::span<const T> part = SampleOf(all, i, n);
  std::vector<T> repeated;
  for (int d = 0; d < kDisplacements; ++d)
    repeated.insert(repeated.end(), part.begin(), part.end());
  return repeated;
}

// z_0, which is given, stays where it is.
std::vector<float> DisplacedStates(std::span<const float> states, int64_t dim,
                                   const StateError& error) {
  const std::span<const float> z_0 = states.first(dim);
  std::vector<float> displaced;
  displaced.reserve(kDisplacements * states.size());
  for (int d = 0; d < kDisplacements; ++d) {
    displaced.insert(displaced.end(), z_0.begin(), z_0.end());
    for (int64_t l = 1; l * dim < std::ssize(states); ++l) {
      const std::span<const float> z = states.subspan(l * dim, dim);
      const auto size =
          static_cast<float>(SizeOf(d) * error.relative * (LargestOf(z) + error.floor));
      for (int64_t i = 0; i < dim; ++i) displaced.push_back(z[i] + SignOf(d, l, i) * size);
    }
  }
  return displaced;
}

// Below it terms of a gradient leave the range of float32, and with them its digits.
constexpr double kLeastGradient = 0x1p24 * kLeastNormal;

// Largest relative change of a result, by any displacement and for any cotangent, times the
// displacement's weight; infinite or NaN where the result has no digits. Nothing is known of a
// result that is zero and stays it, as that by noise which has no part in a process. Of each row
// the first `answered` elements count; 0: all.
std::optional<double> LargestChange(std::span<const float> result, std::span<const float> displaced,
                                    int64_t columns, int64_t answered) {
  std::optional<double> largest;
  const auto size = static_cast<int64_t>(result.size()) / columns;
  const int64_t counted = answered == 0 ? size : answered;
  for (int64_t j = 0; j < columns && size > 0; ++j) {
    const double scale = LargestOf(result.subspan(j * size, counted));
    double change = 0;
    for (int d = 0; d < kDisplacements; ++d) {
      const std::span<const float> other = displaced.subspan((d * columns + j) * size, size);
      for (int64_t i = 0; i < counted; ++i) {
        const double way = std::fabs(double{other[i]} - result[j * size + i]);
        change = Larger(change, WeightOf(d) * way);
      }
    }
    if (scale == 0 && change == 0) continue;
    if (!(scale >= kLeastGradient)) return std::numeric_limits<double>::infinity();
    largest = Larger(largest.value_or(0), change / scale);
  }
  return largest;
}

absl::StatusOr<std::optional<double>> ErrorOf(int64_t state_dim, const BackwardItem& done,
                                              int64_t i, const StateError& state_error,
                                              GoBackFunction go_back) {
  const int64_t n = done.samples.num_samples;
  const auto inputs = Repeated(done.samples.inputs, i, n);
  const auto labels = Repeated(done.samples.labels, i, n);
  const auto of_outputs = Repeated(done.of_outputs, i, n);
  const auto of_final = Repeated(done.of_final, i, n);
  const auto states = DisplacedStates(SampleOf(done.states, i, n), state_dim, state_error);
  const std::span<float> results[] = {SampleOf(done.inputs, i, n), SampleOf(done.initial, i, n),
                                      SampleOf(done.step_noise, i, n)};
  std::vector<float> displaced[3];
  for (int k = 0; k < 3; ++k) displaced[k].resize(kDisplacements * results[k].size());
  std::vector<BackwardReport> reports(kDisplacements);
  BackwardItem item = {
      .samples = {.num_samples = kDisplacements,
                  .inputs = inputs,
                  .seed = done.samples.seed,
                  .first_sample = done.samples.first_sample + static_cast<uint64_t>(i),
                  .labels = labels,
                  .step_noise = SampleOf(done.samples.step_noise, i, n),
                  .same_noise = true},
      .states = states,
      .columns = done.columns,
      .of_outputs = of_outputs,
      .of_final = of_final,
      .inputs = displaced[0],
      .initial = displaced[1],
      .step_noise = displaced[2],
      .reports = reports,
      .token = done.token};
  DEEPPCR_RETURN_IF_ERROR(go_back({&item, 1}));
  DEEPPCR_RETURN_IF_ERROR(JudgeReports(reports));
  std::optional<double> largest;
  for (int k = 0; k < 3; ++k) {
    const std::optional<double> change =
        LargestChange(results[k], displaced[k], done.columns, k == 0 ? done.answered_inputs : 0);
    if (change.has_value()) largest = Larger(largest.value_or(0), *change);
  }
  return largest.has_value() && *largest <= 1 ? largest : std::nullopt;
}

}  // namespace

absl::StatusOr<std::vector<std::optional<double>>> EstimateGradientErrors(
    int64_t state_dim, const BackwardItem& done,
    std::span<const std::optional<StateError>> state_errors, GoBackFunction go_back) {
  std::vector<std::optional<double>> errors(state_errors.size());
  for (size_t i = 0; i < errors.size(); ++i) {
    if (!state_errors[i].has_value()) continue;
    DEEPPCR_ASSIGN_OR_RETURN(
        errors[i], ErrorOf(state_dim, done, static_cast<int64_t>(i), *state_errors[i], go_back));
  }
  return errors;
}

}  // namespace deeppcr
