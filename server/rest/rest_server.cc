// SPDX-License-Identifier: Apache-2.0
#include "server/rest/rest_server.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <strings.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "kernels/base/control_group.h"
#include "kernels/base/json.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "proto/message_json.h"
#include "server/rest/http_reply.h"
#include "server/rest/infer_json.h"
#include "server/rest/route.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/shown.h"

namespace deeppcr {
namespace {

using Clock = std::chrono::steady_clock;
using V2 = inference::GRPCInferenceService;

constexpr unsigned kMaxConnections = 512;
constexpr unsigned kIdleSeconds = 20;
constexpr size_t kBytesOfAConnection = 32768;
// A body in JSON, beside the tensors that are made of it and the message that they are sent in.
constexpr int64_t kBytesPerBodyByte = 10;
constexpr char kJsonLength[] = "Inference-Header-Content-Length";
constexpr char kJson[] = "application/json", kBinary[] = "application/octet-stream";
constexpr double kBytesPerSecond = 128 << 10;

// The object in a small body with at most this member; an empty body is one without.
absl::StatusOr<nlohmann::json> BodyOf(std::string_view text, std::string_view member) {
  if (text.empty()) return nlohmann::json::object();
  DEEPPCR_ASSIGN_OR_RETURN(nlohmann::json body, ParseJson(text, {.max_bytes = 1 << 16}));
  if (!body.is_object()) return InvalidArgument("body: expected an object");
  for (const auto& [name, value] : body.items())
    if (name != member) return InvalidArgument(Quoted(name), ": expected only ", member);
  return body;
}

// A yes or no, of which no is an error for whoever looks at the code alone.
HttpReply YesOrNo(const char* name, bool yes) {
  return {.code = yes ? 200u : 503u, .body = JsonBody({{name, yes}})};
}

std::string HeaderOf(MHD_Connection* connection, const char* name) {
  const char* value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
  return value == nullptr ? std::string() : value;
}

// A header that is a number of bytes; nothing if there is none.
absl::StatusOr<std::optional<int64_t>> BytesIn(MHD_Connection* connection, const char* name) {
  const std::string text = HeaderOf(connection, name);
  if (text.empty()) return std::nullopt;
  int64_t bytes = 0;
  const bool digits = std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  if (digits && absl::SimpleAtoi(text, &bytes)) return bytes;
  return InvalidArgument(name, ": expected a number of bytes, got ", Quoted(text));
}

// True for what gRPC takes for the value of a header.
bool IsPlain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= 0x20 && c <= 0x7e; });
}

MHD_Result AsResult(bool good) { return good ? MHD_YES : MHD_NO; }

MHD_Result HandleRequest(void* self, MHD_Connection* connection, const char* url,
                         const char* method, const char*, const char* data, size_t* data_bytes,
                         void** exchange) {
  auto* mine = static_cast<RestServer::Exchange*>(*exchange);
  const bool good = static_cast<RestServer*>(self)->OnRequest(
      connection, url, method, std::string_view(data, *data_bytes), mine);
  *exchange = mine;
  *data_bytes = 0;
  return AsResult(good);
}

void HandleEnd(void* self, MHD_Connection*, void** exchange, MHD_RequestTerminationCode) {
  static_cast<RestServer*>(self)->OnEnd(static_cast<RestServer::Exchange*>(*exchange));
  *exchange = nullptr;
}

// Leaves paths as they came: an escaped slash is no slash, and names have no escapes.
size_t LeaveEscaped(void*, MHD_Connection*, char* text) { return std::strlen(text); }

// The headers of a request, seen by name.
struct HeaderNames {
  int lengths = 0;          // of those that say where a body ends
  bool strange = false;     // one has a blank, which others leave away, or another byte of no name
  bool coded = false;       // a body is compressed, or may be
  bool sent_coded = false;  // it is sent in another way than in chunks
};

