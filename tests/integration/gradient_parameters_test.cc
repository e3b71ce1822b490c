// SPDX-License-Identifier: Apache-2.0
// StreamGradient of models whose steps are programs: denoisers and stacks of blocks, from the real
// server.
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/engine.h"
#include "tests/integration/streamed_gradient.h"

namespace deeppcr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kInputs = 3, kOutputsOfStack = 5, kLayers = 40;  // of the stack "tied"

v1::GradientRequest OfTied() {
  v1::GradientRequest request;
  request.set_model("tied");
  SetTensor({kSamples, kInputs}, Normals(kSamples * kInputs, 3), request.mutable_inputs());
  SetTensor({kSamples, kOutputsOfStack}, Normals(kSamples * kOutputsOfStack, 4),
            request.mutable_cotangents());
  request.mutable_options()->set_solver("sequential");
  return request;
}
v1::GradientRequest OfDenoiser() {
  v1::GradientRequest request = OfDdpm(Normals(kSamples * kLatent, 3));
  SetTensor({kSamples, kPixels}, Normals(kSamples * kPixels, 8), request.mutable_cotangents());
  return request;
}
v1::GradientRequest OfClasses() {
  v1::GradientRequest request = OfDenoiser();
  request.set_model("digits-class");
  for (int i = 0; i < kSamples; ++i) request.mutable_generation()->add_class_labels(3 + i);
  return request;
}
// A request whose sums take minutes.
v1::GradientRequest LongRequest() {
  constexpr int64_t kMany = 200;
  v1::GradientRequest request = OfDdpm(Normals(kMany * kLatent, 3));
  request.mutable_generation()->set_num_inference_steps(1000);
  SetTensor({kMany, kPixels}, Normals(kMany * kPixels, 8), request.mutable_cotangents());
  return request;
}

class GradientParametersTest : public ServiceTest {
 protected:
  static void SetUpTestSuite() {
    repository_ = std::make_unique<testing::TemporaryDirectory>();
    for (const std::string name : {"digits-resnet", "digits-ddpm", "digits-class"})
      std::filesystem::copy(kModels + name, repository_->File(name),
                            std::filesystem::copy_options::recursive);
    std::filesystem::create_directories(repository_->File("tied/1"));
    std::filesystem::copy(DEEPPCR_SOURCE_DIR "/tests/data/stack/tied", repository_->File("tied/1"),
                          std::filesystem::copy_options::recursive);
    // Requests of minutes wait for one another here.
    server_ = testing::ServerProcess::Start(
        repository_->path(), {"--gradients", "--workers=2", "--max_queue_seconds=0"});
  }

