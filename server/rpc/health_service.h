// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_HEALTH_SERVICE_H_
#define DEEPPCR_SERVER_RPC_HEALTH_SERVICE_H_

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "server/rpc/call_queue.h"

namespace deeppcr {

using RawHealthService = grpc::health::v1::Health::WithRawMethod_Check<
    grpc::health::v1::Health::WithRawMethod_Watch<grpc::health::v1::Health::Service>>;

// The health protocol of gRPC (grpc.health.v1), which balancers and probes speak. gRPC's own
// service of it never forgets a name; of this one a name that is not published any more is unknown.
// Names are answered to whoever asks, with a token or without, so requests are at most
// kMaxHealthRequestBytes long: a longer one, or one that is none, is INVALID_ARGUMENT. Thread-safe;
// must outlive the server that it is registered with.
class HealthService final : public RawHealthService {
 public:
  // By name: whether it serves. The empty name is the server itself.
  using Statuses = std::map<std::string, bool, std::less<>>;

  // Replaces all that is known, and tells those that watch what has changed for them.
  void Publish(Statuses statuses);

  std::vector<QueuedMethod> Methods();

 private:
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;
  class Watcher;

  void AnswerCheck(UnaryCallOfQueue* call);
  void AnswerWatch(StreamOfQueue* call);
  // The caller holds mutex_.
  std::optional<Status> Find(std::string_view name) const;

  std::mutex mutex_;
  Statuses statuses_;            // guarded by mutex_, as are the watchers and what they hold
  std::set<Watcher*> watchers_;  // until gRPC is done with them
};

// Twice the longest name of a model.
inline constexpr size_t kMaxHealthRequestBytes = 256;

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_HEALTH_SERVICE_H_
