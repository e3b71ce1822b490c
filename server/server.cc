// SPDX-License-Identifier: Apache-2.0
#include "server/server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/resource_quota.h"
#include "kernels/base/control_group.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "nlohmann/json.hpp"
#include "server/credentials.h"
#include "server/rpc/call_threads.h"
#include "server/rpc/shown.h"
#include "server/schedule/warm_up.h"

namespace deeppcr {
namespace {

using Clock = std::chrono::steady_clock;

// gRPC's Shutdown waits this long wherever a client merely keeps an idle connection, so it must be
// short; our own count says when calls are done.
constexpr std::chrono::milliseconds kShutdownDeadline(300);
constexpr int kMaxSyncThreads = 16;
constexpr std::chrono::milliseconds kLookInterval(1000);
// A certificate and its key are replaced within less.
constexpr std::chrono::milliseconds kTlsPatience(2000);
// A connection that is silent from its beginning takes a place for this long.
constexpr int kHandshakeMilliseconds = 10000;
// The time between cancelling the calls that are left and giving up on them.
constexpr int kCancelPatienceSeconds = 5;
// New calls are refused for this long before gRPC shuts down: calls that it has not handed out by
// then end as CANCELLED, which clients do not retry.
constexpr std::chrono::milliseconds kRefusalTime(500);
// The time for replies on their way; a client that does not read must not hold up the exit.
constexpr double kReadPatienceSeconds = 2;

std::vector<std::string> SolverLabels() {
  std::vector<std::string> labels;
  for (const std::string_view name : SolverNames()) {
    if (name != "auto") labels.emplace_back(name);
  }
  return labels;
}

int Milliseconds(double seconds) { return static_cast<int>(seconds * 1000); }

ScheduleOptions ScheduleOptionsOf(const ServerConfig& config) {
  const std::chrono::duration<double> delay(config.batch_delay_seconds);
  return {.workers = ResolvedWorkers(config),
          .max_queue_samples = config.max_queue,
          .max_instances = static_cast<int>(config.max_instances),
          .max_delay = std::chrono::duration_cast<std::chrono::microseconds>(delay),
          .max_queue_seconds = config.max_queue_seconds};
}

Repository RepositoryOf(const ServerConfig& config) {
  return config.model_dir.empty() ? Repository(config.model_repository)
                                  : Repository::OfModel(config.model_dir, config.model_name);
}

ComparePolicy ComparePolicyOf(const std::string& name) {
  if (name == "admin") return ComparePolicy::kAdmin;
  return name == "off" ? ComparePolicy::kOff : ComparePolicy::kInfer;
}

bool WaitForZero(const std::atomic<int64_t>& count, double seconds,
                 const std::function<bool()>& hurry) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  while (count.load() > 0) {
    if (Clock::now() >= deadline || hurry()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

void SetLimits(const ServerConfig& config, grpc::ServerBuilder& builder) {
  const int max_message = static_cast<int>(config.max_message_bytes);
  builder.SetMaxReceiveMessageSize(max_message);
  builder.SetMaxSendMessageSize(max_message);
  grpc::ResourceQuota quota("deeppcr");
  quota.Resize(static_cast<size_t>(config.max_grpc_memory_bytes));
  // Reflection is synchronous: every open stream of it takes a thread.
  quota.SetMaxThreads(kMaxSyncThreads);
  builder.SetResourceQuota(quota);
  // The receive limit applies before decompression: without this a small message could unpack to
  // gigabytes.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             static_cast<int>(config.max_concurrent_streams));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 * 1024);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(config.keepalive_seconds));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             Milliseconds(config.keepalive_timeout_seconds));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Milliseconds(config.min_ping_interval_seconds));
  const auto limit = [&](const char* argument, double seconds) {
    // gRPC takes 0 for at once.
    if (seconds > 0) builder.AddChannelArgument(argument, std::max(1, Milliseconds(seconds)));
  };
  limit(GRPC_ARG_MAX_CONNECTION_AGE_MS, config.max_connection_age_seconds);
  limit(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, config.max_connection_age_grace_seconds);
  limit(GRPC_ARG_MAX_CONNECTION_IDLE_MS, config.max_connection_idle_seconds);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMilliseconds);
}

// Removes an earlier server's port file, which would announce ports that nobody serves. Checks that
// a new one can be written: otherwise whoever waits for it would wait for ever.
absl::Status ClearPortFile(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  const std::string temporary = path + ".tmp";
  const bool writable = std::ofstream(temporary).good();
  unlink(temporary.c_str());
  if (!writable) return InvalidArgument("--port_file: ", temporary, " cannot be written");
  unlink(path.c_str());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tracer>> MakeTracer(const ServerConfig& config, Logger& logger) {
  return Tracer::Create(
      {.rate = config.trace_rate,
       .file = config.trace_file,
       .max_bytes = config.max_trace_bytes,
       .endpoint = config.otlp_traces_endpoint,
       .version = DEEPPCR_VERSION,
       .lost = [&logger](int64_t spans, std::string_view why) {
         logger.LogLimited(LogLevel::kWarn, "spans_dropped", {{"spans", spans}, {"reason", why}});
       }});
}

}  // namespace

Server::Server(const ServerConfig& config, std::unique_ptr<Engine> engine,
               std::unique_ptr<Tracer> tracer, Logger& logger)
    : config_(config),
      logger_(logger),
      engine_(std::move(engine)),
      metrics_(SolverLabels(), DEEPPCR_VERSION, engine_->device(), engine_->backend()),
      replies_(std::chrono::milliseconds(Milliseconds(config.reply_seconds))),
      batcher_({.schedule = ScheduleOptionsOf(config), .max_bytes = config.max_queue_bytes}),
      store_({.repository = RepositoryOf(config),
              .versions = config.versions,
              .allow_empty = config.allow_empty,
              .allow_failed = config.allow_failed,
              .unload_patience = std::chrono::milliseconds(Milliseconds(config.drain_seconds))},
             *engine_, metrics_, logger),
      poller_(RepositoryOf(config), config.versions, store_),
      preparer_([this](const ServedModel& model, const SystemKey& key) {
        return PrepareSteps(model, key, context_);
      }),
      trajectories_({.max_bytes = config.gradients ? config.max_trajectory_bytes : 0,
                     .life = std::chrono::milliseconds(Milliseconds(config.trajectory_seconds))},
                    metrics_),
      shadow_(config.shadow_rate, batcher_, metrics_),
      acceptor_(config.max_connections,
                [this] {
                  metrics_.CountRefusedConnection();
                  logger_.LogLimited(LogLevel::kWarn, "connection_refused",
                                     {{"max_connections", config_.max_connections}});
                }),
      authorizer_({.token_file = config.token_file,
                   .admin_names = {config.admin_names.begin(), config.admin_names.end()},
                   .open_admin = IsAdminOpen(config)}),
      tracer_(std::move(tracer)),
      context_{store_,
               batcher_,
               loader_,
               comparisons_,
               preparer_,
               trajectories_,
               metrics_,
               shadow_,
               logger,
               replies_,
               authorizer_,
               *tracer_,
               config.max_message_bytes,
               config.gradients,
               ComparePolicyOf(config.compare),
               config.compare_seconds,
               ScheduleOptionsOf(config),
               config.versions,
               {.access_rate = config.access_log_rate, .slow_seconds = config.slow_seconds}},
      service_(context_),
      v2_service_(context_),
      call_queue_(CallThreadsFor(AvailableCoreSeconds(), !config.tls_cert.empty(),
                                 config.busy_poll_seconds),
                  context_.unanswered),
      token_watch_(config.token_file) {
  // gRPC answers before Start is done with wiring: until then calls are refused.
  context_.draining.store(true);
  metrics_.SetLimits(config.max_queue_bytes, ReadControlGroup().bytes.value_or(0));
}

ServerFigures Server::Figures() {
  return {.connections = acceptor_.connections(),
          .workers = batcher_.workers(),
          .busy_seconds = batcher_.BusySeconds(),
          .held_bytes = batcher_.held_bytes(),
          .spans = tracer_->spans()};
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerConfig& config,
                                                      std::unique_ptr<Engine> engine,
                                                      Logger& logger) {
  std::error_code error;
  if (const std::string folder = RepositoryOf(config).text();
      !std::filesystem::is_directory(folder, error))
    return absl::NotFoundError(
        StrCat(config.model_dir.empty() ? "--model_repository" : "--model_dir", ": '", folder,
               "' is not a directory that can be read"));
  DEEPPCR_ASSIGN_OR_RETURN(auto tracer, MakeTracer(config, logger));
  std::unique_ptr<Server> server(new Server(config, std::move(engine), std::move(tracer), logger));
  DEEPPCR_RETURN_IF_ERROR(server->authorizer_.Reload());
  std::shared_ptr<TokenGate> gate;
  if (server->authorizer_.enabled())
    gate = std::make_shared<TokenGate>(server->authorizer_, server->metrics_, logger);
  if (!config.tls_cert.empty()) {
    DEEPPCR_ASSIGN_OR_RETURN(
        server->tls_files_,
        TlsFiles::Open(config.tls_key, config.tls_cert, config.tls_client_ca, kTlsPatience));
    server->metrics_.SetCertificateEnd(server->tls_files_->end());
  }
  const auto credentials = MakeCredentials(config, server->tls_files_.get(), gate);
  DEEPPCR_RETURN_IF_ERROR(server->StartHttp());
  DEEPPCR_RETURN_IF_ERROR(server->StartGrpc(credentials));
  DEEPPCR_RETURN_IF_ERROR(server->StartRest());
  DEEPPCR_RETURN_IF_ERROR(ClearPortFile(config.port_file));
  Server* raw = server.get();
  server->store_.set_listener([raw] { raw->UpdateHealth(); });
  server->store_.set_warm_up([raw](const auto& model, const CancelToken& stop) {
    return WarmUp(raw->batcher_, model, stop);
  });
  server->ticker_ = std::make_unique<Ticker>(kLookInterval, [raw] { raw->LookAround(); });
  server->context_.draining.store(false);
  if (!server->loader_.Post([raw] { raw->LoadModels(); })) {
    return absl::InternalError("the loader does not accept its first task");
  }
  return server;
}

absl::Status Server::StartHttp() {
  HttpServer::Handlers handlers = {[this] {
                                     metrics_.SetFigures(Figures());
                                     return metrics_.Text();
                                   },
                                   [this] { return Stuck(); },
                                   [this] { return context_.Missing(); }};
  DEEPPCR_ASSIGN_OR_RETURN(Listener listener, Listener::Open("http_listen", config_.http_listen));
  http_listener_.emplace(std::move(listener));
  http_port_ = http_listener_->port();
  DEEPPCR_ASSIGN_OR_RETURN(http_,
                           HttpServer::Start(http_listener_->sockets(), std::move(handlers)));
  return absl::OkStatus();
}

absl::StatusOr<int> Server::AddDoor(std::string_view flag, const std::string& address,
                                    SocketMode mode,
                                    const std::shared_ptr<grpc::ServerCredentials>& credentials,
                                    grpc::ServerBuilder& builder) {
  using Parameters = grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters;
  using Experimental = grpc::ServerBuilder::experimental_type;
  DEEPPCR_ASSIGN_OR_RETURN(Listener listener, Listener::Open(flag, address, mode));
  const int port = listener.port();
  const std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> door =
      builder.experimental().AddExternalConnectionAcceptor(
          Experimental::ExternalConnectionType::FROM_FD, credentials);
  // gRPC gives the sockets of its own listeners the time-out of keepalive for data too.
  const auto patience = static_cast<unsigned>(Milliseconds(config_.keepalive_timeout_seconds));
  const auto give = [door, patience](int socket_fd) {
    setsockopt(socket_fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof(patience));
    Parameters connection;
    connection.fd = socket_fd;
    door->HandleNewConnection(&connection);
  };
  // Administrators get in while clients hold every place.
  acceptor_.Add(std::move(listener), give, mode != SocketMode::kPrivate);
  return port;
}

absl::Status Server::StartGrpc(const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  if (config_.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetLimits(config_, builder);
  DEEPPCR_ASSIGN_OR_RETURN(
      grpc_port_, AddDoor("listen", config_.listen, SocketMode::kOfFiles, credentials, builder));
  if (!config_.socket.empty())
    DEEPPCR_RETURN_IF_ERROR(AddDoor("socket", StrCat(kUnixScheme, config_.socket),
                                    SocketMode::kOfFiles, grpc::InsecureServerCredentials(),
                                    builder)
                                .status());
  if (!config_.admin_listen.empty())
    DEEPPCR_RETURN_IF_ERROR(AddDoor("admin_listen", StrCat(kUnixScheme, config_.admin_listen),
                                    SocketMode::kPrivate, MakeAdminCredentials(), builder)
                                .status());
  builder.RegisterService(&health_);
  builder.RegisterService(&service_);
  builder.RegisterService(&v2_service_);
  call_queue_.AddTo(&builder);
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr) return absl::UnavailableError("gRPC does not start; its log says why");
  std::vector<QueuedMethod> methods = service_.Methods();
  std::ranges::move(v2_service_.Methods(), std::back_inserter(methods));
  std::ranges::move(health_.Methods(), std::back_inserter(methods));
  call_queue_.Start(std::move(methods));
  health_.Publish({{"", false}, {kLiveness, true}});
  return acceptor_.Start();
}

absl::Status Server::StartRest() {
  if (config_.rest_listen.empty()) return absl::OkStatus();
  DEEPPCR_ASSIGN_OR_RETURN(Listener listener, Listener::Open("rest_listen", config_.rest_listen));
  rest_listener_.emplace(std::move(listener));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  DEEPPCR_ASSIGN_OR_RETURN(
      rest_, RestServer::Start(rest_listener_->sockets(), grpc_->InProcessChannel(arguments),
                               authorizer_, logger_,
                               {.max_body_bytes = config_.max_message_bytes,
                                .max_held_bytes = RestBodiesBytes(config_),
                                .body_seconds = config_.reply_seconds}));
  return absl::OkStatus();
}

void Server::UpdateHealth() {
  // Without the lock an older view of the models could be published over a newer one.
  std::lock_guard<std::mutex> lock(health_mutex_);
  const bool leaving = context_.leaving.load();
  HealthService::Statuses statuses;
  int64_t num_ready = 0, num_failed = 0;
  std::vector<std::shared_ptr<ServedModel>> served;
  for (const ModelStatus& status : store_.List()) {
    num_ready += status.model != nullptr ? 1 : 0;
    num_failed += status.state == ModelState::kFailed ? 1 : 0;
    bool& serves = statuses[status.name];
    serves = serves || (status.model != nullptr && !leaving);
    if (status.model != nullptr) served.push_back(status.model);
  }
  trajectories_.KeepOnly(served);
  for (const auto& model : served)
    model->metrics->queue_capacity->Set(
        static_cast<double>(OptionsFor(*model, context_.schedule).max_queue_samples));
  const bool ready = Ready();
  metrics_.SetModels(num_ready, num_failed);
  metrics_.SetReady(ready);
  for (const char* name : {"", v1::DeepPcr::service_full_name(), V2::service_full_name()})
    statuses[name] = ready;
  // Whatever a model of that name says.
  statuses[std::string(kLiveness)] = alive_.load();
  health_.Publish(std::move(statuses));
}

std::vector<std::string> Server::Stuck() const {
  const double seconds = batcher_.LongestRunSeconds();
  if (config_.stuck_seconds == 0 || seconds < config_.stuck_seconds) return {};
  return {StrCat("a batch has been computed for ", static_cast<int64_t>(seconds), " s")};
}

void Server::RefreshTls() {
  const absl::Status status = tls_files_->Refresh();
  metrics_.SetCertificateEnd(tls_files_->end());
  if (status == tls_status_) return;
  tls_status_ = status;
  // Files that are replaced one after the other do not fit for a moment.
  logger_.Log(status.ok() ? LogLevel::kInfo : LogLevel::kWarn,
              status.ok() ? "tls_files_fit" : "tls_files_kept",
              {{"reason", std::string(status.message())}});
}

void Server::LookAround() {
  if (authorizer_.enabled() && token_watch_.Changed()) ReloadTokens();
  if (tls_files_ != nullptr) RefreshTls();
  if (config_.model_control == "poll") Poll();
  const std::vector<std::string> stuck = Stuck();
  const bool alive = stuck.empty();
  if (alive_.exchange(alive) == alive) return;
  UpdateHealth();
  logger_.Log(alive ? LogLevel::kInfo : LogLevel::kError, alive ? "alive_again" : "stuck",
              {{"reason", alive ? std::string() : stuck.front()}});
}

// Has the loader look at the repository, unless it has not come to the last look yet.
void Server::Poll() {
  const Clock::time_point now = Clock::now();
  if (now < next_poll_ || polling_.exchange(true)) return;
  next_poll_ = now + std::chrono::milliseconds(Milliseconds(config_.poll_seconds));
  const bool posted = loader_.Post([this] {
    if (!context_.leaving.load()) poller_.Poll();
    polling_.store(false);
  });
  if (!posted) polling_.store(false);
}

void Server::ReloadTokens() {
  const absl::Status status = authorizer_.Reload();
  logger_.Log(status.ok() ? LogLevel::kInfo : LogLevel::kError,
              status.ok() ? "tokens_read" : "tokens_not_read",
              {{"reason", ToStd(status.message())}});
}

void Server::LoadModels() {
  const Clock::time_point start = Clock::now();
  poller_.Begin();
  if (absl::Status status = store_.LoadAll(); !status.ok()) {
    logger_.Log(LogLevel::kError, "repository_unreadable", {{"reason", ToStd(status.message())}});
  }
  if (context_.leaving.load()) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const bool ready = Ready();
  logger_.Log(ready ? LogLevel::kInfo : LogLevel::kError, ready ? "ready" : "not_ready",
              {{"models", static_cast<int64_t>(store_.List().size())},
               {"seconds", seconds},
               {"grpc_port", int64_t{grpc_port_}},
               {"http_port", int64_t{http_port()}}});
  WritePortFile();
}

void Server::WritePortFile() const {
  if (config_.port_file.empty()) return;
  nlohmann::json ports = {{"grpc_port", grpc_port_},
                          {"http_port", http_port()},
                          {"pid", static_cast<int64_t>(getpid())},
                          {"ready", Ready()}};
  if (rest_listener_.has_value()) ports["rest_port"] = rest_listener_->port();
  // Renamed into place, so that a reader never sees half of it.
  const std::string temporary = config_.port_file + ".tmp";
  std::ofstream file(temporary);
  file << ports.dump() << "\n";
  file.close();
  if (!file || std::rename(temporary.c_str(), config_.port_file.c_str()) != 0) {
    logger_.Log(LogLevel::kError, "port_file_not_written", {{"path", config_.port_file}});
  }
}

Server::DrainResult Server::Drain(const std::function<bool()>& hurry) {
  drained_ = true;
  ticker_.reset();
  context_.leaving.store(true);
  UpdateHealth();
  const auto pause = [&](double seconds) {
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    while (Clock::now() < end && !hurry())
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  };
  // Connections whose age ends in the second half go elsewhere, whatever their clients heed: gRPC
  // tells them to go while it still takes their calls.
  pause(config_.drain_pause_seconds / 2);
  acceptor_.Stop();
  pause(config_.drain_pause_seconds / 2);
  context_.draining.store(true);

  batcher_.Flush();
  store_.Stop();
  DrainResult result = DrainResult::kClean;
  if (!WaitForZero(context_.unanswered, config_.drain_seconds, hurry)) {
    result = DrainResult::kForced;
    logger_.Log(LogLevel::kWarn, "drain_forced", {{"calls", context_.unanswered.load()}});
    context_.stop.Cancel();
    batcher_.CancelAll();
    if (!WaitForZero(context_.unanswered, kCancelPatienceSeconds, [] { return false; })) {
      return DrainResult::kStuck;
    }
  }
  result = std::max(result, StopGrpc(hurry));
  if (result == DrainResult::kStuck) return result;
  preparer_.Stop();
  batcher_.Shutdown();
  comparisons_.Stop();
  loader_.Stop();
  return result;
}

Server::DrainResult Server::StopGrpc(const std::function<bool()>& hurry) {
  if (!WaitForZero(context_.calls, kReadPatienceSeconds, hurry)) {
    logger_.Log(LogLevel::kWarn, "replies_unread", {{"calls", context_.calls.load()}});
  }
  std::this_thread::sleep_for(kRefusalTime);
  if (rest_ != nullptr) {
    rest_->Leave();
    WaitForZero(rest_->exchanges(), kReadPatienceSeconds, hurry);
    rest_.reset();
  }
  grpc_->Shutdown(std::chrono::system_clock::now() + kShutdownDeadline);
  grpc_->Wait();
  const auto gone = [](const std::atomic<int64_t>& count) {
    return WaitForZero(count, kCancelPatienceSeconds, [] { return false; });
  };
  const bool ended = gone(context_.calls) && gone(context_.streams) &&
                     call_queue_.Stop(std::chrono::seconds(kCancelPatienceSeconds));
  return ended ? DrainResult::kClean : DrainResult::kStuck;
}

Server::~Server() {
  if (grpc_ != nullptr && !drained_) Drain([] { return true; });
  acceptor_.Stop();
  store_.Stop();
  preparer_.Stop();
  batcher_.Shutdown();
  comparisons_.Stop();
  loader_.Stop();
}

}  // namespace deeppcr
