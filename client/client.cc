// SPDX-License-Identifier: Apache-2.0
#include "client/client.h"

#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/server_address.h"
#include "deeppcr/v1/deeppcr.grpc.pb.h"
#include "kernels/base/file.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

using Stub = v1::DeepPcr::Stub;
// A little more than the least that servers allow, --min_ping_interval_seconds.
constexpr int kKeepaliveMilliseconds = 310000;

using TimePoint = std::chrono::system_clock::time_point;

// On the wire, grpc.health.v1's HealthCheckRequest {string service = 1} and HealthCheckResponse
// {enum status = 1} equal these two well-known types, so the client needs no generated code for
// health checks.
using HealthRequest = google::protobuf::StringValue;
using HealthReply = google::protobuf::Int32Value;

constexpr char kTraceUrl[] = "deeppcr/trace_id";

absl::Status ToAbslStatus(const grpc::Status& status, const std::string& trace_id) {
  absl::Status error(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  error.SetPayload(kTraceUrl, absl::Cord(trace_id));
  return error;
}

// Random hex digits that are not all 0, which W3C takes for none.
std::string NewId(int digits) {
  thread_local absl::BitGen random;
  std::string id;
  for (; digits > 0; digits -= 8)
    absl::StrAppend(&id,
                    absl::Hex(absl::Uniform<uint32_t>(random, 1, UINT32_MAX), absl::kZeroPad8));
  return id;
}

// True for a token in the form that servers accept; other bytes would not fit gRPC metadata.
bool IsToken(absl::string_view token) {
  return token.size() >= 16 && token.size() <= 512 &&
         std::all_of(token.begin(), token.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  absl::string_view("._~+/=-").find(c) != absl::string_view::npos;
         });
}

absl::Status CheckSecurity(const ClientOptions& options, const ServerAddress& address) {
  if (address.is_socket && !options.tls_ca.empty())
    return InvalidArgument("tls_ca: expected none with a UNIX socket, which has no TLS, got ",
                           options.tls_ca);
  // gRPC would look for the whole list in every certificate.
  if (address.is_list && !options.tls_ca.empty())
    return InvalidArgument(
        "tls_ca: expected dns:///host:port in place of a list of servers, whose ",
        "certificates bear one name, got ", options.server);
  if (options.tls_ca.empty() && !(options.tls_cert.empty() && options.tls_key.empty()))
    return InvalidArgument("tls_cert, tls_key: expected tls_ca beside them, got none");
  if (options.tls_cert.empty() != options.tls_key.empty())
    return InvalidArgument("tls_cert and tls_key: expected both or none");
  if (!options.token.empty() && !IsToken(options.token))
    return InvalidArgument(
        "token: expected 16 to 512 letters, digits and ._~+/=-, got something else");
  if (options.tls_ca.empty() && !options.token.empty() && !address.is_loopback)
    return InvalidArgument("token: expected tls_ca beside it, since ", options.server,
                           " is another machine and the token would be sent in plain text");
  return absl::OkStatus();
}

absl::Status CheckOptions(const ClientOptions& options, const ServerAddress& address) {
  if (options.deadline <= absl::ZeroDuration()) {
    return InvalidArgument("deadline: expected a positive duration, got ",
                           absl::FormatDuration(options.deadline));
  }
  if (options.max_connect_attempts < 1) {
    return InvalidArgument("max_connect_attempts: expected at least 1, got ",
                           options.max_connect_attempts);
  }
  return CheckSecurity(options, address);
}

