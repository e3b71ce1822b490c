// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_CLI_H_
#define DEEPPCR_CLIENT_CLI_H_

#include <string>

#include "absl/status/status.h"

namespace deeppcr {

// Runs the `deeppcr` command. Exit codes: 0 done, 1 failed (one sentence on standard error), 2
// command line not understood (with a hint).
int RunCli(int argc, const char* const* argv);

// A failure as one sentence, with a remedy if one is known.
std::string ExplainFailure(const absl::Status& status, const std::string& server);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_CLI_H_
