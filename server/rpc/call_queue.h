// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_CALL_QUEUE_H_
#define DEEPPCR_SERVER_RPC_CALL_QUEUE_H_

// Calls with one reply that are to be short: threads of this server take them from a completion
// queue of gRPC, and hear there of their end. gRPC's reactors would have the end of each call told
// by one thread more, which takes as long as a tenth of a round trip. Calls without a whole message
// end in gRPC, as INTERNAL, and never come.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "grpcpp/support/async_unary_call.h"
#include "server/rpc/responder.h"

namespace deeppcr {

class QueuedCall;

// A method whose calls come through the queue.
struct QueuedMethod {
  using Writer = grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>;

  // Asks gRPC for one call more: the function Request... of a service.
  std::function<void(grpc::ServerContext*, grpc::ByteBuffer*, Writer*, grpc::CompletionQueue*,
                     grpc::ServerCompletionQueue*, void* tag)>
      request;
  // Begins to serve a call: makes a QueuedResponder, which answers it, now or from any thread.
  // Blocks no more than a reactor may.
  std::function<void(QueuedCall*)> start;
};

// The queue and its threads: one queue, so that no call waits for those of one connection while a
// thread has nothing to do. Thread-safe but for AddTo and Start.
class CallQueue {
 public:
  explicit CallQueue(int threads);
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

 private:
  friend class QueuedCall;

  void Await(const QueuedMethod& method);
  void Run();

  const int num_threads_;
  std::vector<QueuedMethod> methods_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;  // null before AddTo and after Stop
  std::vector<std::thread> threads_;
  std::atomic<int64_t> calls_{0};  // that are served or asked for
};

// One call, from the moment in which it is asked for until gRPC is rid of it. Deletes itself.
class QueuedCall {
 public:
  grpc::ServerContext* rpc() { return &rpc_; }
  const grpc::ByteBuffer* request() const { return &request_; }

 private:
  friend class CallQueue;
  friend class QueuedResponder;

  // What the queue tells of: `member` is called with gRPC's verdict on it.
  struct Event {
    QueuedCall* call;
    void (QueuedCall::*member)(bool ok);
  };

  QueuedCall(CallQueue& owner, const QueuedMethod& method);
  ~QueuedCall() = default;

  void Ask();
  void OnArrival(bool ok);
  void OnFinished(bool ok);
  void OnClosed(bool ok);
  void Bind(CallEvents* events);
  void TellCancelled();
  void Finish(const grpc::Status& status, const grpc::ByteBuffer& reply);
  void Release();

  CallQueue& owner_;
  const QueuedMethod& method_;
  grpc::ServerContext rpc_;
  grpc::ByteBuffer request_;
  QueuedMethod::Writer writer_{&rpc_};
  Event arrival_{this, &QueuedCall::OnArrival};
  Event finished_{this, &QueuedCall::OnFinished};
  Event closed_{this, &QueuedCall::OnClosed};
  // gRPC may tell of the cancellation on one thread while the call is made on another.
  std::atomic<CallEvents*> events_{nullptr};
  std::atomic<bool> cancelled_{false}, told_{false};
  std::atomic<int> awaited_{2};  // of OnFinished and OnClosed
};

// Answers a call of the queue.
class QueuedResponder final : public Responder {
 public:
  // From here on, events come.
  QueuedResponder(CallEvents& events, QueuedCall* call) : call_(*call) { call_.Bind(&events); }

  void Respond(const grpc::Status& status, grpc::ByteBuffer&& reply) override {
    call_.Finish(status, reply);
  }

 private:
  QueuedCall& call_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_CALL_QUEUE_H_
