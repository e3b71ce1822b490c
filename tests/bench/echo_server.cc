// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/echo_server.h"

#include <chrono>
#include <utility>

#include "grpcpp/grpcpp.h"

namespace deeppcr::bench {

class EchoServer::Call : public grpc::ServerUnaryReactor {
 public:
  virtual void Answer() = 0;
  void OnDone() final { delete this; }

 protected:
  ~Call() override = default;
};

template <typename Reply>
class EchoServer::ReplyCall final : public Call {
 public:
  ReplyCall(const Reply& reply, Reply& response) : reply_(reply), response_(response) {}

  void Answer() override {
    response_.CopyFrom(reply_);
    Finish(grpc::Status::OK);
  }

 private:
  const Reply& reply_;
  Reply& response_;
};

template <typename Reply>
grpc::ServerUnaryReactor* EchoServer::Answer(const Reply& reply, Reply* response) {
  auto* call = new ReplyCall<Reply>(reply, *response);
  Enqueue(call);
  return call;
}

grpc::ServerUnaryReactor* EchoServer::ForwardService::Forward(grpc::CallbackServerContext*,
                                                              const v1::ForwardRequest*,
                                                              v1::ForwardResponse* response) {
  return server_.Answer(server_.replies_.forward, response);
}

grpc::ServerUnaryReactor* EchoServer::InferService::ModelInfer(
    grpc::CallbackServerContext*, const inference::ModelInferRequest*,
    inference::ModelInferResponse* response) {
  return server_.Answer(server_.replies_.infer, response);
}

void EchoServer::Enqueue(Call* call) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(call);
  }
  wake_.notify_one();
}

void EchoServer::RunWorker() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Call* call = queue_.front();
    queue_.pop_front();
    lock.unlock();
    call->Answer();
    lock.lock();
  }
}

absl::StatusOr<std::unique_ptr<EchoServer>> EchoServer::Start(const std::string& address,
                                                              Replies replies, int workers) {
  std::unique_ptr<EchoServer> server(new EchoServer(std::move(replies)));
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(64 << 20);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &server->port_);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.RegisterService(&server->forward_);
  builder.RegisterService(&server->infer_);
  server->grpc_ = builder.BuildAndStart();
  if (server->grpc_ == nullptr || server->port_ == 0) {
    return absl::UnavailableError("cannot listen on " + address);
  }
  for (int i = 0; i < workers; ++i) {
    server->workers_.emplace_back([raw = server.get()] { raw->RunWorker(); });
  }
  return server;
}

EchoServer::~EchoServer() {
  if (grpc_ != nullptr) {
    grpc_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

}  // namespace deeppcr::bench