  void AwaitInFlight(int wanted) {
    const std::string in_flight = "deeppcr_requests_in_flight{method=\"StreamGradient\"}";
    for (int i = 0; i < 2000 && Metric(in_flight) != wanted; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_EQ(Metric(in_flight), wanted);
  }
};

// Goes back and sums in this process what a request asks the server for.
std::string BytesOfTheEngine(const Engine& engine, const std::string& directory, int64_t num_steps,
                             const SampleInputs& samples, const std::vector<float>& states,
                             const std::vector<float>& cotangents) {
  const auto model = engine.LoadModel(directory, nullptr, nullptr).value();
  const auto system = model->Prepare(num_steps, nullptr).value();
  const ModelInfo& info = model->info();
  const int64_t n = samples.num_samples, dim = info.state_dim;
  const int64_t steps = std::ssize(states) / (n * dim) - 1;
  std::vector<float> of_states(n * steps * dim), of_inputs(info.has_input_layer ? n * dim : 0);
  std::vector<BackwardReport> reports(n);
  BackwardItem item{.samples = samples,
                    .states = states,
                    .of_outputs = cotangents,
                    .encode_deltas = of_inputs,
                    .state_cotangents = of_states,
                    .reports = reports};
  EXPECT_TRUE(system->GoBack({}, {&item, 1}).ok());
  std::vector<ParameterSample> given;
  for (int64_t i = 0; i < n; ++i)
    given.push_back({.inputs = samples.inputs.data() + i * info.input_dim,
                     .label = samples.labels.empty() ? 0 : samples.labels[i],
                     .states = states.data() + i * (steps + 1) * dim,
                     .state_cotangents = of_states.data() + i * steps * dim,
                     .encode_delta = of_inputs.empty() ? nullptr : of_inputs.data() + i * dim,
                     .decode_delta = cotangents.data() + i * info.output_dim});
  std::vector<std::vector<float>> tensors;
  std::vector<float*> sums;
  for (const TensorShape& parameter : info.parameters) {
    size_t size = 1;
    for (const int64_t extent : parameter.extents) size *= static_cast<size_t>(extent);
    tensors.emplace_back(size);
  }
  for (std::vector<float>& tensor : tensors) sums.push_back(tensor.data());
  EXPECT_TRUE(system->AddParameterGradients(given, sums, nullptr, [](double) {}).ok());
  std::string bytes;
  for (const std::vector<float>& tensor : tensors)
    bytes.append(reinterpret_cast<const char*>(tensor.data()), tensor.size() * sizeof(float));
  return bytes;
}

TEST_F(GradientParametersTest, HaveTheBitsOfTheEngine) {
  const auto engine =
      Engine::Create({.backend = "cpu", .num_threads = 1, .gradients = true}).value();
  for (v1::GradientRequest request : {OfDenoiser(), OfClasses(), OfTied()}) {
    SCOPED_TRACE(request.model());
    request.mutable_options()->set_return_trajectory(true);
    const StreamedGradient streamed = Stream(*stub_, request);
    ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
    const std::vector<float> inputs = Values(request.inputs());
    const std::vector<float> noise = Values(request.generation().initial_noise());
    const auto& labels = request.generation().class_labels();
    const std::vector<int32_t> classes(labels.begin(), labels.end());
    EXPECT_EQ(BytesOfTheEngine(*engine, repository_->File(request.model() + "/1"),
                               request.generation().num_inference_steps(),
                               {.num_samples = kSamples,
                                .inputs = inputs,
                                .seed = 5,
                                .labels = classes,
                                .initial_noise = noise},
                               Values(streamed.result.trajectory()), Values(request.cotangents())),
              streamed.Bytes());
    EXPECT_EQ(Stream(*stub_, request).Bytes(), streamed.Bytes());
  }
}

TEST_F(GradientParametersTest, HaveTheNamesAndShapesOfTheFiles) {
  const StreamedGradient of_ddpm = Stream(*stub_, OfDenoiser());
  ASSERT_TRUE(of_ddpm.status.ok()) << of_ddpm.status.error_message();
  EXPECT_THAT(of_ddpm.Of("time_embed.mlp.0.weight").shape, ElementsAre(128, 128));
  EXPECT_THAT(of_ddpm.Of("res_blocks.2.modulation.bias").shape, ElementsAre(128));
  EXPECT_THAT(of_ddpm.Of("final_layer.linear.weight").shape, ElementsAre(kLatent, 128));
  // y = W h + b in the last layer.
  const std::vector<float> seeds = Values(OfDenoiser().cotangents());
  const std::vector<float> bias = FloatsOf(of_ddpm.Of("decoder.1.bias").data);
  ASSERT_EQ(std::ssize(bias), kPixels);
  for (int64_t i = 0; i < kPixels; ++i) EXPECT_NEAR(bias[i], seeds[i] + seeds[kPixels + i], 1e-6);

  const StreamedGradient of_class = Stream(*stub_, OfClasses());
  ASSERT_TRUE(of_class.status.ok()) << of_class.status.error_message();
  const StreamedTensor& table = of_class.Of("class_embed.weight");
  ASSERT_THAT(table.shape, ElementsAre(10, 128));
  // Classes that no sample has move nothing.
  const std::vector<float> rows = FloatsOf(table.data);
  for (int64_t row = 0; row < 10; ++row) {
    const bool any = std::any_of(rows.begin() + row * 128, rows.begin() + (row + 1) * 128,
                                 [](float x) { return x != 0; });
    EXPECT_EQ(any, row == 3 || row == 4) << row;
  }

  const StreamedGradient of_tied = Stream(*stub_, OfTied());
  ASSERT_TRUE(of_tied.status.ok()) << of_tied.status.error_message();
  EXPECT_THAT(of_tied.Of("input.weight").shape, ElementsAre(5, kInputs));
  EXPECT_THAT(of_tied.Of("shared.weight").shape, ElementsAre(5, 5));
  for (const StreamedTensor& tensor : of_tied.tensors) {
    const bool of_layers = !tensor.name.starts_with("shared") &&
                           !tensor.name.starts_with("input") && !tensor.name.starts_with("output");
    EXPECT_EQ(tensor.shape.front() == kLayers, of_layers) << tensor.name;
  }

  v1::GetModelRequest named;
  for (const char* name : {"digits-ddpm", "digits-class", "tied", "digits-resnet"}) {
    named.set_model(name);
    v1::GetModelResponse model;
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->GetModel(&context, named, &model).ok());
    EXPECT_TRUE(model.parameter_gradients()) << name;
  }
}