MHD_Result Note(void* seen, MHD_ValueKind, const char* name, const char* value) {
  auto& names = *static_cast<HeaderNames*>(seen);
  const auto is_other = [&](const char* header, const char* known) {
    return strcasecmp(name, header) == 0 && (value == nullptr || strcasecmp(value, known) != 0);
  };
  names.coded = names.coded || is_other(MHD_HTTP_HEADER_CONTENT_ENCODING, "identity");
  names.sent_coded = names.sent_coded || is_other(MHD_HTTP_HEADER_TRANSFER_ENCODING, "chunked");
  const bool is_length = strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0 ||
                         strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0;
  names.lengths += is_length ? 1 : 0;
  for (const char* c = name; *c != 0; ++c) names.strange = names.strange || *c <= ' ' || *c > '~';
  return MHD_YES;
}

HeaderNames NamesOf(MHD_Connection* connection) {
  HeaderNames names;
  MHD_get_connection_values(connection, MHD_HEADER_KIND, &Note, &names);
  return names;
}

// Refuses what would mean one thing here and another to a proxy in front, and bodies that are not
// read.
std::optional<HttpReply> RefusalOf(const HeaderNames& names) {
  if (names.lengths > 1)
    return ErrorReply(InvalidArgument("expected one Content-Length or Transfer-Encoding"));
  if (names.strange) return ErrorReply(InvalidArgument("expected names of headers without blanks"));
  if (names.coded)
    return ErrorReply(MHD_HTTP_UNSUPPORTED_MEDIA_TYPE,
                      "Content-Encoding: expected none, as bodies are not decompressed");
  if (names.sent_coded)
    return ErrorReply(MHD_HTTP_NOT_IMPLEMENTED, "Transfer-Encoding: expected none or chunked");
  return std::nullopt;
}

// Where a connection comes from, as gRPC writes it.
std::string PeerOf(MHD_Connection* connection) {
  const MHD_ConnectionInfo* const info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  if (info == nullptr || info->client_addr == nullptr) return "unknown";
  char text[INET6_ADDRSTRLEN] = {};
  switch (info->client_addr->sa_family) {
    case AF_INET: {
      const auto* const at = reinterpret_cast<const sockaddr_in*>(info->client_addr);
      inet_ntop(AF_INET, &at->sin_addr, text, sizeof text);
      return StrCat("ipv4:", text, ":", ntohs(at->sin_port));
    }
    case AF_INET6: {
      const auto* const at = reinterpret_cast<const sockaddr_in6*>(info->client_addr);
      inet_ntop(AF_INET6, &at->sin6_addr, text, sizeof text);
      return StrCat("ipv6:[", text, "]:", ntohs(at->sin6_port));
    }
    default:
      return "unix:";
  }
}

// The library would write of every connection that ends early.
void Ignore(void*, const char*, va_list) {}

}  // namespace

struct RestServer::Exchange {
  MHD_Connection* connection = nullptr;
  Clock::time_point begun = Clock::now();
  Route route;
  std::string authorization, traceparent, request_id;  // headers
  std::string peer;
  std::optional<int64_t> json_bytes;
  std::string body;
  int64_t held_bytes = 0;
  bool refused = false;  // answered before its body has come
  bool is_over = false;  // its body does not fit, and is not kept
  std::string sent;      // the body of the reply, on its way
  // Makes the reply, which may take long, on a thread of this server; set once the call has ended.
  std::function<HttpReply()> reply;
};

RestServer::RestServer(std::shared_ptr<grpc::Channel> channel, const Authorizer& authorizer,
                       Logger& logger, const RestOptions& options)
    : options_(options), authorizer_(authorizer), logger_(logger), stub_(channel) {}

