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
  if (!status.ok()) return call_.Finish(status);
  reply_.Swap(&reply);
  WriteNext();
}

void PieceResponder::OnWriteDone(bool ok) {
  if (!ok) return call_.Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the stream is broken"));
  call_.MayTakeLong();
  WriteNext();
}

// The call may end, and take this object with it, before gRPC's functions return.
void PieceResponder::WriteNext() {
  grpc::ByteBuffer piece;
  if (source_ != nullptr && source_->Next(&piece)) return call_.Write(piece);
  piece.Swap(&reply_);
  call_.FinishWith(piece);
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
  if (next == Next::kWrite) call_.Write(sent_);
  if (next == Next::kReply) call_.FinishWith(sent_);
  if (next == Next::kError) call_.Finish(status_);
}

}  // namespace deeppcr
