// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/responder.h"

#include <utility>

namespace deeppcr {

void StreamResponder::Progress(grpc::ByteBuffer message) {
  Next next = Next::kNothing;
  {
    const std::lock_guard lock(mutex_);
    if (responded_) return;
    waiting_ = std::move(message);
    next = Take();
  }
  Give(next);
}

void StreamResponder::Respond(const grpc::Status& status, grpc::ByteBuffer reply) {
  Next next = Next::kNothing;
  {
    const std::lock_guard lock(mutex_);
    responded_ = true;
    waiting_.reset();
    status_ = status;
    reply_ = std::move(reply);
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
    if (!ok) waiting_.reset();  // the stream is broken; the call ends when it responds
    next = Take();
  }
  if (next != Next::kNothing) Give(next);
}

StreamResponder::Next StreamResponder::Take() {
  if (writing_ || ended_) return Next::kNothing;
  if (responded_) {
    ended_ = true;
    sent_ = std::move(reply_);
    return status_.ok() ? Next::kReply : Next::kError;
  }
  if (!waiting_.has_value()) return Next::kNothing;
  writing_ = true;
  sent_ = *std::exchange(waiting_, std::nullopt);
  return Next::kWrite;
}

void StreamResponder::Give(Next next) {
  if (next == Next::kWrite) StartWrite(&sent_);
  if (next == Next::kReply) StartWriteAndFinish(&sent_, grpc::WriteOptions(), status_);
  if (next == Next::kError) Finish(status_);
}

}  // namespace deeppcr
