// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_BENCH_ECHO_SERVER_H_
#define DEEPPCR_TESTS_BENCH_ECHO_SERVER_H_

// What a request costs without us: the same gRPC, the same messages, one hand-off to a worker
// thread and back, a reply of as many bytes, and nothing computed. The yardstick of the service's
// overhead.

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "deeppcr/v1/deeppcr.grpc.pb.h"
#include "grpcpp/server.h"
#include "inference/grpc_service.grpc.pb.h"

namespace deeppcr::bench {

// Answers Forward of deeppcr.v1.DeepPcr and ModelInfer of inference.GRPCInferenceService with one
// and the same reply each; every other method is UNIMPLEMENTED.
class EchoServer {
 public:
  static constexpr int kDefaultWorkers = 2;  // the server's, on few cores

  struct Replies {
    v1::ForwardResponse forward;
    inference::ModelInferResponse infer;
  };

  // Listens at address, host:port, port 0 for a free one. Errors: kUnavailable if it cannot.
  static absl::StatusOr<std::unique_ptr<EchoServer>> Start(const std::string& address,
                                                           Replies replies,
                                                           int workers = kDefaultWorkers);
  ~EchoServer();

  int port() const { return port_; }

 private:
  class Call;
  template <typename Reply>
  class ReplyCall;
  class ForwardService final : public v1::DeepPcr::CallbackService {
   public:
    explicit ForwardService(EchoServer& server) : server_(server) {}
    grpc::ServerUnaryReactor* Forward(grpc::CallbackServerContext* rpc,
                                      const v1::ForwardRequest* request,
                                      v1::ForwardResponse* response) override;

   private:
    EchoServer& server_;
  };
  class InferService final : public inference::GRPCInferenceService::CallbackService {
   public:
    explicit InferService(EchoServer& server) : server_(server) {}
    grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext* rpc,
                                         const inference::ModelInferRequest* request,
                                         inference::ModelInferResponse* response) override;

   private:
    EchoServer& server_;
  };

  explicit EchoServer(Replies replies)
      : replies_(std::move(replies)), forward_(*this), infer_(*this) {}
  template <typename Reply>
  grpc::ServerUnaryReactor* Answer(const Reply& reply, Reply* response);
  void Enqueue(Call* call);
  void RunWorker();

  const Replies replies_;
  ForwardService forward_;
  InferService infer_;
  std::unique_ptr<grpc::Server> grpc_;
  int port_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Call*> queue_;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace deeppcr::bench

#endif  // DEEPPCR_TESTS_BENCH_ECHO_SERVER_H_
