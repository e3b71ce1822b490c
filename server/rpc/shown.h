// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_SHOWN_H_
#define DEEPPCR_SERVER_RPC_SHOWN_H_

// What callers show of themselves, as gRPC tells it.

#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "grpcpp/security/auth_context.h"
#include "grpcpp/security/auth_metadata_processor.h"
#include "grpcpp/server_context.h"
#include "server/observe/log.h"
#include "server/observe/metrics.h"
#include "server/rpc/authorizer.h"

namespace deeppcr {

using CallMetadata = std::multimap<grpc::string_ref, grpc::string_ref>;

// The metadata `authorization`, empty if there is none. Lives as long as `metadata`.
std::string_view AuthorizationIn(const CallMetadata& metadata);

// The metadata by which the HTTP server of this process says whose request a call is.
inline constexpr char kHttpPeer[] = "deeppcr-http-peer";

// The address that the call of `rpc` comes from; over HTTP, that of the request.
std::string PeerOf(const grpc::ServerContextBase& rpc);

// Authorizer::Check of the caller of `rpc`.
absl::Status CheckCaller(const Authorizer& authorizer, const grpc::ServerContextBase& rpc,
                         Role needed);

// Authorizer::Describe of the caller of `rpc`.
std::string DescribeCaller(const Authorizer& authorizer, const grpc::ServerContextBase& rpc);

// Refuses calls that may not be made at their headers: without it gRPC would first wait for their
// messages, and hold what has come of them. Looks at methods of ours only: health checks and
// reflection need no token, nor do those of the v2 protocol that tell nothing.
class TokenGate final : public grpc::AuthMetadataProcessor {
 public:
  // All outlive the server.
  TokenGate(const Authorizer& authorizer, Metrics& metrics, Logger& logger)
      : authorizer_(authorizer), metrics_(metrics), logger_(logger) {}

  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* peer,
                       OutputMetadata* consumed, OutputMetadata* response) override;

 private:
  const Authorizer& authorizer_;
  Metrics& metrics_;
  Logger& logger_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_SHOWN_H_
