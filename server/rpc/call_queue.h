// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_CALL_QUEUE_H_
#define DEEPPCR_SERVER_RPC_CALL_QUEUE_H_

// Calls of all methods come through one completion queue of gRPC, read by threads of this server.
// gRPC's reactors would do the same, but have the end of each call told by one thread more, and
// every event wake one that waits for the next: half of a round trip. Calls that lack their one
// message end in gRPC, as INTERNAL, and never come.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "grpcpp/support/async_stream.h"
#include "grpcpp/support/async_unary_call.h"
#include "server/rpc/poll_policy.h"

namespace deeppcr {

class CallQueue;

// What a call hears of. Its cancellation and its end are told after its handler has returned.
class QueuedEvents {
 public:
  // What was read is there; false: no message will come any more.
  virtual void OnReadDone(bool /*ok*/) {}
  // The message is on its way; false: the stream is broken.
  virtual void OnWriteDone(bool /*ok*/) {}
  // The client is gone, or has given up. At most once, perhaps beside another event.
  virtual void OnCancel() = 0;
  // Last, after Finish: gRPC is rid of the call, whose object is gone after it.
  virtual void OnDone() = 0;

 protected:
  ~QueuedEvents() = default;
};

// A method whose calls come through the queue: asks for one call more.
using QueuedMethod = std::function<void(CallQueue&)>;

// The queue and its threads. A few of them lead: they wait for events, and do themselves what is
// soon done, since to wake another thread takes longer. A leader lets another thread lead before it
// does what may take long, and where events seem to wait. gRPC's own work for a connection (reads,
// TLS, what a write left) is done by whoever waits in it, and no other leads meanwhile. One queue
// for all calls, so that none waits for those of one connection while a thread has nothing to do.
// Thread-safe but for AddTo and Start.
class CallQueue {
 public:
  struct Threads {
    int all = 1;      // at least 1
    int leaders = 1;  // of these, at most so many wait for events at a time
    // While requests come one by one, a lone leader looks for the next one for so long before it
    // sleeps: waking takes as long as many a solve. Always, or only as long as that brings requests
    // sooner.
    std::chrono::microseconds busy_poll{0};
    bool always_poll = false;
  };

  // unanswered: requests that have come and have no answer yet, those within streams included;
  // outlives the queue.
  CallQueue(const Threads& threads, const std::atomic<int64_t>& unanswered);
  // Stops, without a limit of time. gRPC's server must have shut down, or never have started.
  ~CallQueue();

  // Adds the queue to a server that is to be built. Called once, before Start.
  void AddTo(grpc::ServerBuilder* builder);
  // Begins to take calls of these methods, once the server has started. Called once.
  void Start(std::vector<QueuedMethod> methods);
  // Ends the threads, once gRPC's server has shut down, and while it is still there: the requests
  // for calls that never came speak of it. False, and nothing is done, where calls are still not
  // answered after that time.
  bool Stop(std::chrono::milliseconds patience);

  // gRPC's part of it.
  grpc::ServerCompletionQueue* queue() { return queue_.get(); }

 private:
  friend class AnyQueuedCall;

  void Run();
  bool Next(void** tag, bool* ok);
  bool AllAnswered() const { return unanswered_.load() + beginning_.load() == 0; }
  bool Lead();
  void Follow();

  const int num_threads_;
  const std::chrono::microseconds busy_poll_;
  std::vector<QueuedMethod> methods_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;  // null before AddTo and after Stop
  std::vector<std::thread> threads_;
  std::atomic<int64_t> calls_{0};  // that are served or asked for
  const std::atomic<int64_t>& unanswered_;
  std::atomic<int> beginning_{0};  // requests whose handlers may yet raise it
  // Touched by a lone leader.
  PollPolicy polls_;
  std::chrono::steady_clock::time_point last_request_;
  std::mutex mutex_;
  std::condition_variable free_;
  int free_places_;  // of leaders
};

// One call of any kind, from the moment in which it is asked for until gRPC is rid of it. Deletes
// itself.
class AnyQueuedCall {
 public:
  grpc::ServerContext* rpc() { return &rpc_; }
  // The one message of the client; of no use where it sends a stream of them.
  const grpc::ByteBuffer* request() const { return &request_; }

  // Names who hears of the events. Called by the handler, at most once; a call without needs none.
  void ReportTo(QueuedEvents* events) { events_ = events; }
  // Lets another thread take the next events while this one works on. Called where an event takes
  // longer than a thread needs to wake.
  void MayTakeLong();

 protected:
  // What the queue tells of: `member` is called with gRPC's verdict on it.
  struct Event {
    AnyQueuedCall* call;
    void (AnyQueuedCall::*member)(bool ok);
  };

  explicit AnyQueuedCall(CallQueue& owner);
  virtual ~AnyQueuedCall() = default;

  // Has the next call of this method asked for, and calls the handler with this one.
  virtual void Begin() noexcept = 0;

  // Counts one event more that has to come before the call may go.
  void Await() { awaited_.fetch_add(1); }

  void OnArrival(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);
  void OnClosed(bool ok);

  CallQueue& owner_;
  grpc::ServerContext rpc_;
  grpc::ByteBuffer request_;
  const grpc::ByteBuffer* message_ = nullptr;  // that is being read
  Event arrival_{this, &AnyQueuedCall::OnArrival};
  Event read_{this, &AnyQueuedCall::OnRead};
  Event written_{this, &AnyQueuedCall::OnWritten};
  Event finished_{this, &AnyQueuedCall::OnFinished};
  Event closed_{this, &AnyQueuedCall::OnClosed};

