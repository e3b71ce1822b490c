// SPDX-License-Identifier: Apache-2.0
// The KServe v2 protocol by its raw stubs: what its clients rely on, and what a stream may do to
// the server.
#include <csignal>
#include <thread>

#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/service_fixture.h"

namespace deeppcr {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Stub = inference::GRPCInferenceService::Stub;
using Stream = grpc::ClientReaderWriter<ModelInferRequest, ModelStreamInferResponse>;

std::unique_ptr<Stub> ConnectV2(const std::string& address) {
  return inference::GRPCInferenceService::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
}

ModelInferRequest Infer(int64_t n = 2, const std::string& model = "net",
                        const std::string& solver = "auto") {
  const v1::ForwardRequest same = MakeRequest(n, model);
  ModelInferRequest request;
  request.set_model_name(model);
  auto* input = request.add_inputs();
  input->set_name("inputs");
  input->set_datatype("FP32");
  *input->mutable_shape() = same.inputs().shape();
  request.add_raw_input_contents(same.inputs().data());
  (*request.mutable_parameters())["solver"].set_string_param(solver);
  return request;
}

class V2Test : public ServiceTest {
 protected:
  void SetUp() override {
    ServiceTest::SetUp();
    v2_ = ConnectV2(server_->address());
  }
  grpc::Status Send(const ModelInferRequest& request, ModelInferResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    return v2_->ModelInfer(&context, request, response);
  }
  inference::ModelStatistics Statistics() {
    inference::ModelStatisticsRequest request;
    request.set_name("net");
    inference::ModelStatisticsResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(v2_->ModelStatistics(&context, request, &response).ok());
    EXPECT_EQ(response.model_stats_size(), 1);
    return response.model_stats(0);
  }
  bool AwaitInFlight(double count) {
    for (int i = 0; i < 2000; ++i) {
      if (Metric("deeppcr_requests_in_flight{method=\"ModelStreamInfer\"}") == count) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  std::unique_ptr<Stub> v2_;
};

TEST_F(V2Test, AnswersWithTheBitsOfForward) {
  for (const std::string solver : {"sequential", "newton", "picard"}) {
    v1::ForwardRequest forward = MakeRequest(3);
    forward.mutable_options()->set_solver(solver);
    forward.mutable_options()->set_return_trajectory(true);
    v1::ForwardResponse expected;
    ASSERT_TRUE(Call(*stub_, forward, &expected).ok());
    ModelInferRequest request = Infer(3, "net", solver);
    request.set_id("r-" + solver);
    request.add_outputs()->set_name("trajectory");
    request.add_outputs()->set_name("outputs");

    ModelInferResponse response;
    const grpc::Status status = Send(request, &response);

    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.id(), "r-" + solver);
    EXPECT_EQ(response.model_version(), "1");
    ASSERT_EQ(response.raw_output_contents_size(), 2);
    EXPECT_EQ(response.raw_output_contents(0), expected.trajectory().data());
    EXPECT_EQ(response.raw_output_contents(1), expected.outputs().data());
    EXPECT_THAT(response.outputs(1).shape(), ElementsAre(3, kOutputs));
    EXPECT_EQ(response.parameters().at("solver").string_param(), solver);
    EXPECT_TRUE(response.parameters().at("converged").bool_param());
    EXPECT_EQ(response.parameters().at("plan_id").string_param(), expected.report().plan_id());
  }
}

TEST_F(V2Test, MistakesHaveTheCodesOfTheTable) {
  const auto code = [&](const std::function<void(ModelInferRequest*)>& spoil) {
    ModelInferRequest request = Infer();
    spoil(&request);
    ModelInferResponse response;
    return Send(request, &response);
  };
  const grpc::Status unknown = code([](auto* r) { r->set_model_name("nobody"); });
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code([](auto* r) { r->set_model_version("9"); }).error_code(),
            grpc::StatusCode::NOT_FOUND);
  for (const auto& spoil : std::initializer_list<std::function<void(ModelInferRequest*)>>{
           [](auto* r) { r->set_model_version("one"); },
           [](auto* r) { r->set_model_name("../net"); },
           [](auto* r) { r->mutable_inputs(0)->set_shape(0, 17); },
           [](auto* r) { r->mutable_inputs(0)->set_shape(0, -1); },
           [](auto* r) { r->mutable_inputs(0)->set_shape(0, (int64_t{1} << 31) + 2); },
           [](auto* r) { r->mutable_raw_input_contents(0)->pop_back(); },
           [](auto* r) { r->clear_inputs(); },
           [](auto* r) { (*r->mutable_parameters())["rtol"].set_double_param(5); },
           [](auto* r) { r->set_id(std::string(129, 'x')); },
       })
    EXPECT_EQ(code(spoil).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(
      code([](auto* r) { (*r->mutable_parameters())["timeout"].set_int64_param(1); }).error_code(),
      grpc::StatusCode::DEADLINE_EXCEEDED);
  const grpc::Status wrong = code([](auto* r) {
    r->set_id("seven");
    (*r->mutable_parameters())["rtol"].set_double_param(5);
  });
  EXPECT_THAT(wrong.error_message(), StartsWith("parameters.rtol: expected a number in"));
  EXPECT_THAT(wrong.error_message(), HasSubstr("(model \"net\", request \"seven\")"));
  // What only the model's plan can refuse is named in words of v2 too.
  const grpc::Status interval = code([](auto* r) {
    (*r->mutable_parameters())["solver"].set_string_param("quasi_newton");
    (*r->mutable_parameters())["shooting_interval"].set_int64_param(2);
  });
  EXPECT_THAT(interval.error_message(),
              StartsWith("parameters.shooting_interval: expected at most"));
  ExpectServing();
}

TEST_F(V2Test, MethodsThatAreNotThereSayWhy) {
  grpc::ClientContext memory, traces;
  inference::Unsupported reply;
  const grpc::Status no_memory = v2_->SystemSharedMemoryRegister(&memory, {}, &reply);
  EXPECT_EQ(no_memory.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(no_memory.error_message(), HasSubstr("send tensors in the request"));
  const grpc::Status no_traces = v2_->TraceSetting(&traces, {}, &reply);
  EXPECT_EQ(no_traces.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(no_traces.error_message(), HasSubstr("where the server is started"));
}

// The next requests are in the log, or are no more.
TEST_F(V2Test, TheLevelOfTheLogChangesWhileTheServerRuns) {
  const auto server = testing::ServerProcess::Start(repository_->path());
  ASSERT_NE(server, nullptr);
  const auto v2 = inference::GRPCInferenceService::NewStub(
      grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials()));
  const auto set = [&](uint32_t verbose) {
    inference::LogSettingsRequest request;
    (*request.mutable_settings())["log_verbose_level"].set_uint32_param(verbose);
    inference::LogSettingsResponse reply;
    grpc::ClientContext context;
    const grpc::Status status = v2->LogSettings(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(reply.settings().at("log_verbose_level").uint32_param(), verbose);
    EXPECT_TRUE(reply.settings().at("log_info").bool_param());
  };
  const auto stub = Connect(server->address());
  const auto ask = [&](const char* id) {
    v1::ForwardRequest request = MakeRequest();
    request.set_request_id(id);
    v1::ForwardResponse response;
    EXPECT_TRUE(Call(*stub, request, &response).ok());
  };
  ask("before");
  set(1);
  ask("during");
  EXPECT_THAT(server->LogOnceItHas("during"), HasSubstr("during"));
  set(0);
  ask("after");
  server->Signal(SIGTERM);
  ASSERT_EQ(server->Wait(20), 0);
  EXPECT_THAT(server->Log(), HasSubstr("\"during\""));
  EXPECT_THAT(server->Log(), Not(HasSubstr("\"before\"")));
  EXPECT_THAT(server->Log(), Not(HasSubstr("\"after\"")));
  EXPECT_THAT(server->Log(), HasSubstr("\"event\":\"log_level\""));
}

// perf_analyzer takes differences of these statistics, and uses the version whose queue.count grew.
TEST_F(V2Test, StatisticsGrowByWhatHappened) {
  const inference::ModelStatistics before = Statistics();
  ModelInferResponse response;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Send(Infer(3), &response).ok());
  EXPECT_FALSE(Send(Infer(3, "net", "none"), &response).ok());
  v1::ForwardResponse forward;
  ASSERT_TRUE(Call(*stub_, MakeRequest(2), &forward).ok());

  const inference::ModelStatistics after = Statistics();

  const auto& was = before.inference_stats();
  const auto& is = after.inference_stats();
  EXPECT_EQ(after.inference_count() - before.inference_count(), 17u);
  EXPECT_EQ(after.execution_count() - before.execution_count(), 6u);
  EXPECT_EQ(is.success().count() - was.success().count(), 6u);
  EXPECT_EQ(is.fail().count() - was.fail().count(), 1u);
  EXPECT_EQ(is.queue().count(), is.success().count());
  EXPECT_GT(is.compute_infer().ns(), was.compute_infer().ns());
  const auto parts = is.queue().ns() + is.compute_input().ns() + is.compute_infer().ns() +
                     is.compute_output().ns();
  EXPECT_GE(is.success().ns(), parts);
  EXPECT_GE(after.last_inference(), before.last_inference());
  uint64_t batches = 0, samples = 0;
  for (const auto& batch : after.batch_stats()) {
    batches += batch.compute_infer().count();
    samples += batch.compute_infer().count() * batch.batch_size();
  }
  EXPECT_EQ(batches, after.execution_count());
  EXPECT_EQ(samples, after.inference_count());
}

TEST_F(V2Test, AStreamAnswersInOrderAndSurvivesMistakes) {
  constexpr int kRequests = 300;  // several times what a stream may have open at once
  grpc::ClientContext context;
  const auto stream = v2_->ModelStreamInfer(&context);
  std::thread writer([&] {
    for (int i = 0; i < kRequests; ++i) {
      ModelInferRequest request = Infer(1 + i % 3, "net", i % 5 == 0 ? "newton" : "sequential");
      if (i % 7 == 3) request.set_model_name("nobody");
      request.set_id(std::to_string(i));
      EXPECT_TRUE(stream->Write(request));
    }
    stream->WritesDone();
  });
  for (int i = 0; i < kRequests; ++i) {
    ModelStreamInferResponse response;
    ASSERT_TRUE(stream->Read(&response)) << i;
    EXPECT_EQ(response.infer_response().id(), std::to_string(i));
    if (i % 7 == 3) {
      EXPECT_EQ(response.error_message(), "NOT_FOUND: model 'nobody' is not loaded");
      continue;
    }
    EXPECT_EQ(response.error_message(), "");
    EXPECT_EQ(response.infer_response().outputs(0).shape(0), 1 + i % 3);
    EXPECT_TRUE(response.infer_response().parameters().at("triton_final_response").bool_param());
  }
  writer.join();
  ModelStreamInferResponse none;
  EXPECT_FALSE(stream->Read(&none));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(V2Test, BytesThatAreNoRequestDoNotEndAStream) {
  grpc::ClientContext context;
  const auto stream = v2_->ModelStreamInfer(&context);
  ModelInferRequest many;
  for (int i = 0; i < 20000; ++i) many.add_inputs();
  ModelStreamInferResponse response;
  ASSERT_TRUE(stream->Write(many));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_THAT(response.error_message(), HasSubstr("expected at most 13312 fields"));
  // The server keeps no refused id, and so sends none back.
  ModelInferRequest named = Infer();
  named.set_id(std::string(1 << 20, 'x'));
  ASSERT_TRUE(stream->Write(named));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_THAT(response.error_message(), StartsWith("INVALID_ARGUMENT: id:"));
  EXPECT_EQ(response.infer_response().id(), "");
  ASSERT_TRUE(stream->Write(Infer()));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.error_message(), "");
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(V2Test, StreamsThatAreDroppedLeaveNothingBehind) {
  for (int i = 0; i < 60; ++i) {
    grpc::ClientContext context;
    const auto stream = v2_->ModelStreamInfer(&context);
    for (int k = 0; k < i; ++k) stream->Write(Infer(16, "rough", "newton"));
    if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(i % 11));
    context.TryCancel();
  }
  EXPECT_TRUE(AwaitInFlight(0));
  ExpectServing();
}

// A client writes and does not read: only its own requests wait.
TEST_F(V2Test, AStreamThatIsNotReadHoldsUpNobody) {
  grpc::ClientContext context;
  const auto stream = v2_->ModelStreamInfer(&context);
  ModelInferRequest request = Infer(8);  // 64 of them leave room in the model's queue
  request.add_outputs()->set_name("trajectory");
  std::thread writer([&] {
    for (int i = 0; i < 2000 && stream->Write(request); ++i) {
    }
  });
  EXPECT_TRUE(AwaitInFlight(64));
  for (int i = 0; i < 20; ++i) ExpectServing();
  EXPECT_LE(Metric("deeppcr_requests_in_flight{method=\"ModelStreamInfer\"}"), 64);
  context.TryCancel();
  writer.join();
  EXPECT_TRUE(AwaitInFlight(0));
}

TEST_F(V2Test, ReadinessOfModels) {
  const auto ready = [&](const std::string& name, const std::string& version) {
    inference::ModelReadyRequest request;
    request.set_name(name);
    request.set_version(version);
    inference::ModelReadyResponse response;
    grpc::ClientContext context;
    const grpc::Status status = v2_->ModelReady(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.ready();
  };
  EXPECT_TRUE(ready("net", ""));
  EXPECT_TRUE(ready("net", "1"));
  EXPECT_FALSE(ready("net", "2"));
  EXPECT_FALSE(ready("nobody", ""));
}

// Most streams are open and idle, and one works.
TEST_F(V2Test, OpenStreamsHoldUpNoExit) {
  const auto server =
      testing::ServerProcess::Start(repository_->path(), {"--drain_pause_seconds=1"});
  ASSERT_NE(server, nullptr);
  const auto stub = ConnectV2(server->address());
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 20; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(stub->ModelStreamInfer(contexts.back().get()));
    ASSERT_TRUE(streams.back()->Write(Infer()));
    ModelStreamInferResponse response;
    ASSERT_TRUE(streams.back()->Read(&response));
  }
  const auto ready = [&] {
    grpc::ClientContext context;
    inference::ServerReadyResponse response;
    EXPECT_TRUE(stub->ServerReady(&context, {}, &response).ok());
    return response.ready();
  };
  EXPECT_TRUE(ready());

  server->Signal(SIGTERM);

  bool became_unready = false;
  for (int i = 0; i < 100 && !became_unready; ++i) became_unready = !ready();
  EXPECT_TRUE(became_unready);
  ASSERT_TRUE(streams[0]->Write(Infer()));  // within the pause
  ModelStreamInferResponse response;
  ASSERT_TRUE(streams[0]->Read(&response));
  EXPECT_EQ(response.error_message(), "");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(server->Wait(20), 0) << server->Log();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
}

TEST_F(V2Test, ModelsAreUnloadedAndLoaded) {
  inference::RepositoryModelUnloadRequest unload;
  unload.set_model_name("rough");
  inference::RepositoryModelLoadRequest load;
  load.set_model_name("rough");
  grpc::ClientContext first, second, third, fourth;
  inference::RepositoryModelUnloadResponse unloaded;
  inference::RepositoryModelLoadResponse loaded;
  ASSERT_TRUE(v2_->RepositoryModelUnload(&first, unload, &unloaded).ok());
  inference::RepositoryIndexResponse index;
  ASSERT_TRUE(v2_->RepositoryIndex(&second, {}, &index).ok());
  EXPECT_EQ(index.models_size(), 1);
  ASSERT_TRUE(v2_->RepositoryModelLoad(&third, load, &loaded).ok());
  (*load.mutable_parameters())["file:1/model.safetensors"].set_bytes_param("x");
  const grpc::Status refused = v2_->RepositoryModelLoad(&fourth, load, &loaded);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("models are read from the server's repository"));
}

}  // namespace
}  // namespace deeppcr