absl::StatusOr<std::unique_ptr<RestServer>> RestServer::Start(
    std::span<const int> sockets, std::shared_ptr<grpc::Channel> channel,
    const Authorizer& authorizer, Logger& logger, const RestOptions& options) {
  std::unique_ptr<RestServer> server(
      new RestServer(std::move(channel), authorizer, logger, options));
  const unsigned threads = static_cast<unsigned>(std::clamp(AvailableCores() / 4, 2, 8));
  for (const int socket_fd : sockets) {
    MHD_Daemon* const daemon = MHD_start_daemon(
        MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, nullptr,
        nullptr, &HandleRequest, server.get(), MHD_OPTION_EXTERNAL_LOGGER, &Ignore, nullptr,
        MHD_OPTION_UNESCAPE_CALLBACK, &LeaveEscaped, nullptr, MHD_OPTION_NOTIFY_COMPLETED,
        &HandleEnd, server.get(), MHD_OPTION_LISTEN_SOCKET, socket_fd, MHD_OPTION_THREAD_POOL_SIZE,
        threads, MHD_OPTION_CONNECTION_LIMIT, kMaxConnections, MHD_OPTION_CONNECTION_TIMEOUT,
        kIdleSeconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT, kBytesOfAConnection, MHD_OPTION_END);
    if (daemon == nullptr)
      return absl::UnavailableError("--rest_listen: the HTTP server does not start");
    server->daemons_.push_back(daemon);
  }
  return server;
}

void RestServer::Leave() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  // The sockets are not the library's to close.
  for (MHD_Daemon* const daemon : daemons_) MHD_quiesce_daemon(daemon);
}

// The library must not be stopped while a connection rests: none does once no call is begun any
// more and those that were have ended.
RestServer::~RestServer() {
  Leave();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [this] { return calls_ == 0; });
  }
  for (MHD_Daemon* const daemon : daemons_) MHD_stop_daemon(daemon);
}

// Called for the headers of a request, for every piece of its body, for its end, and once more when
// its call has ended.
bool RestServer::OnRequest(MHD_Connection* connection, const char* path, const char* method,
                           std::string_view data, Exchange*& exchange) {
  if (exchange == nullptr) {
    exchange = new Exchange();
    exchanges_.fetch_add(1);
    return Begin(connection, path, method, *exchange);
  }
  if (exchange->refused) return true;
  if (!data.empty()) return Receive(data, *exchange);
  if (exchange->reply != nullptr) return Answer(connection, *exchange);
  const absl::Status status = Call(*exchange);
  if (status.ok()) return true;
  exchange->reply = [status] { return ErrorReply(status); };
  return Answer(connection, *exchange);
}

void RestServer::OnEnd(Exchange* exchange) {
  if (exchange == nullptr) return;
  held_bytes_.fetch_sub(exchange->held_bytes);
  delete exchange;
  exchanges_.fetch_sub(1);
}