// The contents of a file; empty for an empty path.
absl::StatusOr<std::string> Contents(const std::string& path) {
  if (path.empty()) return std::string();
  return ReadFile(path, 1 << 20);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    const ClientOptions& options) {
  if (options.tls_ca.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions tls;
  for (const auto& [path, text] : {std::pair{&options.tls_ca, &tls.pem_root_certs},
                                   {&options.tls_cert, &tls.pem_cert_chain},
                                   {&options.tls_key, &tls.pem_private_key}}) {
    DEEPPCR_ASSIGN_OR_RETURN(*text, Contents(*path));
  }
  return grpc::SslCredentials(tls);
}

grpc::ChannelArguments MakeChannelArguments(const ClientOptions& options, bool is_fleet) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(options.max_reply_bytes);
  arguments.SetMaxSendMessageSize(-1);  // unlimited: the server checks its own limit
  // Reconnects soon: gRPC's default first pause of one second is long for a command.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // Despite its name, this is the time limit of one attempt.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt("deeppcr.connection_index", options.connection_index);
  // A connection that died in silence, as behind a NAT that forgot it, is noticed. Servers take
  // more frequent pings for an attack.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMilliseconds);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
  if (is_fleet) arguments.SetServiceConfigJSON(kFleetServiceConfig);
  return arguments;
}

TimePoint DeadlineFrom(absl::Duration deadline) {
  // Bounded by a day, since an infinite duration has no time point.
  const absl::Duration bounded = std::min(deadline, absl::Hours(24));
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<TimePoint::duration>(absl::ToChronoNanoseconds(bounded));
}

// A request that names nothing but a version of a model.
template <typename Request>
Request ModelRequest(const std::string& model, int64_t version) {
  Request request;
  request.set_model(model);
  request.set_version(version);
  return request;
}

// Reads progress messages up to the result, which must be the last message.
grpc::Status ReadGeneration(grpc::ClientContext* context,
                            grpc::ClientReaderInterface<v1::StreamGenerateResponse>* stream,
                            const std::function<void(const v1::GenerateProgress&)>& on_progress,
                            v1::GenerateResponse* result) {
  bool has_result = false;
  bool has_more = false;
  v1::StreamGenerateResponse message;
  while (stream->Read(&message)) {
    if (has_result) {
      has_more = true;
      context->TryCancel();
    } else if (message.has_result()) {
      has_result = true;
      *result = std::move(*message.mutable_result());
    } else if (message.has_progress()) {
      on_progress(message.progress());
    }
  }
  const grpc::Status status = stream->Finish();
  if (has_more) return {grpc::StatusCode::INTERNAL, "bad reply: messages after the result"};
  if (status.ok() && !has_result) {
    return {grpc::StatusCode::INTERNAL, "bad reply: the stream ended without a result"};
  }
  return status;
}

// Reads pieces up to the result, which must be the last message. *refused: the error of on_piece.
grpc::Status ReadPieces(grpc::ClientContext* context,
                        grpc::ClientReaderInterface<v1::StreamGradientResponse>* stream,
                        const std::function<absl::Status(const v1::ParameterPiece&)>& on_piece,
                        v1::GradientResponse* result, absl::Status* refused) {
  bool has_result = false, has_more = false;
  v1::StreamGradientResponse message;
  while (stream->Read(&message)) {
    if (has_result || !refused->ok()) {
      has_more = has_result;
      context->TryCancel();
    } else if (message.has_result()) {
      has_result = true;
      *result = std::move(*message.mutable_result());
    } else if (message.has_piece()) {
      *refused = on_piece(message.piece());
      if (!refused->ok()) context->TryCancel();
    }
  }
  const grpc::Status status = stream->Finish();
  if (has_more) return {grpc::StatusCode::INTERNAL, "bad reply: messages after the result"};
  if (status.ok() && !has_result)
    return {grpc::StatusCode::INTERNAL, "bad reply: the stream ended without a result"};
  return status;
}

}  // namespace

