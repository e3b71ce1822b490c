// SPDX-License-Identifier: Apache-2.0
// The operator's view: models, health, reflection, metrics, deadlines.
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "grpcpp/generic/generic_stub.h"
#include "tests/integration/service_fixture.h"
#include "tests/testing/trace_collector.h"

namespace deeppcr {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class OperationsTest : public ServiceTest {
 protected:
  // Sends one message to a method of any service; returns the first reply as bytes.
  std::pair<grpc::Status, std::string> RawCall(const std::string& method,
                                               const std::string& bytes) {
    grpc::GenericStub stub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    grpc::CompletionQueue queue;
    void* tag = nullptr;
    bool ok = false;
    const auto next = [&] { return queue.Next(&tag, &ok) && ok; };
    const auto call = stub.PrepareCall(&context, method, &queue);
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer body(&slice, 1);
    grpc::ByteBuffer reply;
    call->StartCall(nullptr);
    next();
    call->WriteLast(body, grpc::WriteOptions(), nullptr);
    next();
    call->Read(&reply, nullptr);
    const bool got = next();
    grpc::Status status;
    call->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
    std::string text;
    std::vector<grpc::Slice> slices;
    if (got && reply.Dump(&slices).ok()) {
      for (const grpc::Slice& s : slices) {
        text.append(reinterpret_cast<const char*>(s.begin()), s.size());
      }
    }
    return {status, text};
  }

  // Sends a HealthCheckRequest with `service` as its first field; returns the reply's status field,
  // or -1 if the service is unknown.
  int Health(const std::string& service) {
    std::string request =
        service.empty() ? "" : "\x0a" + std::string(1, static_cast<char>(service.size())) + service;
    const auto [status, reply] = RawCall("/grpc.health.v1.Health/Check", request);
    if (status.error_code() == grpc::StatusCode::NOT_FOUND) return -1;
    return reply.size() == 2 ? reply[1] : 0;
  }
  static constexpr int kServing = 1;

  v1::ListModelsResponse List() {
    v1::ListModelsResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->ListModels(&context, {}, &response).ok());
    return response;
  }
  v1::GetModelResponse Describe(const std::string& model, bool with_plan_file) {
    v1::GetModelRequest request;
    request.set_model(model);
    request.set_with_plan_file(with_plan_file);
    v1::GetModelResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->GetModel(&context, request, &response).ok());
    return response;
  }
  grpc::Status Load(const std::string& model, int64_t version, v1::LoadModelResponse* response) {
    v1::LoadModelRequest request;
    request.set_model(model);
    request.set_version(version);
    grpc::ClientContext context;
    return stub_->LoadModel(&context, request, response);
  }
  grpc::Status Unload(const std::string& model, int64_t version) {
    v1::UnloadModelRequest request;
    request.set_model(model);
    request.set_version(version);
    v1::UnloadModelResponse response;
    grpc::ClientContext context;
    return stub_->UnloadModel(&context, request, &response);
  }
};

TEST_F(OperationsTest, ListsAndDescribesModels) {
  const v1::ListModelsResponse list = List();
  ASSERT_EQ(list.models_size(), 2);
  EXPECT_EQ(list.models(0).name(), "net");
  EXPECT_EQ(list.models(0).state(), v1::MODEL_STATE_READY);
  EXPECT_EQ(list.models(0).num_layers(), kLayers);

  v1::GetModelRequest request;
  request.set_model("net");
  v1::GetModelResponse model;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->GetModel(&context, request, &model).ok());

  EXPECT_EQ(model.input_dim(), kWidth);
  EXPECT_EQ(model.output_dim(), kOutputs);
  EXPECT_EQ(model.max_batch_size(), 16);
  EXPECT_EQ(model.weights_sha256().size(), 64u);
  EXPECT_GT(model.memory_bytes(), 0);
  EXPECT_THAT(model.config_json(), HasSubstr("num_layers"));
  ASSERT_GT(model.plan().entries_size(), 0);
  EXPECT_GT(model.plan().entries(0).sequential_seconds(), 0);
  EXPECT_EQ(model.plan().entries(model.plan().entries_size() - 1).max_samples(), 16);
}

