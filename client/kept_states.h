// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_KEPT_STATES_H_
#define DEEPPCR_CLIENT_KEPT_STATES_H_

// Trajectories that a server keeps for gradients: their handles, and the file that hands them from
// one command to the next.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace deeppcr {

// The trajectories of one request.
struct KeptStates {
  std::string handle;  // empty where the server kept none: a sample had not converged
  int64_t num_samples = 0;
};

// A line for each request: the handle, or "-", a blank, and the number of samples.
std::string FormatKept(const std::vector<KeptStates>& kept);

// Errors: kInvalidArgument naming the line, what was expected and what came.
absl::StatusOr<std::vector<KeptStates>> ParseKept(std::string_view text);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_KEPT_STATES_H_
