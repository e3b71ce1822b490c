// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_SERVER_RPC_QUEUE_SERVER_H_
#define DEEPPCR_TESTS_SERVER_RPC_QUEUE_SERVER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "server/rpc/call_queue.h"

namespace deeppcr {

// A gRPC server with one service, whose methods come through a queue.
class QueueServer {
 public:
  static constexpr int kMaxMessage = 2 << 20, kThreads = 3;

  struct Waiting {
    int leaders = 1;
    std::chrono::microseconds busy_poll{0};  // always, while requests come one by one
  };

  QueueServer(grpc::Service* service, std::vector<QueuedMethod> methods)
      : QueueServer(service, std::move(methods), Waiting()) {}
  QueueServer(grpc::Service* service, std::vector<QueuedMethod> methods, const Waiting& waiting)
      : queue_(std::make_unique<CallQueue>(CallQueue::Threads{.all = kThreads,
                                                              .leaders = waiting.leaders,
                                                              .busy_poll = waiting.busy_poll,
                                                              .always_poll = true},
                                           unanswered)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.SetMaxReceiveMessageSize(kMaxMessage);
    builder.RegisterService(service);
    queue_->AddTo(&builder);
    server_ = builder.BuildAndStart();
    queue_->Start(std::move(methods));
  }
  // A test that has failed may leave calls without an answer, for which the queue would wait.
  ~QueueServer() {
    Shutdown();
    if (!queue_->Stop(std::chrono::minutes(1))) std::abort();
  }

  std::atomic<int64_t> unanswered{0};  // kept by who answers

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  std::shared_ptr<grpc::Channel> InProcess() { return server_->InProcessChannel({}); }
  CallQueue& queue() { return *queue_; }
  void Shutdown() { server_->Shutdown(std::chrono::system_clock::now()); }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<CallQueue> queue_;  // goes before the server
};

}  // namespace deeppcr

#endif  // DEEPPCR_TESTS_SERVER_RPC_QUEUE_SERVER_H_
