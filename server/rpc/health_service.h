// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_HEALTH_SERVICE_H_
#define DEEPPCR_SERVER_RPC_HEALTH_SERVICE_H_

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace deeppcr {

// The health protocol of gRPC (grpc.health.v1), which balancers and probes speak. gRPC's own
// service of it never forgets a name; of this one a name that is not published any more is unknown.
// Names are answered to whoever asks, with a token or without. Thread-safe; must outlive the
// server that it is registered with.
class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  // By name: whether it serves. The empty name is the server itself.
  using Statuses = std::map<std::string, bool, std::less<>>;

  // Replaces all that is known, and tells those that watch what has changed for them.
  void Publish(Statuses statuses);

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* rpc,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* rpc,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;
  class Watcher;

  // The caller holds mutex_.
  std::optional<Status> Find(std::string_view name) const;

  std::mutex mutex_;
  Statuses statuses_;            // guarded by mutex_, as are the watchers and what they hold
  std::set<Watcher*> watchers_;  // until gRPC is done with them
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_HEALTH_SERVICE_H_
