// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_REFERENCE_BACKWARD_SPACE_H_
#define DEEPPCR_KERNELS_REFERENCE_BACKWARD_SPACE_H_

#include <memory>

#include "kernels/backend/backend.h"
#include "kernels/reference/recurrence.h"

namespace deeppcr::reference {

// The backward pass in double, by whole Jacobians. `family` must outlive it.
std::unique_ptr<BackwardSpace> NewBackwardSpace(const Family& family, const BackwardLimits& limits);

// See System::AddParameterGradients: sums in double, rounded once.
absl::Status AddParameterGradients(const Family& family, std::span<const ParameterSample> samples,
                                   int64_t begin, int64_t end, const ParameterSums& sums);

}  // namespace deeppcr::reference

#endif  // DEEPPCR_KERNELS_REFERENCE_BACKWARD_SPACE_H_
