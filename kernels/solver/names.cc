// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include "kernels/solver/options.h"

namespace deeppcr {
namespace {

template <class Enum>
struct Name {
  Enum value;
  std::string_view name;
};

constexpr Name<InitialGuess> kGuesses[] = {
    {InitialGuess::kFromPlan, "plan"},     {InitialGuess::kConstant, "constant"},
    {InitialGuess::kCoarse, "coarse"},     {InitialGuess::kCalibrated, "calibrated"},
    {InitialGuess::kPrevious, "previous"},
};
constexpr Name<JacobianRefresh> kRefreshes[] = {
    {JacobianRefresh::kFromPlan, "plan"},
    {JacobianRefresh::kEveryIteration, "every_iteration"},
    {JacobianRefresh::kWhileContracting, "while_contracting"},
};

template <class Enum, size_t N>
std::string_view NameIn(const Name<Enum> (&names)[N], Enum value) {
  for (const Name<Enum>& row : names) {
    if (row.value == value) return row.name;
  }
  return "unknown";
}

}  // namespace

std::string_view ToString(InitialGuess guess) { return NameIn(kGuesses, guess); }
std::string_view ToString(JacobianRefresh refresh) { return NameIn(kRefreshes, refresh); }

}  // namespace deeppcr
