// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_REST_REST_SERVER_H_
#define DEEPPCR_SERVER_REST_REST_SERVER_H_

// The v2 protocol over HTTP/1.1: bodies are translated to the messages of gRPC and sent to the same
// server within the process, so that there is one way to an answer, with one set of checks, limits,
// roles and figures. Driven by events: a request that waits for its answer holds no thread.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/channel.h"
#include "inference/grpc_service.grpc.pb.h"
#include "server/observe/log.h"
#include "server/rpc/authorizer.h"

struct MHD_Connection;
struct MHD_Daemon;

namespace deeppcr {

struct RestOptions {
  int64_t max_body_bytes = int64_t{16} << 20;  // of a request
  // Of all bodies, of what is made of them, and of replies on their way; a request that is alone
  // may take more.
  int64_t max_held_bytes = int64_t{128} << 20;
  double body_seconds = 30;  // for the body to come; and a second more for every 128 KiB
};

class RestServer {
 public:
  // sockets: listen, do not block, and stay open for as long as this object lives. channel: to the
  // server of this process. `authorizer` refuses callers at their headers, which `logger` tells;
  // both outlive this object. Calls that are begun have to end by themselves. Errors: kUnavailable
  // if the system has no thread or descriptor left.
  static absl::StatusOr<std::unique_ptr<RestServer>> Start(std::span<const int> sockets,
                                                           std::shared_ptr<grpc::Channel> channel,
                                                           const Authorizer& authorizer,
                                                           Logger& logger,
                                                           const RestOptions& options);
  // Waits for the calls in progress.
  ~RestServer();

  // Accepts no connections any more, and answers requests on those that there are with 503.
  void Leave();

  // Requests that have come and whose replies are not sent yet.
  const std::atomic<int64_t>& exchanges() const { return exchanges_; }
  RestServer(const RestServer&) = delete;
  RestServer& operator=(const RestServer&) = delete;

  // For the library's callbacks, which take no others.
  struct Exchange;  // a request and its reply
  bool OnRequest(MHD_Connection* connection, const char* path, const char* method,
                 std::string_view data, Exchange*& exchange);
  void OnEnd(Exchange* exchange);

 private:
  RestServer(std::shared_ptr<grpc::Channel> channel, const Authorizer& authorizer, Logger& logger,
             const RestOptions& options);

  bool Begin(MHD_Connection* connection, const char* path, std::string_view method,
             Exchange& exchange);
  absl::Status CheckHeaders(MHD_Connection* connection, Exchange& exchange) const;
  bool Receive(std::string_view data, Exchange& exchange);
  bool Answer(MHD_Connection* connection, Exchange& exchange);
  absl::Status Hold(int64_t bytes, Exchange& exchange);
  absl::Status Call(Exchange& exchange);
  absl::Status Infer(Exchange& exchange);
  template <typename Request>
  static absl::StatusOr<Request> AdminRequest(const Exchange& exchange);
  template <typename Request, typename Reply, typename Method, typename Encode>
  absl::Status Send(Exchange& exchange, Method method, Request request, Encode encode);

  const RestOptions options_;
  const Authorizer& authorizer_;
  Logger& logger_;
  inference::GRPCInferenceService::Stub stub_;
  std::vector<MHD_Daemon*> daemons_;  // one for each socket
  std::atomic<int64_t> exchanges_{0}, held_bytes_{0};
  std::mutex mutex_;
  std::condition_variable ended_;
  int64_t calls_ = 0;     // guarded by mutex_, as is the next one
  bool leaving_ = false;  // no call is begun any more
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_REST_REST_SERVER_H_
