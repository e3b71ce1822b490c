// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PLAN_CALIBRATION_H_
#define DEEPPCR_KERNELS_PLAN_CALIBRATION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/solver/runner.h"
#include "kernels/solver/sample_inputs.h"

namespace deeppcr {

// Sample inputs [count, input_dim] to calibrate and to measure with. Sample i of a diffusion model
// has the noise of index i of a fixed seed, and class i modulo the number of classes.
struct CalibrationInputs {
  std::vector<float> values;
  int64_t count = 0;

  std::span<const float> Sample(int64_t i, int64_t input_dim) const {
    return std::span(values).subspan((i % count) * input_dim, input_dim);
  }
};

// Samples [first, first + n) of the inputs, which begin again where they end.
OwnedSampleInputs CalibrationSamples(const CalibrationInputs& inputs, const SystemShape& shape,
                                     int64_t first, int64_t n);

// `count` standard normal inputs from a fixed seed, for models that bring no calibration inputs of
// their own.
CalibrationInputs SyntheticInputs(int64_t count, int64_t input_dim);

// The affine map z_0 -> z_l of least squares (with a small ridge) over sequential trajectories of
// the inputs, at every `stride` steps, stride being the smallest power of two for which the map
// takes at most max_bytes. Leaves out the first `first` inputs; uses at most as many inputs as 4 (D
// + 1), or 600 if that is more, and no more than some seconds of counted work allow; an input whose
// trajectory overflows is left out, and so are the inputs that are not done when the token fires.
// Errors: kFailedPrecondition if fewer than D + 2 inputs are left.
absl::StatusOr<AffineGuess> FitAffineGuess(const Runner& runner, const CalibrationInputs& inputs,
                                           int64_t max_bytes, const CancelToken* token = nullptr,
                                           int64_t first = 0);
// Whether so many inputs are enough, before anything is computed. Errors: kFailedPrecondition.
absl::Status CheckFit(const SystemShape& shape, int64_t num_inputs, int64_t max_bytes);
// Bytes that it takes meanwhile, with the guess.
int64_t FittingBytes(const SystemShape& shape, int64_t max_bytes);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PLAN_CALIBRATION_H_
