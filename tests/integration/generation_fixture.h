// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_INTEGRATION_GENERATION_FIXTURE_H_
#define DEEPPCR_TESTS_INTEGRATION_GENERATION_FIXTURE_H_

// A server with three diffusion models, and requests for each of them.

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "nlohmann/json.hpp"
#include "tests/integration/service_fixture.h"
#include "tests/testing/diffusion_tensors.h"

namespace deeppcr {

// "ddpm" has a decoder, classes and two numbers of steps.
constexpr int64_t kState = 4;
constexpr int64_t kImage = 6;
constexpr int64_t kClasses = 3;
constexpr int64_t kSteps = 24, kFewSteps = 8;
// "ddim" is conditioned on a vector and has no decoder.
constexpr int64_t kConditioning = 5;
// "long" has a wide denoiser.
constexpr int64_t kLongSteps = 200;
constexpr int kMany = 1024;

inline ModelConfig DdpmConfig() {
  ModelConfig config;
  config.denoiser = DenoiserKind::kResidualMlp;
  config.state_dim = kState;
  config.output_dim = kImage;
  config.hidden_dim = 16;
  config.num_blocks = 2;
  config.time_embedding_dim = 8;
  config.num_inference_steps = {kSteps, kFewSteps};
  config.num_classes = kClasses;
  config.null_class = kClasses - 1;
  config.decoder_widths = {10};
  return config;
}

inline ModelConfig DdimConfig() {
  ModelConfig config;
  config.denoiser = DenoiserKind::kAdaLnMlp;
  config.state_dim = config.output_dim = 3;
  config.hidden_dim = 16;
  config.num_blocks = 1;
  config.time_embedding_dim = 8;
  config.num_inference_steps = {16};
  config.conditioning_dim = kConditioning;
  config.null_condition.assign(kConditioning, 0.0F);
  return config;
}

inline ModelConfig LongConfig() {
  ModelConfig config = DdimConfig();
  config.state_dim = config.output_dim = 16;
  config.hidden_dim = 64;
  config.num_blocks = 3;
  config.num_inference_steps = {kLongSteps};
  config.conditioning_dim = 0;
  config.max_batch_size = kMany;
  return config;
}

inline std::string ConfigJson(const ModelConfig& config) {
  nlohmann::json json = {
      {"model_type", "diffusion"},
      {"state_dim", config.state_dim},
      {"output_dim", config.output_dim},
      {"denoiser", config.denoiser == DenoiserKind::kResidualMlp ? "residual_mlp" : "adaln_mlp"},
      {"hidden_dim", config.hidden_dim},
      {"num_blocks", config.num_blocks},
      {"activation", "silu"},
      {"time_embedding_dim", config.time_embedding_dim},
      {"num_inference_steps", config.num_inference_steps},
      {"max_batch_size", config.max_batch_size}};
  if (config.num_classes > 0) json["num_classes"] = config.num_classes;
  if (config.conditioning_dim > 0) json["conditioning_dim"] = config.conditioning_dim;
  if (config.null_class.has_value()) json["null_class"] = *config.null_class;
  if (config.conditioning_dim > 0 && !config.null_condition.empty())
    json["null_condition"] = config.null_condition;
  if (!config.decoder_widths.empty()) json["decoder_widths"] = config.decoder_widths;
  return json.dump();
}

inline void WriteDiffusionModel(const std::string& directory, const ModelConfig& config,
                                const char* scheduler) {
  std::vector<testing::NamedTensor> tensors = testing::DiffusionTensors(config);
  for (testing::NamedTensor& tensor : tensors) {
    const auto columns = static_cast<double>(tensor.shape.back());
    const double scale = tensor.shape.size() == 2 ? 1 / std::sqrt(columns) : 0.2;
    for (float& value : tensor.values) value *= static_cast<float>(scale);
  }
  const absl::Status status = testing::WriteModel(directory, ConfigJson(config), tensors);
  ASSERT_TRUE(status.ok()) << status;
  std::ofstream(directory + "/scheduler_config.json")
      << nlohmann::json{{"_class_name", scheduler}, {"num_train_timesteps", 1000}}.dump();
}

// Writes a Diffusion-QL policy, a graph that torch.onnx.export wrote: Mish, and a state of
// kPolicyState, a time and an observation of kConditioning elements in one vector.
constexpr int64_t kPolicyState = 3;
inline void WritePolicy(const std::string& directory, int64_t state_dim, int64_t num_steps) {
  const std::filesystem::path folder = directory;
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(DEEPPCR_SOURCE_DIR "/tests/data/program/diffusion_ql.onnx",
                             folder / "denoiser.onnx");
  std::ofstream(folder / "config.json") << nlohmann::json{{"model_type", "diffusion"},
                                                          {"denoiser", "onnx"},
                                                          {"state_dim", state_dim},
                                                          {"output_dim", state_dim},
                                                          {"conditioning_dim", kConditioning},
                                                          {"num_inference_steps", num_steps}};
  std::ofstream(folder / "scheduler_config.json")
      << nlohmann::json{{"_class_name", "DDPMScheduler"}, {"num_train_timesteps", 100}};
}

inline grpc::Status Call(v1::DeepPcr::Stub& stub, const v1::GenerateRequest& request,
                         v1::GenerateResponse* response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  return stub.Generate(&context, request, response);
}

// A request for n samples of "ddpm", with its classes in turn.
inline v1::GenerateRequest DdpmRequest(int32_t n = 3, const std::string& solver = "newton") {
  v1::GenerateRequest request;
  request.set_model("ddpm");
  request.mutable_input()->set_num_samples(n);
  request.mutable_input()->set_seed(0x123456789ABCDEF0);
  request.mutable_input()->set_first_sample(5);
  for (int32_t i = 0; i < n; ++i) request.mutable_input()->add_class_labels(i % kClasses);
  request.mutable_options()->set_solver(solver);
  return request;
}

inline v1::GenerateRequest DdimRequest(int32_t n = 3, const std::string& solver = "newton") {
  v1::GenerateRequest request;
  request.set_model("ddim");
  request.mutable_input()->set_num_samples(n);
  std::vector<float> values;
  for (int64_t i = 0; i < n * kConditioning; ++i) {
    values.push_back(std::sin(static_cast<float>(i + 1)));
  }
  SetTensor({n, kConditioning}, values, request.mutable_input()->mutable_conditioning());
  request.mutable_options()->set_solver(solver);
  return request;
}

// The messages of one StreamGenerate.
struct Streamed {
  std::vector<v1::GenerateProgress> progress;
  std::vector<v1::GenerateResponse> results;
  bool result_was_last = false;
  grpc::Status status;
};
inline Streamed Stream(v1::DeepPcr::Stub& stub, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  Streamed streamed;
  const auto reader = stub.StreamGenerate(&context, request);
  for (v1::StreamGenerateResponse event; reader->Read(&event);) {
    streamed.result_was_last = event.has_result();
    if (event.has_progress()) streamed.progress.push_back(event.progress());
    if (event.has_result()) streamed.results.push_back(event.result());
  }
  streamed.status = reader->Finish();
  return streamed;
}

class GenerationFixture : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    repository_ = std::make_unique<testing::TemporaryDirectory>();
    plans_ = std::make_unique<testing::TemporaryDirectory>();
    WriteDiffusionModel(repository_->File("ddpm/1"), DdpmConfig(), "DDPMScheduler");
    WriteDiffusionModel(repository_->File("ddim/1"), DdimConfig(), "DDIMScheduler");
    WriteDiffusionModel(repository_->File("long/1"), LongConfig(), "DDIMScheduler");
    testing::WriteRandomModel(repository_->File("net/1"), {});
    server_ = StartServer({"--shadow_rate=0"});
  }
  static void TearDownTestSuite() {
    server_.reset();
    plans_.reset();
    repository_.reset();
  }

  // All servers of the suite share the plans that the first one measures.
  static std::unique_ptr<testing::ServerProcess> StartServer(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--plan_cache_dir=" + plans_->path(), "--workers=2", "--threads=1"});
    return testing::ServerProcess::Start(repository_->path(), flags);
  }

  void SetUp() override {
    ASSERT_NE(server_, nullptr);
    stub_ = Connect(server_->address());
  }

  // The sum of all series of a metric whose labels contain `labels`, or -1 if there are none: a
  // series appears when it is first used.
  static double Metric(const testing::ServerProcess& server, const std::string& name,
                       const std::vector<std::string>& labels) {
    std::istringstream lines(server.Get("/metrics"));
    double sum = 0;
    bool found = false;
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with(name + "{") && !line.starts_with(name + " ")) continue;
      bool matches = true;
      for (const std::string& label : labels) matches &= line.find(label) != std::string::npos;
      if (!matches) continue;
      found = true;
      sum += std::stod(line.substr(line.rfind(' ')));
    }
    return found ? sum : -1;
  }
  static bool WaitForMetric(const testing::ServerProcess& server, const std::string& name,
                            const std::vector<std::string>& labels, double value,
                            double seconds = 20) {
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(int64_t(1e3 * seconds));
    while (Metric(server, name, labels) != value) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }
  static bool WaitForInFlight(const testing::ServerProcess& server, const std::string& method,
                              double count, double seconds = 20) {
    return WaitForMetric(server, "deeppcr_requests_in_flight", {"method=\"" + method + "\""}, count,
                         seconds);
  }

  v1::GetModelResponse Describe(const std::string& model) {
    v1::GetModelRequest request;
    request.set_model(model);
    v1::GetModelResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub_->GetModel(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  void ExpectServing() {
    v1::GenerateResponse response;
    const grpc::Status status = Call(*stub_, DdpmRequest(2), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_THAT(response.samples().shape(), ::testing::ElementsAre(2, kImage));
  }

  static inline std::unique_ptr<testing::TemporaryDirectory> repository_, plans_;
  static inline std::unique_ptr<testing::ServerProcess> server_;
  std::unique_ptr<v1::DeepPcr::Stub> stub_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_TESTS_INTEGRATION_GENERATION_FIXTURE_H_
