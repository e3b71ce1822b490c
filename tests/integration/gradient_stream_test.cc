// SPDX-License-Identifier: Apache-2.0
// StreamGradient: gradients by parameters, in pieces, from the real server.
#include <atomic>
#include <cmath>
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
using ::testing::SizeIs;

// A connection that takes in no more than 64 KiB before they are read.
std::unique_ptr<v1::DeepPcr::Stub> ConnectNarrowly(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65535);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  return v1::DeepPcr::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

// A request for 270 KB.
constexpr int64_t kWide = 32;
v1::GradientRequest OfWide() {
  v1::GradientRequest request;
  request.set_model("wide");
  SetTensor({1, kWide}, Normals(kWide, 3), request.mutable_inputs());
  SetTensor({1, kOutputs}, Normals(kOutputs, 4), request.mutable_cotangents());
  request.mutable_options()->set_solver("sequential");
  return request;
}

v1::GradientRequest WithCotangents() {
  v1::GradientRequest request = OfResnet(Normals(kSamples * kPixels, 3));
  SetTensor({kSamples, kClasses}, Normals(kSamples * kClasses, 4), request.mutable_cotangents());
  return request;
}

class GradientStreamTest : public ServiceTest {
 protected:
  static void SetUpTestSuite() {
    repository_ = std::make_unique<testing::TemporaryDirectory>();
    testing::WriteRandomModel(repository_->File("net/1"), {});
    testing::WriteRandomModel(repository_->File("wide/1"), {.layers = 64, .width = kWide});
    std::filesystem::copy(kModels + std::string("digits-resnet"),
                          repository_->File("digits-resnet"),
                          std::filesystem::copy_options::recursive);
    server_ = testing::ServerProcess::Start(repository_->path(), {"--gradients"});
  }

  void ExpectRefused(const v1::GradientRequest& request, grpc::StatusCode code,
                     const std::string& part) {
    const StreamedGradient streamed = Stream(*stub_, request);
    EXPECT_EQ(streamed.status.error_code(), code) << streamed.status.error_message();
    EXPECT_THAT(streamed.status.error_message(), HasSubstr(part));
    EXPECT_TRUE(streamed.tensors.empty());
  }
  void ExpectNoneInFlight() {
    const std::string in_flight = "deeppcr_requests_in_flight{method=\"StreamGradient\"}";
    for (int i = 0; i < 2000 && Metric(in_flight) != 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(Metric(in_flight), 0);
    ExpectServing();
  }
};

TEST_F(GradientStreamTest, HasTheBitsOfTheEngine) {
  const auto engine =
      Engine::Create({.backend = "cpu", .num_threads = 2, .gradients = true}).value();
  const auto model =
      engine->LoadModel(kModels + std::string("digits-resnet/1"), nullptr, nullptr).value();
  const auto system = model->Find();
  const int64_t steps = model->info().num_layers, n = kSamples;
  v1::GradientRequest request = WithCotangents();
  request.mutable_options()->set_return_trajectory(true);
  request.add_gradients(v1::GRADIENT_BY_INPUTS);
  for (const BackwardWay way : {BackwardWay::kSequential, BackwardWay::kParallel}) {
    request.set_way(way == BackwardWay::kParallel ? v1::BACKWARD_WAY_PARALLEL
                                                  : v1::BACKWARD_WAY_SEQUENTIAL);
    const StreamedGradient streamed = Stream(*stub_, request);
    ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
    ASSERT_THAT(streamed.tensors, SizeIs(6));
    EXPECT_THAT(streamed.Of("input.weight").shape, ElementsAre(kLatent, kPixels));
    EXPECT_THAT(streamed.Of("layers.weight").shape, ElementsAre(steps, kLatent, kLatent));
    EXPECT_THAT(streamed.Of("layers.bias").shape, ElementsAre(steps, kLatent));
    EXPECT_THAT(streamed.Of("output.bias").shape, ElementsAre(kClasses));

    const std::vector<float> inputs = Values(request.inputs());
    const std::vector<float> seeds = Values(request.cotangents());
    const std::vector<float> states = Values(streamed.result.trajectory());
    std::vector<float> by_inputs(n * kPixels), deltas(n * steps * kLatent), encode(n * kLatent);
    std::vector<BackwardReport> reports(n);
    BackwardItem item{.samples = {.num_samples = n, .inputs = inputs},
                      .states = states,
                      .of_outputs = seeds,
                      .inputs = by_inputs,
                      .deltas = deltas,
                      .encode_deltas = encode,
                      .reports = reports};
    const BackwardOptions options =
        ResolveBackward({.way = way}, *system->backward_limits(), steps).value();
    ASSERT_TRUE(system->GoBack(options, {&item, 1}).ok());
    std::vector<ParameterSample> samples;
    for (int64_t i = 0; i < n; ++i)
      samples.push_back({.inputs = inputs.data() + i * kPixels,
                         .states = states.data() + i * (steps + 1) * kLatent,
                         .deltas = deltas.data() + i * steps * kLatent,
                         .encode_delta = encode.data() + i * kLatent,
                         .decode_delta = seeds.data() + i * kClasses});
    std::vector<float> weights(steps * kLatent * kLatent), biases(steps * kLatent),
        in_weight(kLatent * kPixels), in_bias(kLatent), out_weight(kClasses * kLatent),
        out_bias(kClasses);
    // In the order of the parameters.
    const std::vector<float*> sums = {in_weight.data(), in_bias.data(),    weights.data(),
                                      biases.data(),    out_weight.data(), out_bias.data()};
    ASSERT_TRUE(system->AddParameterGradients(samples, sums, nullptr, [](double) {}).ok());
    EXPECT_EQ(FloatsOf(streamed.Of("layers.weight").data), weights);
    EXPECT_EQ(FloatsOf(streamed.Of("layers.bias").data), biases);
    EXPECT_EQ(FloatsOf(streamed.Of("input.weight").data), in_weight);
    EXPECT_EQ(FloatsOf(streamed.Of("input.bias").data), in_bias);
    EXPECT_EQ(FloatsOf(streamed.Of("output.weight").data), out_weight);
    EXPECT_EQ(FloatsOf(streamed.Of("output.bias").data), out_bias);
    EXPECT_EQ(Values(streamed.result.input_gradients()), by_inputs);
  }
}

// The outputs are affine in the parameters of the output layer: y = W z_L + b.
TEST_F(GradientStreamTest, OfTheOutputLayerIsItsFormula) {
  v1::GradientRequest request = WithCotangents();
  request.mutable_options()->set_return_trajectory(true);
  const StreamedGradient streamed = Stream(*stub_, request);
  ASSERT_TRUE(streamed.status.ok());
  const std::vector<float> seeds = Values(request.cotangents());
  const std::vector<float> states = Values(streamed.result.trajectory());
  const std::vector<float> weight = FloatsOf(streamed.Of("output.weight").data);
  const std::vector<float> bias = FloatsOf(streamed.Of("output.bias").data);
  const int64_t row = std::ssize(states) / kSamples;
  for (int64_t c = 0; c < kClasses; ++c) {
    EXPECT_NEAR(bias[c], seeds[c] + seeds[kClasses + c], 1e-6);
    for (int64_t j = 0; j < kLatent; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < kSamples; ++i)
        sum += double{seeds[i * kClasses + c]} * states[(i + 1) * row - kLatent + j];
      EXPECT_NEAR(weight[c * kLatent + j], sum, 1e-5 * (1 + std::fabs(sum)));
    }
  }
}

