// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/echo_server.h"

#include <chrono>

#include "grpcpp/grpcpp.h"

namespace deeppcr::bench {

class EchoServer::Call final : public grpc::ServerUnaryReactor {
 public:
  Call(const grpc::ByteBuffer& reply, grpc::ByteBuffer& response)
      : reply_(reply), response_(response) {}

  void Answer() {
    response_ = reply_;
    Finish(grpc::Status::OK);
  }

  void OnDone() override { delete this; }

 private:
  ~Call() override = default;

  const grpc::ByteBuffer& reply_;
  grpc::ByteBuffer& response_;
};

EchoServer::EchoServer(std::string_view reply)
    : reply_([&] {
        const grpc::Slice slice(reply.data(), reply.size());
        return grpc::ByteBuffer(&slice, 1);
      }()),
      forward_(*this),
      infer_(*this) {}

grpc::ServerUnaryReactor* EchoServer::Answer(grpc::ByteBuffer* response) {
  auto* call = new Call(reply_, *response);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(call);
  }
  wake_.notify_one();
  return call;
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
                                                              std::string_view reply, int workers) {
  std::unique_ptr<EchoServer> server(new EchoServer(reply));
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