TEST_F(OperationsTest, APlanIsGivenAsAFileAndTakenOverByAReload) {
  const v1::GetModelResponse before = Describe("rough", true);
  EXPECT_THAT(before.plan_file(), HasSubstr("\"" + before.plan().device_class() + "\""));
  EXPECT_THAT(before.plan_file(), HasSubstr("\"build\": \"" + before.plan().build() + "\""));
  EXPECT_EQ(Describe("rough", false).plan_file(), "");

  v1::LoadModelResponse loaded;
  ASSERT_TRUE(Load("rough", 0, &loaded).ok());

  const v1::GetModelResponse after = Describe("rough", true);
  EXPECT_EQ(after.plan().source(), "serving");
  EXPECT_TRUE(after.plan().from_cache());
  EXPECT_EQ(after.plan().id(), before.plan().id());
  EXPECT_EQ(after.plan_file(), before.plan_file());
}

TEST_F(OperationsTest, LoadsReloadsAndUnloadsUnderRequests) {
  const std::string directory = repository_->File("extra/1");
  testing::WriteRandomModel(directory, {.layers = 16});
  v1::LoadModelResponse loaded;
  ASSERT_TRUE(Load("extra", 0, &loaded).ok());
  EXPECT_EQ(loaded.summary().version(), 1);
  EXPECT_EQ(loaded.summary().state(), v1::MODEL_STATE_READY);
  EXPECT_GT(loaded.seconds(), 0);
  EXPECT_EQ(Health("extra"), kServing);
  v1::ForwardResponse before;
  ASSERT_TRUE(Call(*stub_, MakeRequest(1, "extra"), &before).ok());

  // A torn reload keeps the old model.
  const auto size = std::filesystem::file_size(directory + "/model.safetensors");
  std::filesystem::resize_file(directory + "/model.safetensors", size - 1);
  const grpc::Status torn = Load("extra", 1, &loaded);
  EXPECT_EQ(torn.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << torn.error_message();
  EXPECT_THAT(torn.error_message(), HasSubstr("model.safetensors"));
  v1::ForwardResponse still;
  ASSERT_TRUE(Call(*stub_, MakeRequest(1, "extra"), &still).ok());
  EXPECT_EQ(still.outputs().data(), before.outputs().data());

  // A reload with other weights leaves no gap.
  testing::WriteRandomModel(directory, {.layers = 16, .seed = 2});
  std::atomic<bool> stop{false};
  std::thread client([&] {
    const auto stub = Connect(server_->address());
    while (!stop) {
      v1::ForwardResponse response;
      const grpc::Status status = Call(*stub, MakeRequest(1, "extra"), &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
    }
  });
  EXPECT_TRUE(Load("extra", 1, &loaded).ok());
  stop = true;
  client.join();
  v1::ForwardResponse after;
  ASSERT_TRUE(Call(*stub_, MakeRequest(1, "extra"), &after).ok());
  EXPECT_NE(after.outputs().data(), before.outputs().data());

  ASSERT_TRUE(Unload("extra", 0).ok());
  EXPECT_EQ(Call(*stub_, MakeRequest(1, "extra"), &after).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Unload("extra", 0).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Health("extra"), -1) << "a name that is gone is unknown again";
  EXPECT_EQ(List().models_size(), 2);
}

TEST_F(OperationsTest, HealthHasNames) {
  EXPECT_EQ(Health(""), kServing);
  EXPECT_EQ(Health("net"), kServing);
  EXPECT_EQ(Health("deeppcr.v1.DeepPcr"), kServing);
  EXPECT_EQ(Health("nothing"), -1);
}

TEST_F(OperationsTest, ReflectionListsTheService) {
  // ServerReflectionRequest with list_services (field 7) set to "".
  const auto [status, reply] = RawCall(
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", std::string("\x3a\x00", 2));

  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(reply, HasSubstr("deeppcr.v1.DeepPcr"));
  EXPECT_THAT(reply, HasSubstr("grpc.health.v1.Health"));
}

TEST_F(OperationsTest, HttpAnswersProbes) {
  EXPECT_THAT(server_->Get("/livez"), HasSubstr("200 OK"));
  EXPECT_THAT(server_->Get("/readyz"), HasSubstr("200 OK"));
  EXPECT_EQ(Metric("deeppcr_ready"), 1);
  EXPECT_EQ(Metric("deeppcr_models{state=\"ready\"}"), 2);
  EXPECT_EQ(Metric("deeppcr_models{state=\"failed\"}"), 0);
  EXPECT_THAT(server_->Get("/"), HasSubstr("404 Not Found"));
  EXPECT_EQ(Health("liveness"), 1);
  EXPECT_THAT(server_->Http("DELETE /metrics HTTP/1.0\r\n\r\n"), HasSubstr("405"));
  EXPECT_THAT(server_->Http("HEAD /metrics HTTP/1.0\r\n\r\n"), Not(HasSubstr("deeppcr_")));
  EXPECT_EQ(testing::RunProgram(DEEPPCR_SERVER_BINARY, {"--probe=" + server_->address()}).exit_code,
            0);
}

TEST_F(OperationsTest, MetricsFollowRequests) {
  const std::string forward =
      "deeppcr_requests_total{code=\"OK\",method=\"Forward\",model=\"net\"}";
  const std::string refused =
      "deeppcr_requests_total{code=\"INVALID_ARGUMENT\",method=\"Forward\",model=\"net\"}";
  v1::ForwardRequest request = MakeRequest();
  request.mutable_options()->set_solver("newton");
  v1::ForwardResponse response;
  ASSERT_TRUE(Call(*stub_, request, &response).ok());
  const double forward_before = Metric(forward), refused_before = Metric(refused);
  ASSERT_GE(forward_before, 1);
  ASSERT_GE(refused_before, 0);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Call(*stub_, request, &response).ok());
  request.mutable_options()->set_rtol(5);
  Call(*stub_, request, &response);

  EXPECT_EQ(Metric(forward), forward_before + 3);
  EXPECT_EQ(Metric(refused), refused_before + 1);
  for (const char* name : {"deeppcr_request_duration_seconds", "deeppcr_queue_duration_seconds",
                           "deeppcr_solve_duration_seconds"}) {
    EXPECT_GE(Metric(std::string(name) +
                     "_count{method=\"Forward\",model=\"net\",solver=\"newton\",version=\"1\"}"),
              3)
        << name;
  }
  for (const char* name :
       {"deeppcr_iterations", "deeppcr_dependent_stages", "deeppcr_error_estimate"}) {
    EXPECT_GE(Metric(std::string(name) + "_count{model=\"net\",solver=\"newton\",version=\"1\"}"),
              6)
        << name;
  }
  EXPECT_GE(Metric("deeppcr_batch_samples_count{model=\"net\",version=\"1\"}"), 1);
  EXPECT_EQ(Metric("deeppcr_model_load_seconds_count{model=\"net\",version=\"1\"}"), 1);
  EXPECT_GT(Metric("deeppcr_model_memory_bytes{model=\"net\",version=\"1\"}"), 0);
  EXPECT_GT(Metric("process_resident_memory_bytes"), 1e6);
}

// The stages of a request follow one another, in the metrics and in the trace.
TEST_F(OperationsTest, StagesAreMeasuredAndTraced) {
  const testing::TemporaryDirectory folder;
  const auto server = testing::ServerProcess::Start(
      repository_->path(), {"--trace_file=" + folder.File("trace"), "--trace_rate=0"});
  ASSERT_NE(server, nullptr);
  const auto stub = Connect(server->address());
  const std::string trace_id = "4bf92f3577b34da6a3ce929d0e0e4736";
  for (const char* flags : {"00", "01"}) {
    grpc::ClientContext context;
    context.AddMetadata("traceparent", "00-" + trace_id + "-00f067aa0ba902b7-" + flags);
    v1::ForwardRequest request = MakeRequest();
    request.set_request_id(flags);
    v1::ForwardResponse response;
    ASSERT_TRUE(stub->Forward(&context, request, &response).ok());
  }
  server->Signal(SIGTERM);
  // The last reply may still be on its way out of gRPC when its client has it.
  ASSERT_EQ(server->Wait(20), 0);
  std::ifstream file(folder.File("trace"));
  const std::string trace{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(trace, HasSubstr("\"request_id\":\"01\""));
  EXPECT_THAT(trace, Not(HasSubstr("\"request_id\":\"00\"")));
  EXPECT_THAT(trace, HasSubstr("\"trace_id\":\"" + trace_id + "\""));
  size_t at = 0;
  for (const char* stage : {"recv", "queue", "encode", "solve", "decode", "send"}) {
    at = trace.find("\"name\":\"" + std::string(stage) + "\"", at);
    EXPECT_NE(at, std::string::npos) << stage;
  }
  v1::ForwardResponse response;
  ASSERT_TRUE(Call(*stub_, MakeRequest(), &response).ok());
  for (const char* stage : {"recv", "queue", "encode", "solve", "decode", "send"}) {
    const std::string series = "deeppcr_stage_duration_seconds_count{model=\"net\",stage=\"" +
                               std::string(stage) + "\",version=\"1\"}";
    // A request is counted when gRPC is done with its reply, a moment after the client has it.
    for (int i = 0; i < 1000 && Metric(series) < 1; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_GE(Metric(series), 1) << stage;
    EXPECT_GT(Metric("deeppcr_stage_duration_seconds_sum{model=\"net\",stage=\"" +
                     std::string(stage) + "\",version=\"1\"}"),
              0)
        << stage;
  }
}

TEST_F(OperationsTest, ASlowRequestIsALineWhateverTheRate) {
  const auto server = testing::ServerProcess::Start(
      repository_->path(), {"--access_log_rate=0", "--slow_seconds=0.000001"});
  ASSERT_NE(server, nullptr);
  v1::ForwardRequest request = MakeRequest();
  request.set_request_id("of-a-snail");
  v1::ForwardResponse response;
  ASSERT_TRUE(Call(*Connect(server->address()), request, &response).ok());
  const std::string log = server->LogOnceItHas("of-a-snail");
  const size_t at = log.find("\"level\":\"warn\",\"event\":\"slow_request\"");
  ASSERT_NE(at, std::string::npos);
  EXPECT_THAT(log.substr(at, log.find('\n', at) - at), HasSubstr("\"peer\":\"ipv4:127.0.0.1:"));
}

// The same goes to a collector, below the caller's span.
TEST_F(OperationsTest, TracesGoToACollector) {
  testing::TraceCollector collector;
  const auto server = testing::ServerProcess::Start(
      repository_->path(), {"--otlp_traces_endpoint=" + collector.endpoint(), "--trace_rate=0"});
  ASSERT_NE(server, nullptr);
  const auto stub = Connect(server->address());
  const std::string trace_id = "4bf92f3577b34da6a3ce929d0e0e4736";
  grpc::ClientContext context;
  context.AddMetadata("traceparent", "00-" + trace_id + "-00f067aa0ba902b7-01");
  v1::ForwardResponse response;
  ASSERT_TRUE(stub->Forward(&context, MakeRequest(), &response).ok());

  const std::vector<nlohmann::json> spans = collector.Spans(7);
  ASSERT_EQ(spans.size(), 7u);
  EXPECT_EQ(spans[0]["name"], "deeppcr.v1.DeepPcr/Forward");
  EXPECT_EQ(spans[0]["traceId"], trace_id);
  EXPECT_EQ(spans[0]["parentSpanId"], "00f067aa0ba902b7");
  std::vector<std::string> stages;
  for (size_t i = 1; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i]["parentSpanId"], spans[0]["spanId"]);
    stages.push_back(spans[i]["name"]);
  }
  EXPECT_THAT(stages, ::testing::ElementsAre("recv", "queue", "encode", "solve", "decode", "send"));
}

TEST_F(OperationsTest, HistogramsHoldOnlyWhatHappened) {
  const std::string labels =
      "_count{method=\"Compare\",model=\"net\",solver=\"several\",version=\"1\"}";
  v1::CompareRequest request;
  request.set_model("net");
  *request.mutable_inputs() = MakeRequest(1).inputs();
  request.set_repetitions(1);
  v1::CompareResponse response;
  grpc::ClientContext good;
  ASSERT_TRUE(stub_->Compare(&good, request, &response).ok());
  const double queued = Metric("deeppcr_queue_duration_seconds" + labels);
  const double solved = Metric("deeppcr_solve_duration_seconds" + labels);
  ASSERT_GE(solved, 1);
  SetTensor({1, kWidth}, std::vector<float>(kWidth, std::nanf("")), request.mutable_inputs());

  grpc::ClientContext bad;
  ASSERT_EQ(stub_->Compare(&bad, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);

  // The request waited for a worker, which refused it before computing.
  EXPECT_EQ(Metric("deeppcr_queue_duration_seconds" + labels), queued + 1);
  EXPECT_EQ(Metric("deeppcr_solve_duration_seconds" + labels), solved);
}

TEST_F(OperationsTest, ShadowPairsMeasureSpeedupAndError) {
  v1::ForwardRequest request = MakeRequest();
  request.mutable_options()->set_solver("newton");
  const std::string labels =
      "_count{method=\"Forward\",model=\"net\",solver=\"newton\",version=\"1\"}";
  for (int i = 0; i < 1000 && Metric("deeppcr_speedup_ratio" + labels) < 1; ++i) {
    v1::ForwardResponse response;
    ASSERT_TRUE(Call(*stub_, request, &response).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GE(Metric("deeppcr_speedup_ratio" + labels), 1);
  EXPECT_EQ(Metric("deeppcr_speedup_ratio" + labels),
            Metric("deeppcr_shadow_relative_error" + labels));
  EXPECT_EQ(Metric("deeppcr_shadow_runs_total{outcome=\"failed\"}"), 0);
}

// A request that leaves the choice to the server is told apart, whichever solver that is.
TEST_F(OperationsTest, PairsTellWhoChoseTheSolver) {
  for (const auto& [chosen, solver] :
       {std::pair{"auto", "auto"}, {"auto", ""}, {"request", "sequential"}}) {
    // A server of its own, without the pairs of other tests.
    const auto server = testing::ServerProcess::Start(repository_->path(), {"--shadow_rate=1"});
    ASSERT_NE(server, nullptr);
    v1::ForwardRequest request = MakeRequest();
    request.mutable_options()->set_solver(solver);
    v1::ForwardResponse response;
    ASSERT_TRUE(Call(*Connect(server->address()), request, &response).ok());
    const std::string wanted = std::string("deeppcr_pairs_total{chosen=\"") + chosen +
                               "\",method=\"Forward\",model=\"net\"";
    bool found = false;
    for (int i = 0; i < 2000 && !found; ++i) {
      found = server->Get("/metrics").find(wanted) != std::string::npos;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_TRUE(found) << chosen << " " << solver;
  }
}

TEST_F(OperationsTest, DeadlinesAndCancelsStopTheWork) {
  testing::WriteRandomModel(repository_->File("long/1"), {.layers = 2048});
  v1::LoadModelResponse loaded;
  const grpc::Status load = Load("long", 0, &loaded);
  ASSERT_TRUE(load.ok()) << load.error_message();
  v1::CompareResponse response;

  grpc::ClientContext late;
  late.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  EXPECT_EQ(stub_->Compare(&late, LongComparison("long"), &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  grpc::ClientContext cancelled;
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    cancelled.TryCancel();
  });
  EXPECT_EQ(stub_->Compare(&cancelled, LongComparison("long"), &response).error_code(),
            grpc::StatusCode::CANCELLED);
  canceller.join();

  // The thread of comparisons is free again: nothing is in flight, and the codes are counted.
  for (int i = 0; i < 2000 && Metric("deeppcr_requests_in_flight{method=\"Compare\"}") != 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(Metric("deeppcr_requests_in_flight{method=\"Compare\"}"), 0);
  const auto count = [&](const std::string& code) {
    return Metric("deeppcr_requests_total{code=\"" + code +
                  "\",method=\"Compare\",model=\"long\"}");
  };
  // The client's own clock may cancel a call just before the server's deadline for the call.
  EXPECT_EQ(count("CANCELLED") + count("DEADLINE_EXCEEDED"), 2);
  EXPECT_GE(count("CANCELLED"), 1);
  EXPECT_TRUE(Unload("long", 0).ok());
  ExpectServing();
}

TEST(OneModelTest, AFolderAsAHubHandsItOutIsServedUnderAName) {
  const testing::TemporaryDirectory snapshot;
  testing::WriteRandomModel(snapshot.path(), {});
  std::filesystem::create_directories(snapshot.File(".cache/huggingface"));
  std::ofstream(snapshot.File("README.md")) << "# A model";
  const auto server =
      testing::ServerProcess::Start("", {"--model_dir=" + snapshot.path(), "--model_name=robot",
                                         "--model_control=poll", "--poll_seconds=1"});
  ASSERT_NE(server, nullptr);
  EXPECT_TRUE(server->ready());
  const auto stub = Connect(server->address());
  v1::ForwardResponse response;
  EXPECT_TRUE(Call(*stub, MakeRequest(2, "robot"), &response).ok());
  EXPECT_EQ(Call(*stub, MakeRequest(2, "net"), &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
  grpc::ClientContext context;
  v1::LoadModelRequest load;
  load.set_model("robot");
  v1::LoadModelResponse loaded;
  EXPECT_TRUE(stub->LoadModel(&context, load, &loaded).ok());
  EXPECT_EQ(loaded.summary().version(), 1);

  // A look at the folder finds another model there.
  testing::WriteRandomModel(snapshot.path(), {.seed = 2});
  const std::vector<float> before = Values(response.outputs());
  bool changed = false;
  for (int i = 0; i < 200 && !changed; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ASSERT_TRUE(Call(*stub, MakeRequest(2, "robot"), &response).ok());
    changed = Values(response.outputs()) != before;
  }
  EXPECT_TRUE(changed);
}

}  // namespace
}  // namespace deeppcr
