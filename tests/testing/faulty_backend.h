// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_FAULTY_BACKEND_H_
#define DEEPPCR_TESTS_TESTING_FAULTY_BACKEND_H_

// A backend whose kernels are wrong in one way, in front of one that is right.

#include <array>
#include <memory>
#include <string_view>

#include "kernels/backend/backend.h"

namespace deeppcr::testing {

enum class Fault : uint8_t {
  kNone,
  kLayerWeights,    // one weight of one layer is 1 % off
  kForgottenBias,   // the last layer has no bias
  kEncode,          // one element of z_0 is off
  kOutputOrder,     // the outputs are rotated by one
  kNotANumber,      // the last output is NaN
  kEarlyCertified,  // updates look a hundred times smaller than they are
  kNeverCertified,  // updates look larger than they are
  kNotCausal,       // iterated states have other bits than stepped ones
  kWrongSample,     // the second sample of a group gets the first one's outputs
  kLastSample,      // the last of more than two samples of a group is off by one bit
  kBatchBits,       // outputs of groups have other bits than those of a sample alone
  kRare,            // one in thirty outputs is off by one bit
  kHangs,           // steps take for ever, but look at nothing but the clock
  kOtherNoise,      // samples draw the noise of the next one (diffusion)
  kNoLabel,         // labels are not looked at (diffusion)
  kSlow,            // right, and two milliseconds late
  kFinalState,      // the final state that is handed out is not the last of the trajectory
};
struct FaultCase {
  Fault fault;
  const char* name;
  const char* found;       // piece of what a self-check says
  bool diffusion = false;  // shows on diffusion models only
};
inline constexpr std::array kFaults = {
    FaultCase{Fault::kLayerWeights, "LayerWeights", "a step of sample"},
    FaultCase{Fault::kForgottenBias, "ForgottenBias", "a step of sample 0 is off by"},
    FaultCase{Fault::kEncode, "Encode", "z_0 of sample 0 is off by"},
    FaultCase{Fault::kOutputOrder, "OutputOrder", "outputs of sample 0 are off by"},
    FaultCase{Fault::kNotANumber, "NotANumber", "overflows, and does not on the other"},
    FaultCase{Fault::kEarlyCertified, "EarlyCertified", "certified states of sample 0 that are"},
    FaultCase{Fault::kNeverCertified, "NeverCertified", "which is in the plan, ended as"},
    FaultCase{Fault::kNotCausal, "NotCausal", "other bits than sequential after 1 iterations"},
    FaultCase{Fault::kWrongSample, "WrongSample", "other bits for sample 1 of 2"},
    FaultCase{Fault::kLastSample, "LastSample", "other bits for sample 2 of 3"},
    FaultCase{Fault::kBatchBits, "BatchBits", "other bits for sample 0 of 2"},
    FaultCase{Fault::kRare, "Rare", "other bits"},
    FaultCase{Fault::kHangs, "Hangs", "was not done after"},
    FaultCase{Fault::kFinalState, "FinalState", "is not the end of its trajectory"},
    FaultCase{Fault::kOtherNoise, "OtherNoise", "is off by", true},
    FaultCase{Fault::kNoLabel, "NoLabel", "is off by", true},
};

// `inner`, under the name "faulty".
std::unique_ptr<Backend> NewFaultyBackend(std::unique_ptr<Backend> inner, Fault fault);

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_FAULTY_BACKEND_H_
