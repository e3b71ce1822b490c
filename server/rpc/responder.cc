// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/responder.h"

namespace deeppcr {

void StreamResponder::Progress(grpc::ByteBuffer&& message) {
  Next next = Next::kNothing;
  {
    const std::lock_guard lock(mutex_);
    if (responded_) return;
    waiting_.Swap(&message);
    next = Take();
  }
  Give(next);
}

void StreamResponder::Respond(const grpc::Status& status, grpc::ByteBuffer&& reply) {
  Next next = Next::kNothing;
  {
    const std::lock_guard lock(mutex_);
    responded_ = true;
    waiting_.Clear();
    status_ = status;
    reply_.Swap(&reply);
    next = Take();
  }
  // While a write is on its way another thread may have ended the call by now.
  if (next != Next::kNothing) Give(next);
}

void StreamResponder::OnWriteDone(bool ok) {
  Next next = Next::kNothing;
  {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) waiting_.Clear();  // the stream is broken; the call ends when it responds
    next = Take();
  }
  if (next != Next::kNothing) Give(next);
}

void PieceResponder::Respond(const grpc::Status& status, grpc::ByteBuffer&& reply) {
  if (!status.ok()) {
    ended_ = true;
    return Finish(status);
  }
  reply_.Swap(&reply);
  WriteNext();
}

void PieceResponder::OnWriteDone(bool ok) {
  if (ended_) return;
  if (ok) return WriteNext();
  ended_ = true;
  Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the stream is broken"));
}

// The call may end, and take this object with it, before gRPC's functions return.
void PieceResponder::WriteNext() {
  sent_.Clear();
  if (source_ != nullptr && source_->Next(&sent_)) return StartWrite(&sent_);
  ended_ = true;
  sent_.Swap(&reply_);
  StartWriteAndFinish(&sent_, grpc::WriteOptions(), grpc::Status::OK);
}

StreamResponder::Next StreamResponder::Take() {
  if (writing_ || ended_) return Next::kNothing;
  if (responded_) {
    ended_ = true;
    sent_.Swap(&reply_);
    return status_.ok() ? Next::kReply : Next::kError;
  }
  if (!waiting_.Valid()) return Next::kNothing;
  writing_ = true;
  sent_.Clear();
  sent_.Swap(&waiting_);
  return Next::kWrite;
}

void StreamResponder::Give(Next next) {
  if (next == Next::kWrite) StartWrite(&sent_);
  if (next == Next::kReply) StartWriteAndFinish(&sent_, grpc::WriteOptions(), status_);
  if (next == Next::kError) Finish(status_);
}

}  // namespace deeppcr