 private:
  friend class CallQueue;

  void TellCancelled();
  void Release();
  void Forget();

  QueuedEvents* events_ = nullptr;
  // gRPC may tell of the cancellation on one thread while the handler runs on another.
  std::atomic<int> untold_{2};   // of OnClosed with a cancellation and the handler's end
  std::atomic<int> awaited_{3};  // the handler's end, OnFinished, OnClosed, reads and writes
};

// A call by the kind of its method: with one reply to one message, a stream of replies to it, or a
// stream of replies to a stream of messages. Thread-safe as far as gRPC is: one read and one write
// at a time, and nothing after Finish.
template <typename Writer>
class QueuedCall final : public AnyQueuedCall {
 public:
  static constexpr bool kReads = requires(Writer writer, grpc::ByteBuffer* message) {
    writer.Read(message, nullptr);
  };
  static constexpr bool kStreams = requires(Writer writer, const grpc::ByteBuffer& message) {
    writer.Write(message, nullptr);
  };

  // Asks gRPC for one call more: the function Request... of a service.
  using Ask = std::function<void(grpc::ServerContext*, grpc::ByteBuffer*, Writer*,
                                 grpc::CompletionQueue*, grpc::ServerCompletionQueue*, void* tag)>;
  // Begins to serve a call, which Finish ends, now or from any thread. Never blocks, as the threads
  // are few, and never throws, which would end the server.
  using Handler = std::function<void(QueuedCall*)>;
  struct Source {
    Ask ask;
    Handler handle;
  };

  // Asks for one call more; `source` is there until it has ended.
  static void AskFor(const Source& source, CallQueue& owner) {
    auto* const call = new QueuedCall(source, owner);
    source.ask(&call->rpc_, &call->request_, &call->writer_, owner.queue(), owner.queue(),
               &call->arrival_);
  }

  // The message has to stay until OnReadDone.
  void Read(grpc::ByteBuffer* message) requires kReads {
    Await();
    message_ = message;
    writer_.Read(message, &read_);
  }
  void Write(const grpc::ByteBuffer& message) requires kStreams {
    Await();
    writer_.Write(message, &written_);
  }
  // Ends the call with an error, or a stream of replies with any status. It may be gone afterwards.
  void Finish(const grpc::Status& status) {
    if constexpr (kStreams) {
      writer_.Finish(status, &finished_);
    } else {
      writer_.FinishWithError(status, &finished_);
    }
  }
  // Ends the call, as OK, with its one reply or the last one. It may be gone afterwards.
  void FinishWith(const grpc::ByteBuffer& reply) {
    if constexpr (kStreams) {
      writer_.WriteAndFinish(reply, grpc::WriteOptions(), grpc::Status::OK, &finished_);
    } else {
      writer_.Finish(reply, grpc::Status::OK, &finished_);
    }
  }

 private:
  QueuedCall(const Source& source, CallQueue& owner) : AnyQueuedCall(owner), source_(source) {}
  ~QueuedCall() override = default;

  void Begin() noexcept override {
    AskFor(source_, owner_);
    source_.handle(this);
  }

  const Source& source_;
  Writer writer_{&rpc_};
};

using UnaryCallOfQueue = QueuedCall<grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>>;
using StreamOfQueue = QueuedCall<grpc::ServerAsyncWriter<grpc::ByteBuffer>>;
using DuplexOfQueue = QueuedCall<grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>>;

template <typename Writer>
QueuedMethod Queued(typename QueuedCall<Writer>::Ask ask,
                    typename QueuedCall<Writer>::Handler handle) {
  using OfWriter = QueuedCall<Writer>;
  const std::shared_ptr<const typename OfWriter::Source> source(
      new typename OfWriter::Source{std::move(ask), std::move(handle)});
  return [source](CallQueue& queue) { OfWriter::AskFor(*source, queue); };
}

// The method of `service` whose calls its function `request` asks for. One for methods that take
// one message, one for those that take a stream of them.
template <typename Service, typename Base, typename Writer>
QueuedMethod Queued(Service* service,
                    void (Base::*request)(grpc::ServerContext*, grpc::ByteBuffer*, Writer*,
                                          grpc::CompletionQueue*, grpc::ServerCompletionQueue*,
                                          void*),
                    typename QueuedCall<Writer>::Handler handle) {
  return Queued<Writer>(std::bind_front(request, service), std::move(handle));
}
template <typename Service, typename Base, typename Writer>
QueuedMethod Queued(Service* service,
                    void (Base::*request)(grpc::ServerContext*, Writer*, grpc::CompletionQueue*,
                                          grpc::ServerCompletionQueue*, void*),
                    typename QueuedCall<Writer>::Handler handle) {
  const auto ask = [service, request](grpc::ServerContext* rpc, grpc::ByteBuffer*, Writer* writer,
                                      grpc::CompletionQueue* calls,
                                      grpc::ServerCompletionQueue* arrivals, void* tag) {
    (service->*request)(rpc, writer, calls, arrivals, tag);
  };
  return Queued<Writer>(ask, std::move(handle));
}

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_CALL_QUEUE_H_
