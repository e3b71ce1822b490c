// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_RESPONDER_H_
#define DEEPPCR_SERVER_RPC_RESPONDER_H_

// Answers of calls that came through the queue: one kind for calls with one reply, two for calls
// that stream. A call holds its responder, which tells it of events and never outlives it.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "grpcpp/grpcpp.h"
#include "server/rpc/call_queue.h"

namespace deeppcr {

// Events that a responder reports to its call.
class CallEvents {
 public:
  virtual void OnCancelled() = 0;
  // The reply's turn has come, where replies wait for one another: from now on only its client is
  // waited for.
  virtual void OnTurn(int64_t /*bytes*/) {}
  // gRPC is rid of the call; its responder may be deleted.
  virtual void OnDone() = 0;

 protected:
  ~CallEvents() = default;
};

class Responder {
 public:
  virtual ~Responder() = default;
  // Answers the call: exactly once, from any thread. `reply` counts if the status is OK. The call
  // may be gone afterwards. (Buffers are swapped: gRPC's have no move, and copies allocate.)
  virtual void Respond(const grpc::Status& status, grpc::ByteBuffer&& reply) = 0;
  // True if replies wait for one another; then OnTurn tells the call of its turn.
  virtual bool in_turns() const { return false; }
  // Bytes that go out before the reply.
  virtual int64_t bytes_before_reply() const { return 0; }
  // Sets the request's id, where the reply of an error has one.
  virtual void SetId(const std::string& /*id*/) {}
};

class UnaryResponder final : public Responder, QueuedEvents {
 public:
  UnaryResponder(CallEvents& events, UnaryCallOfQueue* call) : events_(events), call_(*call) {
    call_.ReportTo(this);
  }

  void Respond(const grpc::Status& status, grpc::ByteBuffer&& reply) override {
    if (status.ok()) return call_.FinishWith(reply);
    call_.Finish(status);
  }

 private:
  void OnCancel() override { events_.OnCancelled(); }
  void OnDone() override { events_.OnDone(); }

  CallEvents& events_;
  UnaryCallOfQueue& call_;
};

// Sends progress messages as fast as the client reads them, and no faster: a message that has not
// been sent when the next one comes is replaced by it. The reply is the last message.
class StreamResponder final : public Responder, QueuedEvents {
 public:
  StreamResponder(CallEvents& events, StreamOfQueue* call) : events_(events), call_(*call) {
    call_.ReportTo(this);
  }

  // False while a message is on its way: another one would only replace the one that waits.
  bool idle() {
    const std::lock_guard lock(mutex_);
    return !writing_;
  }
  // Sends a message and never blocks. Called from any thread, also after Respond (without effect).
  void Progress(grpc::ByteBuffer&& message);
  void Respond(const grpc::Status& status, grpc::ByteBuffer&& reply) override;

 private:
  void OnWriteDone(bool ok) override;
  void OnCancel() override { events_.OnCancelled(); }
  void OnDone() override { events_.OnDone(); }

  enum class Next { kNothing, kWrite, kReply, kError };
  // Takes the next thing for gRPC, if any; then it counts as given. The caller holds the lock.
  Next Take();
  // Gives gRPC what Take returned. The caller does not hold the lock: the call may end, and take
  // this object with it, before gRPC's function returns.
  void Give(Next next);

  CallEvents& events_;
  StreamOfQueue& call_;
  std::mutex mutex_;
  bool writing_ = false;
  grpc::ByteBuffer waiting_;  // the newest progress that has not been sent, or invalid
  bool responded_ = false, ended_ = false;
  grpc::Status status_;
  grpc::ByteBuffer reply_;
  grpc::ByteBuffer sent_;  // the message that gRPC is writing
};

// Messages that a call has ready when it answers, in memory that is the call's, until it ends.
class MessageSource {
 public:
  virtual ~MessageSource() = default;
  // Makes the next message; false if there is none. Small: a thread of the queue calls it.
  virtual bool Next(grpc::ByteBuffer* message) = 0;
  virtual int64_t bytes() const = 0;  // of all messages, about
};

// Sends the messages of a source, one as soon as the one before is on its way, and the reply as the
// last message.
class PieceResponder final : public Responder, QueuedEvents {
 public:
  PieceResponder(CallEvents& events, StreamOfQueue* call) : events_(events), call_(*call) {
    call_.ReportTo(this);
  }

  // Set before Respond, if at all.
  void set_source(std::unique_ptr<MessageSource> source) { source_ = std::move(source); }
  int64_t bytes_before_reply() const override { return source_ == nullptr ? 0 : source_->bytes(); }
  void Respond(const grpc::Status& status, grpc::ByteBuffer&& reply) override;

 private:
  void OnWriteDone(bool ok) override;
  void OnCancel() override { events_.OnCancelled(); }
  void OnDone() override { events_.OnDone(); }
  void WriteNext();

  CallEvents& events_;
  StreamOfQueue& call_;
  // From Respond on touched by one thread at a time: writes follow one another.
  std::unique_ptr<MessageSource> source_;
  grpc::ByteBuffer reply_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_RESPONDER_H_
