// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_BENCH_IN_PROCESS_TARGET_H_
#define DEEPPCR_TESTS_BENCH_IN_PROCESS_TARGET_H_

#include <memory>
#include <string>

#include "tests/bench/rpc_targets.h"

namespace deeppcr::bench {

// The model of a folder in this process, through libdeeppcr: the same requests without a server.
// For one client. `workload` must outlive the target. Errors: those of loading.
absl::StatusOr<std::unique_ptr<Target>> LoadTarget(const RpcWorkload& workload,
                                                   const std::string& folder);

}  // namespace deeppcr::bench

#endif  // DEEPPCR_TESTS_BENCH_IN_PROCESS_TARGET_H_