// Refuses at the headers what would be refused anyway: its body is not waited for.
bool RestServer::Begin(MHD_Connection* connection, const char* path, std::string_view method,
                       Exchange& exchange) {
  exchange.connection = connection;
  exchange.peer = PeerOf(connection);
  const auto refuse = [&](HttpReply reply) {
    exchange.reply = [reply = std::move(reply)] { return reply; };
    exchange.refused = true;
    return Answer(connection, exchange);
  };
  std::optional<Route> route = ParseRoute(path);
  if (!route.has_value())
    return refuse(ErrorReply(MHD_HTTP_NOT_FOUND,
                             "expected a path of the v2 protocol, such as /v2/models/NAME/infer"));
  if (method != (route->posts ? "POST" : "GET"))
    return refuse(
        ErrorReply(MHD_HTTP_METHOD_NOT_ALLOWED, route->posts ? "expected POST" : "expected GET"));
  exchange.route = *std::move(route);
  if (auto refusal = RefusalOf(NamesOf(connection)); refusal.has_value())
    return refuse(*std::move(refusal));
  if (absl::Status status = CheckHeaders(connection, exchange); !status.ok())
    return refuse(ErrorReply(status));
  const bool is_probe = exchange.route.method == RestMethod::kLive ||
                        exchange.route.method == RestMethod::kReady ||
                        exchange.route.method == RestMethod::kServerMetadata;
  const absl::Status known = authorizer_.Check({.header = exchange.authorization}, Role::kInfer);
  if (!is_probe && !known.ok()) {
    logger_.LogLimited(LogLevel::kInfo, "request_refused",
                       {{"path", std::string_view(path).substr(0, 128)},
                        {"peer", exchange.peer},
                        {"code", StatusCodeName(known.code())},
                        {"message", ToStd(known.message())}});
    return refuse(ErrorReply(known));
  }
  const bool changes_models =
      exchange.route.method == RestMethod::kLoad || exchange.route.method == RestMethod::kUnload;
  // A page in a browser on this machine could ask for it: there it takes a secret.
  if (changes_models && !authorizer_.enabled())
    return refuse(ErrorReply(MHD_HTTP_FORBIDDEN,
                             "over HTTP models are loaded and unloaded with a token of the role "
                             "admin, of --token_file; over gRPC as --admin says"));
  const auto length = BytesIn(connection, MHD_HTTP_HEADER_CONTENT_LENGTH);
  const int64_t bytes = length.ok() ? length->value_or(0) : 0;
  if (bytes > options_.max_body_bytes)
    return refuse(
        ErrorReply(MHD_HTTP_CONTENT_TOO_LARGE,
                   StrCat("expected at most ", options_.max_body_bytes, " bytes, got ", bytes)));
  return true;
}

// Takes values of headers, and refuses what gRPC would take for a fault of ours.
absl::Status RestServer::CheckHeaders(MHD_Connection* connection, Exchange& exchange) const {
  for (const auto& [name, value] :
       {std::pair{MHD_HTTP_HEADER_AUTHORIZATION, &exchange.authorization},
        std::pair{"traceparent", &exchange.traceparent}}) {
    *value = HeaderOf(connection, name);
    if (!IsPlain(*value)) return InvalidArgument(name, ": expected printable ASCII");
  }
  // A proxy's name for the request decides nothing.
  exchange.request_id = HeaderOf(connection, "x-request-id");
  if (!IsPlain(exchange.request_id)) exchange.request_id.clear();
  DEEPPCR_ASSIGN_OR_RETURN(exchange.json_bytes, BytesIn(connection, kJsonLength));
  return absl::OkStatus();
}

// Counts bytes of a body, and of what is made of it, as they come: what is only announced takes no
// memory. The budget is one of this server: that of the calls themselves is theirs.
absl::Status RestServer::Hold(int64_t bytes, Exchange& exchange) {
  const int64_t all = std::max<int64_t>(bytes, 0) * kBytesPerBodyByte;
  if (all <= exchange.held_bytes) return absl::OkStatus();
  const int64_t more = all - exchange.held_bytes;
  const int64_t others = held_bytes_.fetch_add(more) - exchange.held_bytes;
  exchange.held_bytes += more;
  if (others == 0 || others + all <= options_.max_held_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(StrCat("requests over HTTP hold ", others,
                                             " bytes; this one needs ", all, ", the limit is ",
                                             options_.max_held_bytes));
}

bool RestServer::Receive(std::string_view data, Exchange& exchange) {
  const auto bytes = static_cast<int64_t>(exchange.body.size() + data.size());
  const std::chrono::duration<double> spent = Clock::now() - exchange.begun;
  const double patience = options_.body_seconds + static_cast<double>(bytes) / kBytesPerSecond;
  // There is no reply in the middle of a body: the connection ends.
  if (spent.count() > patience || bytes > options_.max_body_bytes) return false;
  if (absl::Status held = Hold(bytes, exchange); !held.ok()) {
    // The rest of the body is passed over, and the reply says why.
    exchange.reply = [held] { return ErrorReply(held); };
    exchange.body = std::string();
    exchange.is_over = true;
  }
  if (!exchange.is_over) exchange.body += data;
  return true;
}

bool RestServer::Answer(MHD_Connection* connection, Exchange& exchange) {
  HttpReply reply = exchange.reply();
  const auto reply_bytes = static_cast<int64_t>(reply.body.bytes.size());
  if (absl::Status held = Hold(reply_bytes / kBytesPerBodyByte, exchange); !held.ok())
    reply = ErrorReply(held);
  exchange.reply = nullptr;  // and with it the messages
  exchange.sent = std::move(reply.body.bytes);
  MHD_Response* const response = MHD_create_response_from_buffer(
      exchange.sent.size(), exchange.sent.data(), MHD_RESPMEM_PERSISTENT);
  if (response == nullptr) return false;
  const bool binary = reply.body.json_bytes.has_value();
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, binary ? kBinary : kJson);
  if (binary)
    MHD_add_response_header(response, kJsonLength, StrCat(*reply.body.json_bytes).c_str());
  for (const auto& [name, value] : reply.headers)
    MHD_add_response_header(response, name.c_str(), value.c_str());
  const MHD_Result queued = MHD_queue_response(connection, reply.code, response);
  MHD_destroy_response(response);
  return queued == MHD_YES;
}

