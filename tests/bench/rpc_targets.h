// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_BENCH_RPC_TARGETS_H_
#define DEEPPCR_TESTS_BENCH_RPC_TARGETS_H_

// The servers that rpc_bench compares, by either protocol.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/array.h"
#include "client/load_generator.h"

namespace deeppcr::bench {

// Requests of one sample: Forward of deeppcr.v1, or ModelInfer of the KServe v2 protocol.
enum class Protocol { kForward, kInfer };

// The requests of a load; samples take turns.
struct RpcWorkload {
  Protocol protocol = Protocol::kForward;
  std::string model;
  std::string solver;  // solver of the load; left out of requests if empty
  Array inputs;
};

// A server, and connections to it for a number of clients. Thread-safe.
class Target {
 public:
  virtual ~Target() = default;

  // Sends request number `index` as client number `client`, and waits for the answer.
  virtual absl::StatusOr<RequestOutcome> Send(int client, int64_t index) const = 0;

  // The outputs of sample `index`. Errors: kInternal if the server reports that the solve did not
  // converge, or if the reply has no outputs.
  virtual absl::StatusOr<std::vector<float>> Outputs(int64_t index,
                                                     const std::string& solver) const = 0;

  // The whole reply to request `index`, serialized again.
  virtual absl::StatusOr<std::string> Reply(int64_t index) const = 0;
};

// `workload` must outlive the target. Errors: those of connecting.
absl::StatusOr<std::unique_ptr<Target>> ConnectTarget(const RpcWorkload& workload,
                                                      const std::string& address, int clients);

}  // namespace deeppcr::bench

#endif  // DEEPPCR_TESTS_BENCH_RPC_TARGETS_H_
