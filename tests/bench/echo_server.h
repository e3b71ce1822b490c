// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_BENCH_ECHO_SERVER_H_
#define DEEPPCR_TESTS_BENCH_ECHO_SERVER_H_

// The cost of a request without this project: the same gRPC, the same bytes, one hand-off to a
// worker thread and back, and nothing parsed or computed. The yardstick of the service's overhead.

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "deeppcr/v1/deeppcr.grpc.pb.h"
#include "grpcpp/server.h"
#include "inference/grpc_service.grpc.pb.h"

namespace deeppcr::bench {

// Answers Forward of deeppcr.v1.DeepPcr and ModelInfer of inference.GRPCInferenceService, always
// with the same bytes; every other method is UNIMPLEMENTED.
class EchoServer {
 public:
  static constexpr int kDefaultWorkers = 2;  // the number of the server, on few cores

  // Listens at `address`, host:port; port 0 takes a free one. Errors: kUnavailable if it cannot.
  static absl::StatusOr<std::unique_ptr<EchoServer>> Start(const std::string& address,
                                                           std::string_view reply,
                                                           int workers = kDefaultWorkers);
  ~EchoServer();

  int port() const { return port_; }

 private:
  class Call;
  using RawForward = v1::DeepPcr::WithRawCallbackMethod_Forward<v1::DeepPcr::Service>;
  class ForwardService final : public RawForward {
   public:
    explicit ForwardService(EchoServer& server) : server_(server) {}
    grpc::ServerUnaryReactor* Forward(grpc::CallbackServerContext*, const grpc::ByteBuffer*,
                                      grpc::ByteBuffer* response) override {
      return server_.Answer(response);
    }

   private:
    EchoServer& server_;
  };
  using V2 = inference::GRPCInferenceService;
  class InferService final : public V2::WithRawCallbackMethod_ModelInfer<V2::Service> {
   public:
    explicit InferService(EchoServer& server) : server_(server) {}
    grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext*, const grpc::ByteBuffer*,
                                         grpc::ByteBuffer* response) override {
      return server_.Answer(response);
    }

   private:
    EchoServer& server_;
  };

  explicit EchoServer(std::string_view reply);
  grpc::ServerUnaryReactor* Answer(grpc::ByteBuffer* response);
  void RunWorker();

  const grpc::ByteBuffer reply_;
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
