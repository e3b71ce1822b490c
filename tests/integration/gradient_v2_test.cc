// SPDX-License-Identifier: Apache-2.0
// Gradients by the KServe v2 protocol.
#include <algorithm>
#include <cstring>
#include <filesystem>

#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/service_fixture.h"

namespace deeppcr {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kPixels = 64, kLatent = 16;  // of digits-ddpm

void AddTensor(const std::string& name, const std::vector<int64_t>& shape,
               const std::vector<float>& values, ModelInferRequest* request) {
  auto* input = request->add_inputs();
  input->set_name(name);
  input->set_datatype("FP32");
  input->mutable_shape()->Add(shape.begin(), shape.end());
  request->add_raw_input_contents(reinterpret_cast<const char*>(values.data()),
                                  values.size() * sizeof(float));
}

// Values that differ, around 0.
std::vector<float> Numbers(int64_t n) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < n; ++i) numbers.push_back(0.1f * static_cast<float>(i % 13) - 0.6f);
  return numbers;
}

class GradientV2Test : public ServiceTest {
 protected:
  static void SetUpTestSuite() {
    repository_ = std::make_unique<testing::TemporaryDirectory>();
    testing::WriteRandomModel(repository_->File("net/1"), {});
    std::filesystem::copy(DEEPPCR_SOURCE_DIR "/deploy/models/repository/digits-ddpm",
                          repository_->File("digits-ddpm"),
                          std::filesystem::copy_options::recursive);
    server_ = testing::ServerProcess::Start(repository_->path(), {"--gradients"});
  }
  void SetUp() override {
    ServiceTest::SetUp();
    v2_ = StubOf(server_->address());
  }
  static std::unique_ptr<inference::GRPCInferenceService::Stub> StubOf(const std::string& address) {
    return inference::GRPCInferenceService::NewStub(
        grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  }

  // A request for gradients of "net" by its inputs.
  static ModelInferRequest OfNet() {
    ModelInferRequest request;
    request.set_model_name("net");
    AddTensor("inputs", {2, kWidth}, Values(MakeRequest().inputs()), &request);
    AddTensor("cotangent_outputs", {2, 3, kOutputs}, Numbers(6 * kOutputs), &request);
    for (const char* name : {"grad_inputs", "outputs"}) request.add_outputs()->set_name(name);
    return request;
  }

  std::unique_ptr<inference::GRPCInferenceService::Stub> v2_;
};

TEST_F(GradientV2Test, HasTheBitsOfGradient) {
  v1::GradientRequest same;
  same.set_model("net");
  *same.mutable_inputs() = MakeRequest().inputs();
  SetTensor({2, 3, kOutputs}, Numbers(6 * kOutputs), same.mutable_cotangents());
  same.mutable_options()->set_solver("newton");
  same.set_way(v1::BACKWARD_WAY_PARALLEL);
  v1::GradientResponse expected;
  grpc::ClientContext other;
  ASSERT_TRUE(stub_->Gradient(&other, same, &expected).ok());
  ModelInferRequest request = OfNet();
  (*request.mutable_parameters())["solver"].set_string_param("newton");
  (*request.mutable_parameters())["way"].set_string_param("parallel");

  ModelInferResponse response;
  grpc::ClientContext context;
  const grpc::Status status = v2_->ModelInfer(&context, request, &response);

  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.outputs_size(), 2);
  EXPECT_EQ(response.outputs(0).name(), "grad_inputs");
  EXPECT_THAT(response.outputs(0).shape(), ElementsAre(2, 3, kWidth));
  EXPECT_EQ(response.raw_output_contents(0), expected.input_gradients().data());
  EXPECT_EQ(response.raw_output_contents(1), expected.outputs().data());
  const auto& parameters = response.parameters();
  EXPECT_EQ(parameters.at("solver").string_param(), "newton");
  EXPECT_EQ(parameters.at("way").string_param(), "parallel");
  EXPECT_EQ(parameters.at("way_interval").int64_param(), 6);
  EXPECT_EQ(parameters.at("way_termination").string_param(), "direct");
  EXPECT_EQ(parameters.at("way_stages").int64_param(),
            expected.backward().samples(0).dependent_stages());
  EXPECT_GT(parameters.at("way_seconds").double_param(), 0);
}

TEST_F(GradientV2Test, TakesLossesBackAsGradientDoes) {
  v1::GradientRequest same;
  same.set_model("net");
  *same.mutable_inputs() = MakeRequest().inputs();
  same.mutable_options()->set_solver("newton");
  same.set_estimate_error(true);
  ModelInferRequest base;
  base.set_model_name("net");
  AddTensor("inputs", {2, kWidth}, Values(MakeRequest().inputs()), &base);
  for (const char* name : {"losses", "grad_inputs"}) base.add_outputs()->set_name(name);
  (*base.mutable_parameters())["solver"].set_string_param("newton");
  (*base.mutable_parameters())["estimate_error"].set_bool_param(true);
  for (const bool mse : {true, false}) {
    v1::GradientRequest wanted = same;
    ModelInferRequest request = base;
    (*request.mutable_parameters())["loss"].set_string_param(mse ? "mse" : "cross_entropy");
    if (mse) {
      wanted.set_loss(v1::LOSS_MSE);
      SetTensor({2, kOutputs}, Numbers(2 * kOutputs), wanted.mutable_targets());
      AddTensor("targets", {2, kOutputs}, Numbers(2 * kOutputs), &request);
    } else {
      wanted.set_loss(v1::LOSS_CROSS_ENTROPY);
      auto* classes = request.add_inputs();
      classes->set_name("target_classes");
      classes->set_datatype("INT32");
      classes->add_shape(2);
      const int32_t values[] = {2, 0};
      for (const int32_t value : values) wanted.add_target_classes(value);
      request.add_raw_input_contents(reinterpret_cast<const char*>(values), sizeof(values));
    }
    v1::GradientResponse expected;
    grpc::ClientContext first, second;
    ASSERT_TRUE(stub_->Gradient(&first, wanted, &expected).ok());
    ModelInferResponse response;
    const grpc::Status status = v2_->ModelInfer(&second, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.outputs(0).name(), "losses");
    EXPECT_EQ(response.outputs(0).datatype(), "FP64");
    EXPECT_THAT(response.outputs(0).shape(), ElementsAre(2));
    ASSERT_EQ(response.raw_output_contents(0).size(), 2 * sizeof(double));
    EXPECT_EQ(0, std::memcmp(response.raw_output_contents(0).data(), expected.losses().data(),
                             2 * sizeof(double)));
    EXPECT_EQ(response.raw_output_contents(1), expected.input_gradients().data());
    double largest = 0;
    for (const auto& sample : expected.backward().samples()) {
      ASSERT_TRUE(sample.has_gradient_error_estimate());
      largest = std::max(largest, sample.gradient_error_estimate());
    }
    EXPECT_EQ(response.parameters().at("gradient_error_estimate").double_param(), largest);
  }
}