// The scratch of the sums counts, beside the sums and the cotangents of all states.
TEST_F(GradientParametersTest, RefuseMemoryAboveTheBudget) {
  const auto server =
      testing::ServerProcess::Start(repository_->path(), {"--gradients", "--max_queue_bytes=2MiB"});
  ASSERT_NE(server, nullptr);
  const auto stub = Connect(server->address());
  v1::GradientResponse response;
  EXPECT_TRUE(Call(*stub, OfDenoiser(), &response).ok());
  const StreamedGradient streamed = Stream(*stub, OfDenoiser());
  EXPECT_EQ(streamed.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(streamed.status.error_message(), HasSubstr("the limit is 2097152"));
}

TEST_F(GradientParametersTest, AreRefusedWithoutGradients) {
  const auto server = testing::ServerProcess::Start(repository_->path());
  ASSERT_NE(server, nullptr);
  const StreamedGradient streamed = Stream(*Connect(server->address()), OfDenoiser());
  EXPECT_EQ(streamed.status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(streamed.status.error_message(), HasSubstr("without its backward pass"));
}

// All workers sum for minutes; others are answered in between, and those that wait no longer end.
TEST_F(GradientParametersTest, LetOthersInAndEndWhenNobodyWaits) {
  constexpr int kLongRequests = 3;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::thread> clients;
  for (int i = 0; i < kLongRequests; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    clients.emplace_back([this, context = contexts.back().get()] {
      const auto reader = stub_->StreamGradient(context, LongRequest());
      for (v1::StreamGradientResponse event; reader->Read(&event);) {
      }
      EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
    });
  }
  AwaitInFlight(kLongRequests);
  std::this_thread::sleep_for(std::chrono::seconds(8));  // the sums have begun by now, mostly
  v1::ForwardRequest forward;
  forward.set_model("digits-resnet");
  SetTensor({1, kPixels}, Normals(kPixels, 5), forward.mutable_inputs());
  // A solve before the sums may still keep a request waiting on a slow machine; the sums may not.
  int at_once = 0;
  for (int i = 0; i < 20 && at_once < 5; ++i) {
    grpc::ClientContext context;
    const auto sent = std::chrono::system_clock::now();
    context.set_deadline(sent + std::chrono::seconds(120));
    v1::ForwardResponse answer;
    const grpc::Status status = stub_->Forward(&context, forward, &answer);
    EXPECT_TRUE(status.ok()) << status.error_message();
    const bool soon = std::chrono::system_clock::now() - sent < std::chrono::seconds(20);
    at_once = status.ok() && soon ? at_once + 1 : 0;
  }
  EXPECT_EQ(at_once, 5);
  AwaitInFlight(kLongRequests);
  for (const auto& context : contexts) context->TryCancel();
  for (std::thread& client : clients) client.join();
  AwaitInFlight(0);
}

TEST_F(GradientParametersTest, EndAtTheirDeadline) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  const auto reader = stub_->StreamGradient(&context, LongRequest());
  for (v1::StreamGradientResponse event; reader->Read(&event);) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  AwaitInFlight(0);
}

}  // namespace
}  // namespace deeppcr