class Client::Impl {
 public:
  Impl(ClientOptions options, const ServerAddress& address,
       const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : options_(std::move(options)),
        channel_(grpc::CreateCustomChannel(address.target, credentials,
                                           MakeChannelArguments(options_, address.is_fleet))),
        stub_(v1::DeepPcr::NewStub(channel_)) {}

  const ClientOptions& options() const { return options_; }
  Stub& stub() { return *stub_; }

  grpc::Status CallHealth(grpc::ClientContext* context, const HealthRequest& request,
                          HealthReply* reply) {
    grpc::TemplatedGenericStub<HealthRequest, HealthReply> stub(channel_);
    grpc::CompletionQueue queue;
    const auto call =
        stub.PrepareUnaryCall(context, "/grpc.health.v1.Health/Check", request, &queue);
    call->StartCall();
    grpc::Status status;
    call->Finish(reply, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  }

  // Waits for a connection: the only place with retries. The channel reconnects by itself, but
  // stays in TRANSIENT_FAILURE meanwhile, so attempts are counted by pauses in that state.
  absl::Status Connect(TimePoint deadline) {
    int failures = 0;
    grpc_connectivity_state state = channel_->GetState(true);
    while (state != GRPC_CHANNEL_READY) {
      TimePoint patience = deadline;
      if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) {
        if (++failures >= options_.max_connect_attempts) break;
        const std::chrono::milliseconds pause(200 << std::min(failures - 1, 4));
        patience = std::min(deadline, std::chrono::system_clock::now() + pause);
      }
      channel_->WaitForStateChange(state, patience);
      state = channel_->GetState(true);
      if (state != GRPC_CHANNEL_READY && std::chrono::system_clock::now() >= deadline) break;
    }
    if (state == GRPC_CHANNEL_READY) return absl::OkStatus();
    if (failures == 0) {
      return absl::DeadlineExceededError(
          StrCat("no connection to ", options_.server, " within the deadline"));
    }
    return absl::UnavailableError(
        StrCat("cannot connect to ", options_.server, " (attempts: ", failures, ")"));
  }

  // Connects, then runs `method(&context, &reply)` once.
  template <typename Reply, typename Method>
  absl::StatusOr<Reply> Call(absl::Duration relative_deadline, const Method& method) {
    const TimePoint deadline = DeadlineFrom(
        relative_deadline == absl::ZeroDuration() ? options_.deadline : relative_deadline);
    DEEPPCR_RETURN_IF_ERROR(Connect(deadline));
    grpc::ClientContext context;
    context.set_deadline(deadline);
    if (!options_.token.empty()) context.AddMetadata("authorization", "Bearer " + options_.token);
    // Not marked as sampled: whether calls are traced is the server's choice.
    const std::string trace_id = NewId(32);
    context.AddMetadata("x-request-id", trace_id);
    context.AddMetadata("traceparent", StrCat("00-", trace_id, "-", NewId(16), "-00"));
    Reply reply;
    const grpc::Status status = method(&context, &reply);
    if (!status.ok()) return ToAbslStatus(status, trace_id);
    return reply;
  }

  // Call for a method of the stub that takes one request and gives one reply.
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Unary(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                           Reply*),
                              const Request& request, absl::Duration deadline) {
    return Call<Reply>(deadline, [&](grpc::ClientContext* context, Reply* reply) {
      return (*stub_.*method)(context, request, reply);
    });
  }

 private:
  const ClientOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<Stub> stub_;
};

