// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/call.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "grpcpp/support/proto_buffer_reader.h"
#include "kernels/base/never_fits.h"
#include "kernels/base/strings.h"
#include "server/codec/wire.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/shown.h"

namespace deeppcr {
namespace {

using Clock = CancelToken::Clock;

// gRPC speaks of wall-clock time, which may jump; from here on only the time left counts. Takes the
// raw deadline: a chrono one overflows for a client that asks for centuries.
Clock::time_point SteadyDeadline(gpr_timespec deadline, Clock::time_point now) {
  const gpr_timespec left = gpr_time_sub(gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC),
                                         gpr_now(GPR_CLOCK_MONOTONIC));
  constexpr int64_t kYear = 365 * 24 * 3600;
  if (left.tv_sec > kYear) return Clock::time_point::max();
  const auto seconds = std::chrono::seconds(std::max<int64_t>(left.tv_sec, -kYear));
  return now + seconds + std::chrono::nanoseconds(left.tv_nsec);
}

// The memory that gRPC keeps for a call whose reply waits to be read.
constexpr int64_t kBytesOfACall = 4096;
constexpr int64_t kMaxSmallReplyBytes = int64_t{64} << 20;

// True for refusals that the operator should see, as opposed to mistakes of a client.
bool IsOurs(absl::StatusCode code) {
  return code == absl::StatusCode::kResourceExhausted || code == absl::StatusCode::kUnavailable ||
         code == absl::StatusCode::kInternal || code == absl::StatusCode::kUnknown;
}

}  // namespace

Call::Call(ServiceContext& context, Method method, const RawCall& call)
    : context_(context),
      rpc_(call.rpc),
      start_(Clock::now()),
      token_(SteadyDeadline(rpc_->raw_deadline(), start_), &context.stop),
      call_(call),
      method_(method) {
  context_.calls.fetch_add(1);
  context_.unanswered.fetch_add(1);
  context_.metrics.in_flight(method_).Increment();
  unread_.cancel = [this] { Drop(); };
}

void Call::OnDone() {
  ServiceContext& context = context_;
  context.replies.Remove(&unread_);
  ReportStages();
  if (held_bytes_ > 0) context.batcher.ReturnBytes(held_bytes_, client_.get());
  context.small_reply_bytes.fetch_sub(small_reply_bytes_);
  context.metrics.in_flight(method_).Decrement();
  delete this;
  // Last: once the count is 0 the server may go.
  context.calls.fetch_sub(1);
}

// The metadata `authorization`, where callers have to say who they are.
std::string_view Call::Header() const {
  // gRPC makes a map of the metadata for whoever asks for it.
  if (!context_.authorizer.enabled()) return {};
  return AuthorizationIn(rpc_->client_metadata());
}

void Call::LogAdministration(const absl::Status& status) const {
  context_.logger.LogAlways("administration",
                            {{"method", NameOf(method_)},
                             {"model", model_},
                             {"version", version_},
                             {"caller", DescribeCaller(context_.authorizer, *rpc_)},
                             {"peer", PeerOf(*rpc_)},
                             {"code", StatusCodeName(status.code())}});
}

absl::Status Call::Authorize() const { return CheckCaller(context_.authorizer, *rpc_, role_); }

std::string_view Call::MetadataOf(const char* name) const {
  const auto& metadata = rpc_->client_metadata();
  const auto found = metadata.find(name);
  if (found == metadata.end()) return {};
  return {found->second.data(), found->second.size()};
}

TraceParent Call::Trace() const { return ParseTraceParent(MetadataOf("traceparent")); }

std::string_view Call::RequestId() const {
  if (!request_id_.empty()) return request_id_;
  const std::string_view header = MetadataOf("x-request-id");
  return CheckRequestId("", header).ok() ? header : std::string_view();
}

void Call::NoteTrace(const absl::Status& status) {
  if (!context_.tracer.enabled()) return;
  if (absl::IsUnauthenticated(status)) return;  // unknown callers write no files
  const TraceParent trace = Trace();
  if (!context_.tracer.Sample(trace.sampled)) return;
  note_ =
      std::make_unique<TraceNote>(TraceNote{std::string(RequestId()), std::string(trace.trace_id),
                                            std::string(trace.parent_id), status.code()});
}

