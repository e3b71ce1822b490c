// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/v2/stream.h"

#include <algorithm>
#include <utility>

#include "inference/grpc_service.pb.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/shown.h"
#include "server/rpc/solve_call.h"
#include "server/rpc/v2/infer_method.h"

namespace deeppcr {
namespace {

// What gRPC and this class hold of an open stream.
constexpr int64_t kBytesOfAStream = int64_t{20} << 10;
constexpr int64_t kLeastStreams = 64;

}  // namespace

void V2StreamResponder::Respond(const grpc::Status& status, grpc::ByteBuffer&& reply) {
  if (!status.ok()) {
    inference::ModelStreamInferResponse error;
    error.set_error_message(
        StrCat(StatusCodeName(static_cast<absl::StatusCode>(status.error_code())), ": ",
               status.error_message()));
    error.mutable_infer_response()->set_id(id_);
    grpc::ByteBuffer bytes = Serialize(error);
    reply.Swap(&bytes);
  }
  stream_.Answer(this, std::move(reply));
}

V2Stream::V2Stream(ServiceContext& context, DuplexOfQueue* call) : context_(context), call_(*call) {
  call_.ReportTo(this);
  context_.streams.fetch_add(1);
  // gRPC makes the map of the metadata when it is first asked for, without a lock; the calls of the
  // stream ask on any thread.
  call_.rpc()->client_metadata();
}

void V2Stream::Start() {
  if (const absl::Status status = Admit(); !status.ok()) {
    context_.metrics.CountRequest("", Method::kModelStreamInfer, status.raw_code());
    finished_ = ended_ = true;
    return call_.Finish(ToGrpcStatus(status));
  }
  reading_ = true;
  call_.Read(&read_);
}

// A stream may stay open without a request, so it must be its caller's to open, and there are as
// many as a quarter of the memory for requests would hold. They take nothing of that: idle streams
// would keep requests out.
absl::Status V2Stream::Admit() {
  DEEPPCR_RETURN_IF_ERROR(CheckCaller(context_.authorizer, *call_.rpc(), Role::kInfer));
  const int64_t most = std::max(kLeastStreams, context_.batcher.max_bytes() / 4 / kBytesOfAStream);
  if (context_.streams.load() <= most) return absl::OkStatus();
  return absl::ResourceExhaustedError(StrCat("the server has ", most, " open streams already"));
}

void V2Stream::Open(V2StreamResponder* responder) {
  const std::lock_guard lock(mutex_);
  open_.push_back(responder);
}

void V2Stream::Answer(V2StreamResponder* responder, grpc::ByteBuffer&& reply) {
  Next next;
  {
    const std::lock_guard lock(mutex_);
    responder->answered_ = true;
    responder->reply_.Swap(&reply);
    next = Take();
  }
  Give(std::move(next));
}

void V2Stream::OnReadDone(bool ok) {
  if (ok) {
    auto* call = new SolveCall<StreamInferMethod>(context_, {call_.rpc(), &read_}, *this);
    Open(call->responder());
    call->Start();
  }
  Next next;
  {
    const std::lock_guard lock(mutex_);
    reading_ = false;
    if (!ok) ended_ = true;
    next = Take();
  }
  Give(std::move(next));
}

void V2Stream::OnWriteDone(bool ok) {
  Next next;
  {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) ended_ = broken_ = true;
    V2StreamResponder* const written = open_.front();
    open_.pop_front();
    ++releasing_;
    next = Take();
    next.done.push_back(written);
  }
  Give(std::move(next));
}

void V2Stream::OnCancel() {
  Next next;
  {
    const std::lock_guard lock(mutex_);
    ended_ = broken_ = true;
    // The lock is held so that no responder is gone; OnCancelled only sets a flag.
    for (V2StreamResponder* responder : open_) responder->call_.OnCancelled();
    next = Take();
  }
  Give(std::move(next));
}

V2Stream::Next V2Stream::Take() {
  Next next;
  while (!open_.empty() && open_.front()->answered_ && !writing_) {
    if (!broken_) {
      next.write = open_.front();
      written_.Clear();
      written_.Swap(&next.write->reply_);
      writing_ = true;
      break;
    }
    next.done.push_back(open_.front());
    open_.pop_front();
    ++releasing_;
  }
  next.read = !reading_ && !ended_ && open_.size() < kMostOpen;
  reading_ = reading_ || next.read;
  next.finish = ended_ && !reading_ && open_.empty() && releasing_ == 0 && !finished_;
  finished_ = finished_ || next.finish;
  return next;
}

void V2Stream::Give(Next next) {
  while (true) {
    if (next.read) {
      read_.Clear();
      call_.Read(&read_);
    }
    if (next.write != nullptr) {
      next.write->call_.OnTurn(static_cast<int64_t>(written_.Length()));
      call_.Write(written_);
    }
    if (next.finish) call_.Finish(grpc::Status::OK);
    if (next.done.empty()) return;
    // The stream outlives its requests' calls.
    for (V2StreamResponder* responder : next.done) responder->call_.OnDone();
    const std::lock_guard lock(mutex_);
    releasing_ -= next.done.size();
    next = Take();
  }
}

void V2Stream::OnDone() {
  ServiceContext& context = context_;
  delete this;
  context.streams.fetch_sub(1);
}

}  // namespace deeppcr
