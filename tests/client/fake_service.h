// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_CLIENT_FAKE_SERVICE_H_
#define DEEPPCR_TESTS_CLIENT_FAKE_SERVICE_H_

// A DeepPCR service in this process, on a port of its own, with known answers.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "deeppcr/v1/deeppcr.grpc.pb.h"

namespace deeppcr {

inline constexpr int kFakeInputs = 3;
inline constexpr int kFakeOutputs = 2;
inline constexpr int kFakeLayers = 4;
inline constexpr int kFakeWidth = 3;
inline constexpr int kFakeMaxBatch = 5;
inline constexpr int kDrawPixels = 6;
inline constexpr int kDrawWidth = 2;
inline constexpr int kDrawSteps = 4;  // default; 2 is allowed too
inline constexpr int kDrawClasses = 10;

// A service with three models. "fake" is ready: its outputs are (x0 + x1, x2), its trajectory
// repeats x at every step, its labels are "low" and "high", and its sample reports say newton, 4
// iterations. "broken" failed to load. "draw" is a diffusion model of 2 x 3 images and ten classes:
// sample number g is a function of the seed, g, its class and the other inputs, and its final state
// is (g, seed). Gradients of "fake" by its inputs are those of its outputs, by its initial state
// (1, 2, 3) times the first cotangent; those of "draw" are the final state, and g for the noise of
// each step; a loss has the value 0.5 and cotangents of ones. Loading any other model is NOT_FOUND.
class FakeService final : public v1::DeepPcr::Service {
 public:
  // `port` 0 takes any free port.
  explicit FakeService(int port = 0);
  ~FakeService() override;

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int port() const { return port_; }

  // The number of calls that arrived, of every method.
  int calls() const { return calls_; }
  // Replaces the answer to Forward while set.
  std::function<grpc::Status(grpc::ServerContext*, const v1::ForwardRequest&, v1::ForwardResponse*)>
      on_forward;
  // Replaces the answer to Generate and StreamGenerate while set.
  std::function<grpc::Status(grpc::ServerContext*, const v1::GenerateRequest&,
                             v1::GenerateResponse*)>
      on_generate;
  // Changes the answer to Gradient while set, or replaces it by an error.
  std::function<grpc::Status(v1::GradientResponse*)> on_gradient;
  // Replaces what StreamGenerate writes while set.
  std::function<grpc::Status(grpc::ServerWriter<v1::StreamGenerateResponse>*)> on_stream;
  // Changes the answer of GetModel for "draw".
  std::function<void(v1::GetModelResponse*)> describe;
  // Changes the pieces of StreamGradient while set.
  std::function<void(std::vector<v1::ParameterPiece>*)> on_pieces;
  // Handles of trajectories ("kept-1", "kept-2", ...) that are known no more.
  std::set<std::string> gone;
  // Samples of "draw" that fall back, by number, with the reason.
  std::map<uint64_t, std::string> fallbacks;
  // Ends every text that the service sends, where a hostile server would put escapes.
  std::string suffix;
  // The plan file that GetModel returns on request.
  std::string plan_file =
      R"({"format":"f","devices":{"dev l1d=1K":[{"key":{"device":"dev"},"plan":1}]}})";
  // Makes every sample report a fallback.
  std::atomic<bool> report_fallback{false};
  std::vector<v1::ForwardRequest> forward_requests();
  std::vector<v1::GenerateRequest> generate_requests();
  std::vector<v1::GradientRequest> gradient_requests();
  v1::CompareRequest last_compare();
  // The number of StreamGenerate calls.
  int streams() const { return streams_; }

  grpc::Status Forward(grpc::ServerContext* context, const v1::ForwardRequest* request,
                       v1::ForwardResponse* reply) override;
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        v1::GenerateResponse* reply) override;
  grpc::Status StreamGenerate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                              grpc::ServerWriter<v1::StreamGenerateResponse>* writer) override;
  grpc::Status Compare(grpc::ServerContext* context, const v1::CompareRequest* request,
                       v1::CompareResponse* reply) override;
  grpc::Status Gradient(grpc::ServerContext* context, const v1::GradientRequest* request,
                        v1::GradientResponse* reply) override;
  grpc::Status StreamGradient(grpc::ServerContext* context, const v1::GradientRequest* request,
                              grpc::ServerWriter<v1::StreamGradientResponse>* writer) override;
  grpc::Status ListModels(grpc::ServerContext* context, const v1::ListModelsRequest* request,
                          v1::ListModelsResponse* reply) override;
  grpc::Status GetModel(grpc::ServerContext* context, const v1::GetModelRequest* request,
                        v1::GetModelResponse* reply) override;
  grpc::Status LoadModel(grpc::ServerContext* context, const v1::LoadModelRequest* request,
                         v1::LoadModelResponse* reply) override;
  grpc::Status UnloadModel(grpc::ServerContext* context, const v1::UnloadModelRequest* request,
                           v1::UnloadModelResponse* reply) override;

 private:
  std::string NewHandle();
  void Draw(const v1::GenerateRequest& request, v1::GenerateResponse* reply);

  std::mutex mutex_;
  std::vector<v1::ForwardRequest> forward_requests_;
  std::vector<v1::GenerateRequest> generate_requests_;
  std::vector<v1::GradientRequest> gradient_requests_;
  v1::CompareRequest last_compare_;
  int handles_ = 0;
  std::atomic<int> calls_{0};
  std::atomic<int> streams_{0};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_TESTS_CLIENT_FAKE_SERVICE_H_
