// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_SERVER_H_
#define DEEPPCR_SERVER_SERVER_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "kernels/base/linked_file.h"
#include "kernels/engine.h"
#include "server/acceptor.h"
#include "server/config.h"
#include "server/listener.h"
#include "server/models/repository_poller.h"
#include "server/observe/http.h"
#include "server/observe/log.h"
#include "server/rest/rest_server.h"
#include "server/rpc/authorizer.h"
#include "server/rpc/health_service.h"
#include "server/rpc/service.h"
#include "server/rpc/v2/service.h"
#include "server/schedule/ticker.h"
#include "server/tls_files.h"

namespace deeppcr {

// The name of gRPC's health service that is SERVING as long as work goes on, whatever the models
// do: for probes that decide on restarts.
inline constexpr char kLiveness[] = "liveness";

// The parts of the server, put together: listens at once, loads models in the background, is ready
// when all of them are, drains when told.
class Server {
 public:
  // `logger` outlives the server.
  // Errors: kUnavailable (a port is taken), kNotFound (no repository, or no such file),
  // kInvalidArgument (certificates, tokens, a socket's path, or a file that cannot be written).
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerConfig& config,
                                                       std::unique_ptr<Engine> engine,
                                                       Logger& logger);
  // Drains without patience, if Drain was not called.
  ~Server();

  int grpc_port() const { return grpc_port_; }
  int http_port() const { return http_port_; }

  // True while the server does not drain and no model that it should serve is missing.
  bool Ready() const { return context_.Ready(); }

  // Reads the tokens again; the old ones stay if that fails, which is logged.
  void ReloadTokens();

  enum class DrainResult {
    kClean,   // every accepted call was answered, though perhaps not read by its client
    kForced,  // some were cancelled
    kStuck,   // some ignored their cancellation: destroying the server could hang
  };
  // Drains in steps: not ready, pause, refuse new calls, wait for calls in progress, cancel those
  // that are left. Listens no more from the middle of the pause on. hurry: polled; true ends the
  // waits.
  DrainResult Drain(const std::function<bool()>& hurry);

 private:
  Server(const ServerConfig& config, std::unique_ptr<Engine> engine, std::unique_ptr<Tracer> tracer,
         Logger& logger);

  absl::Status StartHttp();
  // Listens for gRPC at the address; the port, or 0 for a UNIX socket.
  absl::StatusOr<int> AddDoor(std::string_view flag, const std::string& address, SocketMode mode,
                              const std::shared_ptr<grpc::ServerCredentials>& credentials,
                              grpc::ServerBuilder& builder);
  absl::Status StartGrpc(const std::shared_ptr<grpc::ServerCredentials>& credentials);
  absl::Status StartRest();
  DrainResult StopGrpc(const std::function<bool()>& hurry);
  void LoadModels();
  ServerFigures Figures();
  // What the liveness probes tell of.
  std::vector<std::string> Stuck() const;
  void RefreshTls();
  // Looks at what changes and tells nobody.
  void LookAround();
  void Poll();
  void UpdateHealth();
  void WritePortFile() const;

  const ServerConfig config_;
  Logger& logger_;
  const std::unique_ptr<Engine> engine_;
  Metrics metrics_;
  ReplyWatch replies_;
  Batcher batcher_;
  ModelStore store_;
  RepositoryPoller poller_;  // on the loader's thread
  TaskThread loader_;
  TaskThread comparisons_;
  SystemPreparer preparer_;
  TrajectoryStore trajectories_;
  ShadowSampler shadow_;
  Acceptor acceptor_;
  Authorizer authorizer_;
  const std::unique_ptr<Tracer> tracer_;
  ServiceContext context_;
  HealthService health_;  // outlives grpc_
  DeepPcrService service_;
  V2Service v2_service_;
  std::unique_ptr<TlsFiles> tls_files_;    // outlives grpc_; null without TLS
  std::optional<Listener> http_listener_;  // outlives http_
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<grpc::Server> grpc_;
  CallQueue call_queue_;                   // goes before grpc_, which has shut down by then
  std::optional<Listener> rest_listener_;  // outlives rest_
  std::unique_ptr<RestServer> rest_;
  int grpc_port_ = 0;
  int http_port_ = 0;
  std::mutex health_mutex_;  // one UpdateHealth at a time
  std::atomic<bool> alive_{true};
  bool drained_ = false;
  FileWatch token_watch_;    // LookAround's, as are the next two
  absl::Status tls_status_;  // of the last look at the files of TLS
  std::chrono::steady_clock::time_point next_poll_;
  std::atomic<bool> polling_{false};  // a look waits for the loader, or is made
  std::unique_ptr<Ticker> ticker_;    // calls LookAround
};

// Asks the server at `address` for its overall health.
// Errors: kUnavailable if it does not answer or does not serve.
absl::Status Probe(const std::string& address);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_SERVER_H_
