// SPDX-License-Identifier: Apache-2.0
// Trajectories that stay on the server for gradients, and what ends them.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/gradient_fixture.h"

namespace deeppcr {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using testing::ServerProcess;

constexpr char kCount[] = "deeppcr_kept_trajectories";
constexpr char kBytes[] = "deeppcr_kept_trajectory_bytes";

// A Forward of "net" that keeps its trajectory; `scale` tells one from another.
v1::ForwardRequest Keeping(float scale = 1, int64_t n = 2, const std::string& model = "net") {
  v1::ForwardRequest request = MakeRequest(n, model);
  std::vector<float> values = Values(request.inputs());
  for (float& x : values) x *= scale;
  SetTensor({n, kWidth}, values, request.mutable_inputs());
  request.mutable_options()->set_solver("sequential");
  request.mutable_options()->set_keep_trajectory(true);
  return request;
}

// The gradient along what a Forward has kept.
v1::GradientRequest Along(const v1::ForwardRequest& of, const std::string& handle) {
  v1::GradientRequest request;
  request.set_model(of.model());
  *request.mutable_inputs() = of.inputs();
  const int64_t n = of.inputs().shape(0);
  SetTensor({n, kOutputs}, Normals(n * kOutputs, 4), request.mutable_cotangents());
  request.set_trajectory_handle(handle);
  return request;
}

class GradientHandleTest : public ServiceTest {
 protected:
  static void SetUpTestSuite() {
    repository_ = std::make_unique<testing::TemporaryDirectory>();
    testing::WriteRandomModel(repository_->File("net/1"), {});
    testing::WriteRandomModel(repository_->File("net/2"), {.seed = 2});
    testing::WriteRandomModel(repository_->File("other/1"), {.seed = 3});
    testing::WriteRandomModel(repository_->File("rough/1"), {.gain = 3.0, .type = "mlp"});
    for (const std::string name : {"digits-resnet", "digits-ddpm"})
      std::filesystem::copy(kModels + name, repository_->File(name),
                            std::filesystem::copy_options::recursive);
    server_ =
        ServerProcess::Start(repository_->path(), {"--gradients", "--versions=net=all,latest"});
  }

