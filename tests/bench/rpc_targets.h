// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_BENCH_RPC_TARGETS_H_
#define DEEPPCR_TESTS_BENCH_RPC_TARGETS_H_

// The servers that rpc_bench compares, whatever protocol they speak.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/array.h"
#include "client/load_generator.h"

namespace deeppcr::bench {

// Of one sample each: Forward of deeppcr.v1, or ModelInfer of the KServe v2 protocol.
enum class Protocol { kForward, kInfer };

// The samples take turns.
struct Workload {
  Protocol protocol = Protocol::kForward;
  std::string model;
  std::string solver;  // of the load; left out of requests where empty
  Array inputs;
};

// A server, and connections to it for so many clients. Thread-safe.
class Target {
 public:
  virtual ~Target() = default;

  // Sends request number `index` as client number `client`, and waits for the answer.
  virtual absl::StatusOr<RequestOutcome> Send(int client, int64_t index) const = 0;

  // The outputs of sample `index`. Errors: kInternal where the server says that the solve did not
  // converge, or where the reply is none.
  virtual absl::StatusOr<std::vector<float>> Outputs(int64_t index,
                                                     const std::string& solver) const = 0;

  // The whole reply to request `index`, serialized anew.
  virtual absl::StatusOr<std::string> Reply(int64_t index) const = 0;
};

// `workload` outlives the target. Errors: of connecting.
absl::StatusOr<std::unique_ptr<Target>> ConnectTarget(const Workload& workload,
                                                      const std::string& address, int clients);

}  // namespace deeppcr::bench

#endif  // DEEPPCR_TESTS_BENCH_RPC_TARGETS_H_
