// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include "kernels/solver/options.h"

namespace deeppcr {

std::string_view ToString(InitialGuess guess) {
  switch (guess) {
    case InitialGuess::kFromPlan:
      return "plan";
    case InitialGuess::kConstant:
      return "constant";
    case InitialGuess::kCoarse:
      return "coarse";
    case InitialGuess::kCalibrated:
      return "calibrated";
    case InitialGuess::kPrevious:
      return "previous";
  }
  return "unknown";
}

std::string_view ToString(JacobianRefresh refresh) {
  switch (refresh) {
    case JacobianRefresh::kFromPlan:
      return "plan";
    case JacobianRefresh::kEveryIteration:
      return "every_iteration";
    case JacobianRefresh::kWhileContracting:
      return "while_contracting";
  }
  return "unknown";
}

std::string_view ToString(OnNoConvergence action) {
  switch (action) {
    case OnNoConvergence::kFallback:
      return "fallback";
    case OnNoConvergence::kReturn:
      return "return";
    case OnNoConvergence::kError:
      return "error";
  }
  return "unknown";
}

}  // namespace deeppcr