// Sends the message to the server of this process. The connection rests until the reply is there;
// then `encode` makes it, of the message, on one of this server's threads.
template <typename Request, typename Reply, typename Method, typename Encode>
absl::Status RestServer::Send(Exchange& exchange, Method method, Request request, Encode encode) {
  struct Messages {
    grpc::ClientContext rpc;
    Request request;
    Reply reply;
  };
  const auto messages = std::make_shared<Messages>();
  messages->request = std::move(request);
  for (const auto& [name, value] :
       {std::pair{"authorization", &exchange.authorization},
        std::pair{"traceparent", &exchange.traceparent},
        std::pair{"x-request-id", &exchange.request_id}, std::pair{kHttpPeer, &exchange.peer}})
    if (!value->empty()) messages->rpc.AddMetadata(name, *value);
  {
    const std::lock_guard lock(mutex_);
    if (leaving_) return absl::UnavailableError("the server is shutting down");
    ++calls_;
  }
  // The call may end, and wake the connection up, before this function returns.
  MHD_suspend_connection(exchange.connection);
  Exchange* const waiting = &exchange;
  (stub_.async()->*method)(&messages->rpc, &messages->request, &messages->reply,
                           [this, waiting, messages, encode](const grpc::Status& status) {
                             waiting->reply = [messages, status, encode] {
                               return status.ok() ? encode(messages->request, messages->reply)
                                                  : ErrorReply(status, messages->rpc);
                             };
                             MHD_resume_connection(waiting->connection);
                             const std::lock_guard lock(mutex_);
                             if (--calls_ == 0) ended_.notify_all();
                           });
  return absl::OkStatus();
}

absl::Status RestServer::Infer(Exchange& exchange) {
  DEEPPCR_ASSIGN_OR_RETURN(RestInfer infer, DecodeRestInfer(exchange.body, exchange.json_bytes));
  exchange.body = std::string();
  infer.request.set_model_name(exchange.route.model);
  infer.request.set_model_version(exchange.route.version);
  // The reply's form follows from the names, not from the tensors.
  RestInfer asked = {.binary = infer.binary, .binary_by_default = infer.binary_by_default};
  *asked.request.mutable_outputs() = infer.request.outputs();
  return Send<inference::ModelInferRequest, inference::ModelInferResponse>(
      exchange,
      static_cast<void (V2::StubInterface::async_interface::*)(
          grpc::ClientContext*, const inference::ModelInferRequest*, inference::ModelInferResponse*,
          std::function<void(grpc::Status)>)>(&V2::StubInterface::async_interface::ModelInfer),
      std::move(infer.request), [asked](const auto&, const auto& reply) {
        return HttpReply{.body = EncodeRestInfer(reply, asked)};
      });
}