// The stages of the call; one that was not computed in a batch has all its time in the first.
Call::Stages Call::StagesUntil(Clock::time_point end) const {
  const bool computed = stages_ != nullptr && timings_.batch_samples > 0;
  const RunTimings& run = timings_.run;
  const double seconds[] = {timings_.queue_seconds, run.encode_seconds, run.solve_seconds,
                            run.decode_seconds, timings_.back_seconds + timings_.lent_seconds};
  Stages stages;
  Clock::time_point begin = start_, until = computed ? submitted_ : end;
  for (size_t i = 0; i < stages.size(); ++i) {
    stages[i] = {kStageNames[i], begin, until};
    begin = until;
    const bool last = !computed || i >= std::size(seconds);  // the next one lasts to the end
    const auto length = std::chrono::duration<double>(last ? 0 : seconds[i]);
    until = last ? end : std::min(end, begin + std::chrono::duration_cast<Clock::duration>(length));
  }
  return stages;
}

void Call::ReportStages() const {
  const bool computed = stages_ != nullptr && timings_.batch_samples > 0;
  if (!computed && note_ == nullptr) return;
  Stages stages = StagesUntil(Clock::now());
  for (size_t i = 0; computed && i < stages.size(); ++i) {
    if (i == kBackwardStage && !goes_back_) continue;
    ObserveFinite(*(*stages_)[i],
                  std::chrono::duration<double>(stages[i].end - stages[i].begin).count());
  }
  if (note_ == nullptr) return;
  size_t shown = computed ? stages.size() : 1;
  if (computed && !goes_back_) {
    std::move(stages.begin() + kBackwardStage + 1, stages.end(), stages.begin() + kBackwardStage);
    --shown;
  }
  context_.tracer.Write({.service = ServiceOf(method_),
                         .method = NameOf(method_),
                         .model = std::string_view(model_).substr(0, 128),
                         .solver = solver_,
                         .request_id = note_->request_id,
                         .trace_id = note_->trace_id,
                         .parent_id = note_->parent_id,
                         .code = note_->code,
                         .code_name = StatusCodeName(note_->code),
                         .version = version_,
                         .samples = num_samples_,
                         .batch_samples = timings_.batch_samples,
                         .stages = std::span(stages).first(shown)});
}