std::string TraceIdOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kTraceUrl);
  return payload.has_value() ? std::string(*payload) : std::string();
}

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const ClientOptions& options) {
  DEEPPCR_ASSIGN_OR_RETURN(const ServerAddress address, ParseServerAddress(options.server));
  DEEPPCR_RETURN_IF_ERROR(CheckOptions(options, address));
  DEEPPCR_ASSIGN_OR_RETURN(const auto credentials, MakeCredentials(options));
  return std::unique_ptr<Client>(new Client(std::make_unique<Impl>(options, address, credentials)));
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

const std::string& Client::server() const { return impl_->options().server; }

absl::Status Client::Connect(absl::Duration deadline) const {
  return impl_->Connect(DeadlineFrom(deadline));
}

absl::StatusOr<v1::ForwardResponse> Client::Forward(const v1::ForwardRequest& request,
                                                    absl::Duration deadline) const {
  return impl_->Unary(&Stub::Forward, request, deadline);
}

absl::StatusOr<v1::GenerateResponse> Client::Generate(const v1::GenerateRequest& request,
                                                      absl::Duration deadline) const {
  return impl_->Unary(&Stub::Generate, request, deadline);
}

absl::StatusOr<v1::GenerateResponse> Client::StreamGenerate(
    const v1::GenerateRequest& request,
    const std::function<void(const v1::GenerateProgress&)>& on_progress,
    absl::Duration deadline) const {
  return impl_->Call<v1::GenerateResponse>(
      deadline, [&](grpc::ClientContext* context, v1::GenerateResponse* reply) {
        const auto stream = impl_->stub().StreamGenerate(context, request);
        return ReadGeneration(context, stream.get(), on_progress, reply);
      });
}

absl::StatusOr<v1::CompareResponse> Client::Compare(const v1::CompareRequest& request,
                                                    absl::Duration deadline) const {
  return impl_->Unary(&Stub::Compare, request, deadline);
}

absl::StatusOr<v1::GradientResponse> Client::Gradient(const v1::GradientRequest& request,
                                                      absl::Duration deadline) const {
  return impl_->Unary(&Stub::Gradient, request, deadline);
}

absl::StatusOr<v1::GradientResponse> Client::StreamGradient(
    const v1::GradientRequest& request,
    const std::function<absl::Status(const v1::ParameterPiece&)>& on_piece,
    absl::Duration deadline) const {
  absl::Status refused;
  absl::StatusOr<v1::GradientResponse> reply = impl_->Call<v1::GradientResponse>(
      deadline, [&](grpc::ClientContext* context, v1::GradientResponse* result) {
        const auto stream = impl_->stub().StreamGradient(context, request);
        return ReadPieces(context, stream.get(), on_piece, result, &refused);
      });
  if (!refused.ok()) return refused;
  return reply;
}

absl::StatusOr<v1::ListModelsResponse> Client::ListModels(absl::Duration deadline) const {
  return impl_->Unary(&Stub::ListModels, v1::ListModelsRequest(), deadline);
}

absl::StatusOr<v1::GetModelResponse> Client::GetModel(const std::string& model, int64_t version,
                                                      absl::Duration deadline) const {
  return impl_->Unary(&Stub::GetModel, ModelRequest<v1::GetModelRequest>(model, version), deadline);
}

absl::StatusOr<v1::GetModelResponse> Client::GetModelWithPlanFile(const std::string& model,
                                                                  int64_t version,
                                                                  absl::Duration deadline) const {
  auto request = ModelRequest<v1::GetModelRequest>(model, version);
  request.set_with_plan_file(true);
  return impl_->Unary(&Stub::GetModel, request, deadline);
}

absl::StatusOr<v1::LoadModelResponse> Client::LoadModel(const std::string& model, int64_t version,
                                                        absl::Duration deadline) const {
  return impl_->Unary(&Stub::LoadModel, ModelRequest<v1::LoadModelRequest>(model, version),
                      deadline);
}

absl::Status Client::UnloadModel(const std::string& model, int64_t version,
                                 absl::Duration deadline) const {
  return impl_
      ->Unary(&Stub::UnloadModel, ModelRequest<v1::UnloadModelRequest>(model, version), deadline)
      .status();
}

absl::StatusOr<Health> Client::CheckHealth(const std::string& service,
                                           absl::Duration deadline) const {
  HealthRequest request;
  request.set_value(service);
  DEEPPCR_ASSIGN_OR_RETURN(
      const HealthReply reply,
      impl_->Call<HealthReply>(deadline, [&](grpc::ClientContext* context, HealthReply* message) {
        return impl_->CallHealth(context, request, message);
      }));
  if (reply.value() == 1) return Health::kServing;
  if (reply.value() == 2) return Health::kNotServing;
  return Health::kUnknown;
}

}  // namespace deeppcr