// The names of the parameters go to the method itself, which refuses those that it does not take.
template <typename Request>
absl::StatusOr<Request> RestServer::AdminRequest(const Exchange& exchange) {
  Request request;
  request.set_model_name(exchange.route.model);
  DEEPPCR_ASSIGN_OR_RETURN(const auto body, BodyOf(exchange.body, "parameters"));
  if (!body.contains("parameters")) return request;
  if (!body["parameters"].is_object()) return InvalidArgument("parameters: expected an object");
  for (const auto& [name, value] : body["parameters"].items())
    (*request.mutable_parameters())[name].set_string_param(value.dump());
  return request;
}

absl::Status RestServer::Call(Exchange& exchange) {
  using Async = V2::StubInterface::async_interface;
  const Route& route = exchange.route;
  const auto send = [&]<typename Request, typename Reply>(
                        void (Async::*method)(grpc::ClientContext*, const Request*, Reply*,
                                              std::function<void(grpc::Status)>),
                        Request request, auto encode) {
    return Send<Request, Reply>(exchange, method, std::move(request), encode);
  };
  const auto as_json = [](const auto&, const auto& reply) {
    return HttpReply{.body = JsonBody(MessageToJson(reply))};
  };
  const auto named = [&](auto request) {
    request.set_name(route.model);
    request.set_version(route.version);
    return request;
  };
  switch (route.method) {
    case RestMethod::kServerMetadata:
      return send(&Async::ServerMetadata, inference::ServerMetadataRequest(), as_json);
    case RestMethod::kLive:
      return send(&Async::ServerLive, inference::ServerLiveRequest(),
                  [](const auto&, const auto& reply) { return YesOrNo("live", reply.live()); });
    case RestMethod::kReady:
      return send(&Async::ServerReady, inference::ServerReadyRequest(),
                  [](const auto&, const auto& reply) { return YesOrNo("ready", reply.ready()); });
    case RestMethod::kModelReady:
      return send(&Async::ModelReady, named(inference::ModelReadyRequest()),
                  [](const auto&, const auto& reply) { return YesOrNo("ready", reply.ready()); });
    case RestMethod::kMetadata:
      return send(&Async::ModelMetadata, named(inference::ModelMetadataRequest()), as_json);
    case RestMethod::kConfig:
      return send(&Async::ModelConfig, named(inference::ModelConfigRequest()),
                  [](const auto&, const auto& reply) {
                    return HttpReply{.body = JsonBody(MessageToJson(reply.config()))};
                  });
    case RestMethod::kStatistics:
      return send(&Async::ModelStatistics, named(inference::ModelStatisticsRequest()), as_json);
    case RestMethod::kIndex: {
      inference::RepositoryIndexRequest request;
      DEEPPCR_ASSIGN_OR_RETURN(const auto body, BodyOf(exchange.body, "ready"));
      if (body.contains("ready")) {
        DEEPPCR_ASSIGN_OR_RETURN(const bool ready, JsonBool(body["ready"], "ready"));
        request.set_ready(ready);
      }
      return send(&Async::RepositoryIndex, std::move(request), [](const auto&, const auto& reply) {
        return HttpReply{.body = JsonBody(MessageToJson(reply)["models"])};
      });
    }
    case RestMethod::kLoad: {
      DEEPPCR_ASSIGN_OR_RETURN(auto request,
                               AdminRequest<inference::RepositoryModelLoadRequest>(exchange));
      return send(&Async::RepositoryModelLoad, std::move(request), as_json);
    }
    case RestMethod::kUnload: {
      DEEPPCR_ASSIGN_OR_RETURN(auto request,
                               AdminRequest<inference::RepositoryModelUnloadRequest>(exchange));
      return send(&Async::RepositoryModelUnload, std::move(request), as_json);
    }
    case RestMethod::kInfer:
      return Infer(exchange);
  }
  return absl::InternalError("no such route");
}

}  // namespace deeppcr