TEST_F(GradientStreamTest, PiecesAreBoundedAndNothingElseIsAnsweredUnasked) {
  const StreamedGradient streamed = Stream(*stub_, WithCotangents());
  ASSERT_TRUE(streamed.status.ok());
  EXPECT_EQ(streamed.largest, 65536);
  EXPECT_GE(streamed.pieces, 17);
  EXPECT_FALSE(streamed.result.has_input_gradients());
  EXPECT_FALSE(streamed.result.has_initial_state_gradients());
  EXPECT_TRUE(streamed.result.has_outputs());
  EXPECT_EQ(streamed.result.backward().samples_size(), kSamples);

  // A server with small messages sends smaller pieces, of the same bits.
  const auto small = testing::ServerProcess::Start(repository_->path(),
                                                   {"--gradients", "--max_message_bytes=4KiB"});
  ASSERT_NE(small, nullptr);
  const StreamedGradient pieces = Stream(*Connect(small->address()), WithCotangents());
  ASSERT_TRUE(pieces.status.ok()) << pieces.status.error_message();
  EXPECT_EQ(pieces.largest, 3072);
  EXPECT_EQ(pieces.Bytes(), streamed.Bytes());
}

TEST_F(GradientStreamTest, RepeatsItsBitsBesideOthers) {
  v1::GradientRequest request = WithCotangents();
  request.clear_cotangents();
  request.set_loss(v1::LOSS_CROSS_ENTROPY);
  for (int i = 0; i < kSamples; ++i) request.add_target_classes(3 + i);
  const StreamedGradient first = Stream(*stub_, request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_EQ(first.result.losses_size(), kSamples);
  std::atomic<int> same{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      const auto stub = Connect(server_->address());
      for (int i = 0; i < 8; ++i) {
        if (c == 3) {
          v1::GradientResponse response;
          EXPECT_TRUE(Call(*stub, WithCotangents(), &response).ok());
        } else {
          same += Stream(*stub, request).Bytes() == first.Bytes() ? 1 : 0;
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(same, 24);
}

TEST_F(GradientStreamTest, GoesAlongWhatIsKept) {
  v1::GradientRequest request = WithCotangents();
  request.mutable_options()->set_keep_trajectory(true);
  const StreamedGradient solved = Stream(*stub_, request);
  ASSERT_TRUE(solved.status.ok());
  request.clear_options();
  request.set_trajectory_handle(solved.result.trajectory_handle());
  const StreamedGradient along = Stream(*stub_, request);
  ASSERT_TRUE(along.status.ok()) << along.status.error_message();
  EXPECT_EQ(along.Bytes(), solved.Bytes());
  EXPECT_FALSE(along.result.has_outputs());
}

TEST_F(GradientStreamTest, FinalStatesAloneSayNothingOfTheOutputLayer) {
  v1::GradientRequest request = WithCotangents();
  request.clear_cotangents();
  SetTensor({kSamples, 1, kLatent}, Normals(kSamples * kLatent, 4),
            request.mutable_final_state_cotangents());
  const StreamedGradient streamed = Stream(*stub_, request);
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  for (const float x : FloatsOf(streamed.Of("output.weight").data)) EXPECT_EQ(x, 0);
  float largest = 0;
  for (const float x : FloatsOf(streamed.Of("input.weight").data))
    largest = std::max(largest, std::fabs(x));
  EXPECT_GT(largest, 0);
}

TEST_F(GradientStreamTest, RefusesWhatIsNoRequestForParameters) {
  v1::GradientRequest request = WithCotangents();
  request.set_estimate_error(true);
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT,
                "estimate_error: expected false in StreamGradient, got true");
  request = WithCotangents();
  SetTensor({kSamples, 2, kClasses}, Normals(kSamples * 2 * kClasses, 4),
            request.mutable_cotangents());
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT,
                "cotangents.shape[1]: expected 1, as gradients by parameters are one sum, got 2");
  request = WithCotangents();
  request.mutable_cotangents()->mutable_data()->resize(4);
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "cotangents");
  request.Clear();
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "model");
}