TEST_F(GradientV2Test, NamesWhatIsWrongWithALoss) {
  const auto refuse = [&](const ModelInferRequest& request, const std::string& part) {
    ModelInferResponse response;
    grpc::ClientContext context;
    const grpc::Status status = v2_->ModelInfer(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(part));
  };
  ModelInferRequest request = OfNet();
  (*request.mutable_parameters())["loss"].set_string_param("hinge");
  refuse(request, "parameters.loss: expected one of mse, cross_entropy, got \"hinge\"");
  (*request.mutable_parameters())["loss"].set_string_param("mse");
  refuse(request, "targets: expected a tensor [n, 3] for LOSS_MSE, got none");
  AddTensor("targets", {2, kOutputs}, Numbers(2 * kOutputs), &request);
  refuse(request, "cotangent_outputs: expected none beside a loss, got a tensor");
  request = OfNet();
  request.add_outputs()->set_name("losses");
  refuse(request, "outputs: expected losses beside parameters.loss, got none set");
  request = OfNet();
  request.mutable_outputs(0)->set_name("losses");
  refuse(request, "outputs: expected losses beside gradients, got no output grad_<input>");
  request = OfNet();
  (*request.mutable_parameters())["estimate_error"].set_string_param("yes");
  refuse(request, "parameters.estimate_error: expected true or false, got \"yes\"");
}

TEST_F(GradientV2Test, TakesAStreamedGenerationBack) {
  v1::GradientRequest same;
  same.set_model("digits-ddpm");
  same.mutable_generation()->set_num_samples(2);
  same.mutable_generation()->set_seed(4);
  same.mutable_generation()->set_num_inference_steps(100);
  SetTensor({2, kPixels}, Numbers(2 * kPixels), same.mutable_cotangents());
  SetTensor({2, kLatent}, Numbers(2 * kLatent), same.mutable_final_state_cotangents());
  same.add_gradients(v1::GRADIENT_BY_STEP_NOISE);
  same.add_gradients(v1::GRADIENT_BY_INITIAL_STATE);
  v1::GradientResponse expected;
  grpc::ClientContext other;
  ASSERT_TRUE(stub_->Gradient(&other, same, &expected).ok());
  ModelInferRequest request;
  request.set_model_name("digits-ddpm");
  AddTensor("cotangent_samples", {2, kPixels}, Numbers(2 * kPixels), &request);
  AddTensor("cotangent_latents", {2, kLatent}, Numbers(2 * kLatent), &request);
  for (const char* name : {"grad_initial_noise", "latents", "grad_step_noise"})
    request.add_outputs()->set_name(name);
  (*request.mutable_parameters())["seed"].set_int64_param(4);
  (*request.mutable_parameters())["num_inference_steps"].set_int64_param(100);

  grpc::ClientContext context;
  const auto stream = v2_->ModelStreamInfer(&context);
  ASSERT_TRUE(stream->Write(request));
  inference::ModelStreamInferResponse answer;
  ASSERT_TRUE(stream->Read(&answer));
  stream->WritesDone();

  const ModelInferResponse& response = answer.infer_response();
  ASSERT_EQ(response.raw_output_contents_size(), 3) << answer.error_message();
  EXPECT_EQ(response.raw_output_contents(0), expected.initial_state_gradients().data());
  EXPECT_THAT(response.outputs(1).shape(), ElementsAre(2, kLatent));
  EXPECT_EQ(response.raw_output_contents(2), expected.step_noise_gradients().data());
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(GradientV2Test, SaysWhereThereAreNone) {
  const auto server = testing::ServerProcess::Start(repository_->path());
  ASSERT_NE(server, nullptr);
  const auto without = StubOf(server->address());
  ModelInferResponse response;
  grpc::ClientContext context;
  const grpc::Status status = without->ModelInfer(&context, OfNet(), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("start it with --gradients"));

  inference::ModelConfigRequest named;
  named.set_name("net");
  for (auto* stub : {without.get(), v2_.get()}) {
    inference::ModelConfigResponse reply;
    grpc::ClientContext another;
    ASSERT_TRUE(stub->ModelConfig(&another, named, &reply).ok());
    EXPECT_EQ(reply.config().parameters().contains("gradients"), stub == v2_.get());
    EXPECT_EQ(reply.config().output_size(), 1);
  }
}

}  // namespace
}  // namespace deeppcr