  static std::string Keep(v1::DeepPcr::Stub& stub, const v1::ForwardRequest& request) {
    v1::ForwardResponse response;
    const grpc::Status status = deeppcr::Call(stub, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_THAT(response.trajectory_handle(), MatchesRegex("[0-9a-f]{32}"));
    return response.trajectory_handle();
  }
  static v1::GradientResponse Answer(v1::DeepPcr::Stub& stub, const v1::GradientRequest& request) {
    v1::GradientResponse response;
    const grpc::Status status = Call(stub, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  static void ExpectRefused(v1::DeepPcr::Stub& stub, const v1::GradientRequest& request,
                            grpc::StatusCode code, const std::string& part) {
    v1::GradientResponse response;
    const grpc::Status status = Call(stub, request, &response);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(part));
  }
  static void ExpectGone(v1::DeepPcr::Stub& stub, const v1::GradientRequest& request) {
    ExpectRefused(stub, request, grpc::StatusCode::NOT_FOUND,
                  "trajectory_handle: expected one that this server keeps");
    ExpectRefused(stub, request, grpc::StatusCode::NOT_FOUND,
                  "pay for the solve again, with options in its place");
  }
  static double MetricOf(const ServerProcess& server, const std::string& series) {
    const std::string text = server.Get("/metrics");
    const size_t at = text.find("\n" + series + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + series.size() + 2));
  }
  static bool WaitFor(const ServerProcess& server, const std::string& series, double value) {
    for (int i = 0; i < 2000; ++i) {
      if (MetricOf(server, series) == value) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  static grpc::Status Load(v1::DeepPcr::Stub& stub, const std::string& model) {
    v1::LoadModelRequest request;
    request.set_model(model);
    v1::LoadModelResponse response;
    grpc::ClientContext context;
    return stub.LoadModel(&context, request, &response);
  }
  static grpc::Status Unload(v1::DeepPcr::Stub& stub, const std::string& model) {
    v1::UnloadModelRequest request;
    request.set_model(model);
    v1::UnloadModelResponse response;
    grpc::ClientContext context;
    return stub.UnloadModel(&context, request, &response);
  }
};

TEST_F(GradientHandleTest, HasTheBitsOfTheTrajectoryHandedInAfterForward) {
  for (const char* solver : {"sequential", "newton", "auto"}) {
    v1::ForwardRequest forward;
    forward.set_model("digits-resnet");
    const std::vector<float> point = Normals(kSamples * kPixels, 3);
    SetTensor({kSamples, kPixels}, point, forward.mutable_inputs());
    forward.mutable_options()->set_solver(solver);
    forward.mutable_options()->set_return_trajectory(true);
    v1::ForwardResponse plain;
    ASSERT_TRUE(deeppcr::Call(*stub_, forward, &plain).ok());
    EXPECT_EQ(plain.trajectory_handle(), "");
    for (const bool returned : {false, true}) {
      forward.mutable_options()->set_return_trajectory(returned);
      forward.mutable_options()->set_keep_trajectory(true);
      v1::ForwardResponse solved;
      ASSERT_TRUE(deeppcr::Call(*stub_, forward, &solved).ok());
      EXPECT_EQ(solved.outputs().data(), plain.outputs().data()) << "keeping changes no bit";
      EXPECT_EQ(solved.has_trajectory(), returned);
      v1::GradientRequest request = OfResnet(point);
      request.clear_options();
      SetTensor({kSamples, 3, kClasses}, Normals(kSamples * 3 * kClasses, 4),
                request.mutable_cotangents());
      request.add_gradients(v1::GRADIENT_BY_INITIAL_STATE);
      request.add_gradients(v1::GRADIENT_BY_INPUTS);
      for (const v1::BackwardWay way : {v1::BACKWARD_WAY_SEQUENTIAL, v1::BACKWARD_WAY_PARALLEL}) {
        request.set_way(way);
        request.clear_trajectory_handle();
        *request.mutable_trajectory() = plain.trajectory();
        const v1::GradientResponse expected = Answer(*stub_, request);
        request.clear_trajectory();
        request.set_trajectory_handle(solved.trajectory_handle());
        for (int again = 0; again < 2; ++again) {
          const v1::GradientResponse response = Answer(*stub_, request);
          EXPECT_EQ(response.input_gradients().data(), expected.input_gradients().data());
          EXPECT_EQ(response.initial_state_gradients().data(),
                    expected.initial_state_gradients().data());
          EXPECT_FALSE(response.has_outputs());
          EXPECT_EQ(response.report().samples_size(), 0);
          EXPECT_EQ(response.backward().samples_size(), kSamples);
        }
      }
    }
  }
}

TEST_F(GradientHandleTest, HasTheBitsOfTheTrajectoryHandedInAfterGenerateAndGradient) {
  v1::GradientRequest request = OfDdpm(Normals(kSamples * kLatent, 3));
  SetTensor({kSamples, kPixels}, Normals(kSamples * kPixels, 8), request.mutable_cotangents());
  request.add_gradients(v1::GRADIENT_BY_STEP_NOISE);
  v1::GenerateRequest generate;
  generate.set_model(request.model());
  *generate.mutable_input() = request.generation();
  *generate.mutable_options() = request.options();
  generate.mutable_options()->set_keep_trajectory(true);

  std::vector<std::string> handles;
  grpc::ClientContext unary, streamed;
  v1::GenerateResponse generated;
  ASSERT_TRUE(stub_->Generate(&unary, generate, &generated).ok());
  handles.push_back(generated.trajectory_handle());
  const auto stream = stub_->StreamGenerate(&streamed, generate);
  v1::StreamGenerateResponse event;
  while (stream->Read(&event)) {
    if (event.has_result()) handles.push_back(event.result().trajectory_handle());
  }
  ASSERT_TRUE(stream->Finish().ok());
  v1::GradientRequest kept = request;
  kept.mutable_options()->set_keep_trajectory(true);
  const v1::GradientResponse solved = Answer(*stub_, kept);
  handles.push_back(solved.trajectory_handle());

  request.clear_options();
  ASSERT_EQ(handles.size(), 3u);
  for (const std::string& handle : handles) {
    request.set_trajectory_handle(handle);
    EXPECT_EQ(Answer(*stub_, request).step_noise_gradients().data(),
              solved.step_noise_gradients().data());
  }
}

TEST_F(GradientHandleTest, TwoClientsUseOneAtOnce) {
  const v1::ForwardRequest forward = Keeping(0.5F);
  const v1::GradientRequest request = Along(forward, Keep(*stub_, forward));
  const std::string expected = Answer(*stub_, request).input_gradients().data();
  std::vector<std::thread> clients;
  std::atomic<int> same{0};
  for (int c = 0; c < 2; ++c) {
    clients.emplace_back([&] {
      const auto stub = Connect(server_->address());
      for (int i = 0; i < 50; ++i)
        same += Answer(*stub, request).input_gradients().data() == expected ? 1 : 0;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(same, 100);
}

TEST_F(GradientHandleTest, EndsAfterItsTime) {
  const auto server =
      ServerProcess::Start(repository_->path(), {"--gradients", "--trajectory_seconds=0.5"});
  ASSERT_NE(server, nullptr);
  const auto stub = Connect(server->address());
  v1::ForwardRequest forward = Keeping();
  const v1::GradientRequest request = Along(forward, Keep(*stub, forward));
  EXPECT_TRUE(WaitFor(*server, kCount, 0)) << "nobody has to ask for it";
  EXPECT_EQ(MetricOf(*server, kBytes), 0);
  EXPECT_EQ(MetricOf(*server, "deeppcr_kept_trajectories_dropped_total{reason=\"expired\"}"), 1);
  ExpectGone(*stub, request);

  // What the message advises.
  v1::GradientRequest again = request;
  again.clear_trajectory_handle();
  *again.mutable_options() = forward.options();
  EXPECT_THAT(Answer(*stub, again).trajectory_handle(), MatchesRegex("[0-9a-f]{32}"));
}

TEST_F(GradientHandleTest, AThousandStayWithinTheBudget) {
  constexpr int64_t kBudget = 1 << 20;
  const auto server =
      ServerProcess::Start(repository_->path(), {"--gradients", "--max_trajectory_bytes=1MiB"});
  ASSERT_NE(server, nullptr);
  const auto stub = Connect(server->address());
  std::vector<v1::GradientRequest> requests;
  for (int i = 0; i < 1000; ++i) {
    const v1::ForwardRequest forward = Keeping(1 + 0.001F * static_cast<float>(i), 2);
    requests.push_back(Along(forward, Keep(*stub, forward)));
  }
  EXPECT_LE(MetricOf(*server, kBytes), kBudget);
  EXPECT_GT(MetricOf(*server, kBytes), 0.9 * kBudget);
  const double count = MetricOf(*server, kCount);
  const double dropped =
      MetricOf(*server, "deeppcr_kept_trajectories_dropped_total{reason=\"no_room\"}");
  EXPECT_EQ(count + dropped, 1000);
  EXPECT_GT(dropped, 0);
  // The oldest are gone, the newest are there.
  const auto oldest = static_cast<size_t>(dropped);
  ExpectGone(*stub, requests[0]);
  ExpectGone(*stub, requests[oldest - 1]);
  for (const size_t i : {oldest, size_t{999}}) {
    v1::GradientRequest again = requests[i];
    again.clear_trajectory_handle();
    again.mutable_options()->set_solver("sequential");
    EXPECT_EQ(Answer(*stub, requests[i]).input_gradients().data(),
              Answer(*stub, again).input_gradients().data());
  }
}

TEST_F(GradientHandleTest, OneAboveTheBudgetIsRefused) {
  const auto server =
      ServerProcess::Start(repository_->path(), {"--gradients", "--max_trajectory_bytes=2KiB"});
  ASSERT_NE(server, nullptr);
  const auto stub = Connect(server->address());
  v1::ForwardResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub->Forward(&context, Keeping(), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  // Whoever tries again by a retry policy is told that it never fits.
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto pushback = trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, trailers.end());
  EXPECT_EQ(std::string(pushback->second.data(), pushback->second.size()), "-1");
  EXPECT_EQ(status.error_message(),
            "options.keep_trajectory: the trajectory would take 3200 bytes; the limit is 2048. Ask "
            "for fewer samples");
  EXPECT_EQ(MetricOf(*server, kCount), 0);
}

TEST_F(GradientHandleTest, AReloadOrUnloadEndsIt) {
  const auto server = ServerProcess::Start(repository_->path(), {"--gradients"});
  ASSERT_NE(server, nullptr);
  const auto stub = Connect(server->address());
  const v1::ForwardRequest forward = Keeping(), of_other = Keeping(1, 2, "other");
  const v1::GradientRequest request = Along(forward, Keep(*stub, forward));
  const v1::GradientRequest stays = Along(of_other, Keep(*stub, of_other));
  EXPECT_EQ(MetricOf(*server, kCount), 2);

  ASSERT_TRUE(Load(*stub, "net").ok());
  EXPECT_EQ(MetricOf(*server, kCount), 1);
  EXPECT_EQ(MetricOf(*server, "deeppcr_kept_trajectories_dropped_total{reason=\"unloaded\"}"), 1);
  ExpectGone(*stub, request);
  Answer(*stub, stays);
  const v1::GradientRequest renewed = Along(forward, Keep(*stub, forward));
  Answer(*stub, renewed);

  ASSERT_TRUE(Unload(*stub, "net").ok());
  EXPECT_EQ(MetricOf(*server, kCount), 1);
  ExpectRefused(*stub, renewed, grpc::StatusCode::NOT_FOUND, "net");
  ASSERT_TRUE(Load(*stub, "net").ok());
  ExpectGone(*stub, renewed);
  Answer(*stub, stays);
}

TEST_F(GradientHandleTest, IsOfNoOtherModelOrVersion) {
  v1::ForwardRequest forward = Keeping();
  forward.set_version(1);
  v1::GradientRequest request = Along(forward, Keep(*stub_, forward));
  ExpectRefused(*stub_, request, grpc::StatusCode::INVALID_ARGUMENT,
                "trajectory_handle: expected one of net version 2, got one of net version 1");
  request.set_model("other");
  ExpectRefused(*stub_, request, grpc::StatusCode::INVALID_ARGUMENT,
                "trajectory_handle: expected one of other version 1, got one of net version 1");
  request.set_model("net");
  request.set_version(1);
  Answer(*stub_, request);
}

TEST_F(GradientHandleTest, IsOfNoOtherSamples) {
  const v1::ForwardRequest forward = Keeping();
  const v1::GradientRequest request = Along(forward, Keep(*stub_, forward));
  const std::string refused =
      "trajectory_handle: expected the samples that its states were solved for, got others: "
      "another ";
  v1::GradientRequest other = request;
  other.mutable_inputs()->mutable_data()->at(5) ^= 1;
  ExpectRefused(*stub_, other, grpc::StatusCode::INVALID_ARGUMENT, refused + "inputs");
  other = Along(Keeping(1, 3), request.trajectory_handle());
  ExpectRefused(*stub_, other, grpc::StatusCode::INVALID_ARGUMENT, refused + "number of samples");

  v1::GradientRequest of_ddpm = OfDdpm(Normals(kSamples * kLatent, 3));
  SetTensor({kSamples, kPixels}, Normals(kSamples * kPixels, 8), of_ddpm.mutable_cotangents());
  of_ddpm.mutable_options()->set_keep_trajectory(true);
  const std::string handle = Answer(*stub_, of_ddpm).trajectory_handle();
  of_ddpm.clear_options();
  of_ddpm.set_trajectory_handle(handle);
  Answer(*stub_, of_ddpm);
  const std::pair<const char*, std::function<void(v1::GenerationInput*)>> changes[] = {
      {"seed", [](auto* to) { to->set_seed(6); }},
      {"first_sample", [](auto* to) { to->set_first_sample(1); }},
      {"number of steps", [](auto* to) { to->set_num_inference_steps(1000); }},
      {"initial_noise", [](auto* to) { to->clear_initial_noise(); }},
      {"step_noise", [](auto* to) {
         SetTensor({kSamples, kFewSteps, kLatent}, Normals(kSamples * kFewSteps * kLatent, 1),
                   to->mutable_step_noise());
       }}};
  for (const auto& [field, change] : changes) {
    v1::GradientRequest changed = of_ddpm;
    change(changed.mutable_generation());
    ExpectRefused(*stub_, changed, grpc::StatusCode::INVALID_ARGUMENT, refused + field);
  }
}

TEST_F(GradientHandleTest, LargeRequestsAreCheckedToo) {
  // Above a mebibyte the check is a worker's.
  v1::GradientRequest request = OfDdpm(Normals(kSamples * kLatent, 3));
  SetTensor({kSamples, 4096, kPixels}, Normals(kSamples * 4096 * kPixels, 8),
            request.mutable_cotangents());
  v1::GenerateRequest generate;
  generate.set_model(request.model());
  *generate.mutable_input() = request.generation();
  generate.mutable_options()->set_keep_trajectory(true);
  v1::GenerateResponse generated;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->Generate(&context, generate, &generated).ok());
  request.clear_options();
  request.set_trajectory_handle(generated.trajectory_handle());
  request.mutable_generation()->set_seed(6);
  ExpectRefused(*stub_, request, grpc::StatusCode::INVALID_ARGUMENT, "another seed");
}

TEST_F(GradientHandleTest, NothingIsSolvedBesideIt) {
  const v1::ForwardRequest forward = Keeping();
  const v1::GradientRequest request = Along(forward, Keep(*stub_, forward));
  const std::pair<const char*, std::function<void(v1::GradientRequest*)>> changes[] = {
      {"options: expected none", [](auto* to) { to->mutable_options(); }},
      {"trajectory_handle: expected none beside a trajectory, got one",
       [](auto* to) { to->mutable_trajectory(); }},
      {"initial_states: expected none", [](auto* to) { to->mutable_initial_states(); }},
      {"estimate_error: expected none", [](auto* to) { to->set_estimate_error(true); }},
      {"trajectory_handle: expected 32 hexadecimal digits, got \"..\"",
       [](auto* to) { to->set_trajectory_handle(".."); }},
      {"loss: expected none", [](auto* to) { to->set_loss(v1::LOSS_MSE); }}};
  for (const auto& [part, change] : changes) {
    v1::GradientRequest changed = request;
    change(&changed);
    ExpectRefused(*stub_, changed, grpc::StatusCode::INVALID_ARGUMENT, part);
  }
  v1::CompareRequest compare;
  compare.set_model("net");
  *compare.mutable_inputs() = forward.inputs();
  *compare.add_options() = forward.options();
  v1::CompareResponse response;
  grpc::ClientContext context;
  EXPECT_THAT(stub_->Compare(&context, compare, &response).error_message(),
              HasSubstr("options[0].keep_trajectory: expected false in Compare, got true"));
}

TEST_F(GradientHandleTest, IsUnknownToAnotherServer) {
  const auto replica = ServerProcess::Start(repository_->path(), {"--gradients"});
  ASSERT_NE(replica, nullptr);
  const v1::ForwardRequest forward = Keeping();
  const v1::GradientRequest request = Along(forward, Keep(*stub_, forward));
  ExpectGone(*Connect(replica->address()), request);
  Answer(*stub_, request);
}

TEST_F(GradientHandleTest, SomeServersKeepNone) {
  using Flags = std::vector<std::string>;
  for (const auto& [flags, part] :
       {std::pair<Flags, const char*>{{}, "start it with --gradients"},
        {{"--gradients", "--max_trajectory_bytes=0"},
         "options.keep_trajectory: expected false, as this server keeps no"}}) {
    const auto server = ServerProcess::Start(repository_->path(), flags);
    ASSERT_NE(server, nullptr);
    v1::ForwardResponse response;
    const grpc::Status status = deeppcr::Call(*Connect(server->address()), Keeping(), &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
    EXPECT_THAT(status.error_message(), HasSubstr(part));
  }
}

TEST_F(GradientHandleTest, StatesThatHaveNotConvergedAreNotKept) {
  v1::ForwardRequest forward = Keeping(1, 2, "rough");
  forward.mutable_options()->set_solver("newton");
  forward.mutable_options()->set_max_iterations(1);
  forward.mutable_options()->set_on_no_convergence(v1::ON_NO_CONVERGENCE_RETURN);
  v1::ForwardResponse response;
  ASSERT_TRUE(deeppcr::Call(*stub_, forward, &response).ok());
  ASSERT_FALSE(response.report().samples(0).converged());
  EXPECT_EQ(response.trajectory_handle(), "");
  // The sequential solver's states, after a fallback, are.
  forward.mutable_options()->set_on_no_convergence(v1::ON_NO_CONVERGENCE_FALLBACK);
  ASSERT_TRUE(deeppcr::Call(*stub_, forward, &response).ok());
  ASSERT_TRUE(response.report().samples(0).fallback());
  Answer(*stub_, Along(forward, response.trajectory_handle()));
}

TEST_F(GradientHandleTest, OutlivesRequestsThatAreCutShort) {
  v1::GenerateRequest generate;
  generate.set_model("digits-ddpm");
  generate.mutable_input()->set_num_inference_steps(1000);
  generate.mutable_options()->set_solver("sequential");
  generate.mutable_options()->set_keep_trajectory(true);
  v1::GenerateResponse generated;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->Generate(&context, generate, &generated).ok());
  v1::GradientRequest request;
  request.set_model("digits-ddpm");
  *request.mutable_generation() = generate.input();
  request.set_trajectory_handle(generated.trajectory_handle());
  SetTensor({1, 2, kLatent}, Normals(2 * kLatent, 5), request.mutable_final_state_cotangents());
  const std::string expected = Answer(*stub_, request).initial_state_gradients().data();

  v1::GradientRequest heavy = request;
  SetTensor({1, 4096, kLatent}, Normals(4096 * kLatent, 5), heavy.mutable_final_state_cotangents());
  for (const bool cancels : {false, true}) {
    grpc::ClientContext cut;
    cut.set_deadline(std::chrono::system_clock::now() +
                     std::chrono::milliseconds(cancels ? 60000 : 20));
    std::thread canceller([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (cancels) cut.TryCancel();
    });
    v1::GradientResponse response;
    const grpc::Status status = stub_->Gradient(&cut, heavy, &response);
    canceller.join();
    EXPECT_EQ(status.error_code(),
              cancels ? grpc::StatusCode::CANCELLED : grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  EXPECT_EQ(Answer(*stub_, request).initial_state_gradients().data(), expected);
}

TEST_F(GradientHandleTest, IsOfItsTokenAlone) {
  const std::string alice = "alice-0123456789abcdef", bob = "bob-0123456789abcdef";
  const testing::TemporaryDirectory folder;
  std::ofstream(folder.File("tokens")) << "infer " << alice << "\nadmin " << bob << "\n";
  const auto server = ServerProcess::Start(
      repository_->path(), {"--gradients", "--token_file=" + folder.File("tokens")});
  ASSERT_NE(server, nullptr);
  const auto stub = Connect(server->address());
  const v1::ForwardRequest forward = Keeping();
  v1::ForwardResponse solved;
  grpc::ClientContext first;
  first.AddMetadata("authorization", "Bearer " + alice);
  ASSERT_TRUE(stub->Forward(&first, forward, &solved).ok());
  const auto ask = [&](const std::string& token, const std::string& handle) {
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    v1::GradientResponse response;
    return stub->Gradient(&context, Along(forward, handle), &response);
  };
  const std::string handle = solved.trajectory_handle();
  EXPECT_TRUE(ask(alice, handle).ok());
  const grpc::Status strange = ask(bob, handle);
  EXPECT_EQ(strange.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(strange.error_message(), ask(bob, std::string(32, '0')).error_message())
      << "nothing tells that there is one";
  EXPECT_EQ(ask("", handle).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(ask(alice, handle).ok());
}

TEST_F(GradientHandleTest, GoesByTheV2ProtocolToo) {
  const auto v2 = inference::GRPCInferenceService::NewStub(
      grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  const v1::ForwardRequest forward = Keeping();
  const std::vector<float> cotangents = Normals(2 * kOutputs, 4);
  inference::ModelInferRequest request;
  request.set_model_name("net");
  auto* inputs = request.add_inputs();
  inputs->set_name("inputs");
  inputs->set_datatype("FP32");
  for (const int64_t extent : {int64_t{2}, kWidth}) inputs->add_shape(extent);
  request.add_raw_input_contents(forward.inputs().data());
  auto& parameters = *request.mutable_parameters();
  parameters["keep_trajectory"].set_bool_param(true);
  inference::ModelInferResponse response;
  grpc::ClientContext first;
  ASSERT_TRUE(v2->ModelInfer(&first, request, &response).ok());
  const std::string handle = response.parameters().at("trajectory_handle").string_param();
  const v1::GradientResponse expected = Answer(*stub_, Along(forward, handle));

  parameters.erase("keep_trajectory");
  parameters["trajectory_handle"].set_string_param(handle);
  auto* seed = request.add_inputs();
  seed->set_name("cotangent_outputs");
  seed->set_datatype("FP32");
  for (const int64_t extent : {int64_t{2}, kOutputs}) seed->add_shape(extent);
  request.add_raw_input_contents(reinterpret_cast<const char*>(cotangents.data()),
                                 cotangents.size() * sizeof(float));
  request.add_outputs()->set_name("grad_inputs");
  grpc::ClientContext second;
  const grpc::Status status = v2->ModelInfer(&second, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.raw_output_contents(0), expected.input_gradients().data());
  EXPECT_EQ(response.parameters().contains("solver"), false);

  request.add_outputs()->set_name("outputs");
  grpc::ClientContext third;
  EXPECT_THAT(v2->ModelInfer(&third, request, &response).error_message(),
              HasSubstr("outputs: expected gradients alone beside parameters.trajectory_handle"));
  request.mutable_outputs()->RemoveLast();
  parameters["solver"].set_string_param("newton");
  grpc::ClientContext fourth;
  EXPECT_THAT(v2->ModelInfer(&fourth, request, &response).error_message(),
              HasSubstr("parameters: expected none beside a trajectory"));
  parameters.erase("solver");
  parameters["trajectory_handle"].set_string_param(std::string(32, 'f'));
  grpc::ClientContext fifth;
  EXPECT_THAT(v2->ModelInfer(&fifth, request, &response).error_message(),
              HasSubstr("parameters.trajectory_handle: expected one that this server keeps"));
}

}  // namespace
}  // namespace deeppcr