TEST_F(GradientStreamTest, RefusesMemoryAboveTheBudget) {
  const auto server =
      testing::ServerProcess::Start(repository_->path(), {"--gradients", "--max_queue_bytes=1MiB"});
  ASSERT_NE(server, nullptr);
  const StreamedGradient streamed = Stream(*Connect(server->address()), WithCotangents());
  EXPECT_EQ(streamed.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(streamed.status.error_message(), HasSubstr("the limit is 1048576"));
}

TEST_F(GradientStreamTest, EndsWhenItsClientCancelsOrItsTimeIsUp) {
  for (const bool cancels : {true, false}) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(cancels ? 60000 : 4000));
    const auto stub = ConnectNarrowly(server_->address());
    const auto reader = stub->StreamGradient(&context, OfWide());
    v1::StreamGradientResponse event;
    ASSERT_TRUE(reader->Read(&event)) << "the first piece";
    // Reads no further: more than a connection takes in waits on the server.
    if (cancels) context.TryCancel();
    if (!cancels) std::this_thread::sleep_for(std::chrono::milliseconds(4300));
    while (reader->Read(&event)) {
    }
    EXPECT_EQ(reader->Finish().error_code(),
              cancels ? grpc::StatusCode::CANCELLED : grpc::StatusCode::DEADLINE_EXCEEDED);
    ExpectNoneInFlight();
  }
}

TEST_F(GradientStreamTest, AClientThatDoesNotReadLosesIt) {
  const auto server =
      testing::ServerProcess::Start(repository_->path(), {"--gradients", "--reply_seconds=0.2"});
  ASSERT_NE(server, nullptr);
  const auto stub = ConnectNarrowly(server->address());
  grpc::ClientContext context;
  const auto reader = stub->StreamGradient(&context, OfWide());
  const auto dropped = [&] {
    return server->Get("/metrics").find("\ndeeppcr_replies_dropped_total 1\n") != std::string::npos;
  };
  // It has a second for every 128 KiB too.
  for (int i = 0; i < 6000 && !dropped(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(dropped());
  context.TryCancel();
}

TEST_F(GradientStreamTest, CountsInMetrics) {
  ASSERT_TRUE(Stream(*stub_, WithCotangents()).status.ok());
  ExpectNoneInFlight();
  EXPECT_GE(Metric("deeppcr_requests_total{code=\"OK\",method=\"StreamGradient\",model=\"digits-"
                   "resnet\"}"),
            1);
  EXPECT_GE(Metric("deeppcr_request_duration_seconds_count{method=\"Gradient\",model=\"digits-"
                   "resnet\",solver=\"sequential\",version=\"1\"}"),
            1);
}

TEST_F(GradientStreamTest, IsRefusedUnlessTheOperatorAllowsIt) {
  const auto server = testing::ServerProcess::Start(repository_->path());
  ASSERT_NE(server, nullptr);
  const StreamedGradient streamed = Stream(*Connect(server->address()), WithCotangents());
  EXPECT_EQ(streamed.status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace deeppcr