absl::Status Call::Parse(google::protobuf::Message* request) {
  if (context_.draining.load() && !answers_always_) {
    return absl::UnavailableError("the server is starting or shutting down");
  }
  const bool cancelled = token_.cancelled() && !answers_always_;
  if (cancelled || rpc_->IsCancelled()) return absl::CancelledError("cancelled");
  // The request is the handler's, though gRPC passes it as const; of no use once it is parsed.
  grpc::ByteBuffer bytes;
  bytes.Swap(const_cast<grpc::ByteBuffer*>(call_.request));
  {
    grpc::ProtoBufferReader reader(&bytes);
    DEEPPCR_ASSIGN_OR_RETURN(const int64_t unknown, CheckWire(&reader, *request->GetDescriptor()));
    parsed_bytes_ = static_cast<int64_t>(bytes.Length()) + unknown * kUnknownFieldBytes;
  }
  grpc::ProtoBufferReader reader(&bytes);
  if (request->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return InvalidArgument("request: expected a ", request->GetTypeName(),
                         ", got bytes that are not one");
}

grpc::ByteBuffer Serialize(const google::protobuf::Message& message) {
  const size_t size = message.ByteSizeLong();
  grpc::Slice slice(size);
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return {&slice, 1};
}

absl::Status Call::HoldBytes(int64_t bytes) {
  DEEPPCR_RETURN_IF_ERROR(context_.batcher.TakeBytes(bytes, client_.get()));
  held_bytes_ += bytes;
  return absl::OkStatus();
}

absl::Status Call::HoldSmallReply(const google::protobuf::Message& reply) {
  const int64_t bytes = static_cast<int64_t>(reply.ByteSizeLong()) + kBytesOfACall;
  const int64_t before = context_.small_reply_bytes.fetch_add(bytes);
  if (before == 0 || before + bytes <= kMaxSmallReplyBytes) {
    small_reply_bytes_ += bytes;
    return absl::OkStatus();
  }
  context_.small_reply_bytes.fetch_sub(bytes);
  return absl::ResourceExhaustedError(StrCat("replies that are on their way hold ", before,
                                             " bytes; the limit is ", kMaxSmallReplyBytes));
}

// Returns the status, but kUnavailable for a cancellation of ours: the client did not ask for it.
absl::Status Call::Attribute(const absl::Status& status) const {
  if (!absl::IsCancelled(status) || !context_.stop.cancelled()) return status;
  return absl::UnavailableError("the server is shutting down");
}

void Call::Refuse(const absl::Status& error) {
  const absl::Status attributed = Attribute(error);
  if (attributed.code() != absl::StatusCode::kInvalidArgument || model_.empty()) {
    return Complete(attributed);
  }
  std::string where = StrCat(" (model ", Quoted(model_));
  if (!request_id_.empty()) where += StrCat(", request ", Quoted(request_id_));
  Complete(absl::InvalidArgumentError(StrCat(attributed.message(), where, ")")));
}

// A stream of requests has trailers only once; there the error's message says how long the queue
// is.
void Call::SendDepth(int64_t depth, double predicted_wait) {
  if (responder_->in_turns()) return;
  rpc_->AddTrailingMetadata("deeppcr-queue-depth", StrCat(depth));
  rpc_->AddTrailingMetadata("deeppcr-predicted-wait-seconds", StrCat(predicted_wait));
}

// Tells clients whose retry policy covers kResourceExhausted not to try what never fits again: gRPC
// takes a pause below 0 for that.
void Call::SendNeverFits() {
  if (!responder_->in_turns()) rpc_->AddTrailingMetadata(std::string(kRetryPushback), "-1");
}

void Call::Complete(const absl::Status& status, const google::protobuf::Message* reply) {
  const bool replies = status.ok() && reply != nullptr;
  grpc::ByteBuffer bytes = replies ? Serialize(*reply) : grpc::ByteBuffer();
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  context_.metrics.CountRequest(model_, method_, status.raw_code(), model_metrics_.get());
  Observe(status, seconds);
  Log(status, seconds);
  NoteTrace(status);
  if (IsNeverFits(status)) SendNeverFits();
  FreeRequest();
  const grpc::Status answer = ToGrpcStatus(status);
  const int64_t length = bytes.Valid() ? static_cast<int64_t>(bytes.Length()) : 0;
  if (!responder_->in_turns()) OnTurn(length + (replies ? responder_->bytes_before_reply() : 0));
  context_.unanswered.fetch_sub(1);
  responder_->Respond(answer, std::move(bytes));
}

// Gives up a reply that its client does not read; it has been counted and logged as what it was.
void Call::Drop() const {
  context_.metrics.CountDroppedReply();
  context_.logger.LogLimited(LogLevel::kWarn, "reply_dropped",
                             {{"method", NameOf(method_)},
                              {"model", std::string_view(model_).substr(0, 128)},
                              {"peer", PeerOf(*rpc_)}});
  rpc_->TryCancel();
}

// Refusals take no time and would make an overloaded server look fast: they count in no durations.
void Call::Observe(const absl::Status& status, double seconds) const {
  if (statistics_ != nullptr && status.ok())
    statistics_->AddSuccess(num_samples_, seconds, timings_.queue_seconds, timings_.Inference());
  if (statistics_ != nullptr && !status.ok()) statistics_->AddFailure(seconds);
  if (series_ == nullptr || !timings_.queued) return;
  ObserveFinite(*series_->request_seconds, seconds);
  ObserveFinite(*series_->queue_seconds, timings_.queue_seconds);
  if (timings_.batch_samples > 0) {
    ObserveFinite(*series_->solve_seconds, timings_.Inference().wall_seconds);
  }
}

void Call::Log(const absl::Status& status, double seconds) const {
  Logger& logger = context_.logger;
  const std::string_view method = NameOf(method_);
  const std::string_view model = std::string_view(model_).substr(0, 128);
  if (!status.ok()) {
    logger.LogLimited(IsOurs(status.code()) ? LogLevel::kWarn : LogLevel::kInfo, "request_refused",
                      {{"method", method},
                       {"model", model},
                       {"version", version_},
                       {"request_id", RequestId()},
                       {"trace_id", Trace().trace_id},
                       {"client", client_ == nullptr ? std::string_view() : client_->name},
                       {"peer", PeerOf(*rpc_)},
                       {"code", StatusCodeName(status.code())},
                       {"message", ToStd(status.message())}});
  }
  const RequestLine line = context_.lines.Next(seconds);
  if (line == RequestLine::kNone && !logger.enabled(LogLevel::kDebug)) return;
  const std::string peer = PeerOf(*rpc_);
  const std::initializer_list<LogField> fields = {
      {"method", method},
      {"model", model},
      {"version", version_},
      {"request_id", RequestId()},
      {"trace_id", Trace().trace_id},
      {"client", client_ == nullptr ? std::string_view() : client_->name},
      {"peer", peer},
      {"code", StatusCodeName(status.code())},
      {"samples", num_samples_},
      {"solver", solver_},
      {"seconds", seconds},
      {"queue_seconds", timings_.queue_seconds},
      {"compute_seconds", timings_.Inference().wall_seconds},
      {"batch_samples", timings_.batch_samples}};
  if (line == RequestLine::kSlow) return logger.LogLimited(LogLevel::kWarn, "slow_request", fields);
  logger.Log(line == RequestLine::kAccess ? LogLevel::kInfo : LogLevel::kDebug, "request", fields);
}

}  // namespace deeppcr
