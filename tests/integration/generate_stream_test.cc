// SPDX-License-Identifier: Apache-2.0
// StreamGenerate, and calls that end early: cancelled, late, not read, drained.
#include <signal.h>

#include "tests/integration/generation_fixture.h"
#include "tests/testing/sanitizers.h"

namespace deeppcr::testing {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GenerateStreamTest : public GenerationFixture {};

// A request for half a minute of work or more, which one thread computes.
v1::GenerateRequest LongRequest(int32_t n = kMany) {
  v1::GenerateRequest request;
  request.set_model("long");
  request.mutable_input()->set_num_samples(n);
  v1::SolverOptions& options = *request.mutable_options();
  options.set_solver("newton");
  options.set_rtol(1e-7);
  options.set_shooting_interval(1);
  options.set_initial_guess(v1::INITIAL_GUESS_CONSTANT);
  options.set_jacobian_refresh(v1::JACOBIAN_REFRESH_EVERY_ITERATION);
  return request;
}

TEST_F(GenerateStreamTest, AStreamEndsWithTheBitsOfGenerate) {
  for (const bool ddpm : {true, false}) {
    v1::GenerateRequest request = ddpm ? DdpmRequest() : DdimRequest();
    request.set_request_id("streamed");
    request.mutable_options()->set_return_trajectory(true);
    v1::GenerateResponse expected;
    ASSERT_TRUE(Call(*stub_, request, &expected).ok());

    const Streamed streamed = Stream(*stub_, request);

    ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
    ASSERT_EQ(streamed.results.size(), 1u);
    EXPECT_TRUE(streamed.result_was_last);
    const v1::GenerateResponse& result = streamed.results.front();
    EXPECT_EQ(result.samples().SerializeAsString(), expected.samples().SerializeAsString());
    EXPECT_EQ(result.latents().SerializeAsString(), expected.latents().SerializeAsString());
    EXPECT_EQ(result.trajectory().SerializeAsString(), expected.trajectory().SerializeAsString());
    EXPECT_EQ(result.request_id(), "streamed");
    EXPECT_EQ(result.report().samples_size(), 3);
    EXPECT_EQ(result.report().plan_id(), expected.report().plan_id());
    EXPECT_GE(streamed.progress.size(), 1u);
    for (const v1::GenerateProgress& progress : streamed.progress) {
      EXPECT_EQ(progress.solver(), "newton");
      EXPECT_THAT(progress.sample(), ::testing::AllOf(::testing::Ge(0), ::testing::Lt(3)));
      EXPECT_GE(progress.iterations(), 1);
      EXPECT_EQ(progress.steps(), 0);
      EXPECT_EQ(progress.num_steps(), ddpm ? kSteps : 16);
      EXPECT_TRUE(std::isfinite(progress.update()));
    }
  }
}

TEST_F(GenerateStreamTest, AStreamTellsTheStepsOfTheSequentialSolver) {
  v1::GenerateRequest request = LongRequest(64);
  request.mutable_options()->Clear();
  request.mutable_options()->set_solver("sequential");

  const Streamed streamed = Stream(*stub_, request);

  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  ASSERT_EQ(streamed.results.size(), 1u);
  EXPECT_GE(streamed.progress.size(), 1u);
  for (const v1::GenerateProgress& progress : streamed.progress) {
    EXPECT_EQ(progress.solver(), "sequential");
    EXPECT_EQ(progress.iterations(), 0);
    EXPECT_THAT(progress.steps(), ::testing::AllOf(::testing::Gt(0), ::testing::Le(kLongSteps)));
    EXPECT_EQ(progress.num_steps(), kLongSteps);
  }
}

TEST_F(GenerateStreamTest, ACancelledCallStopsComputing) {
  for (const bool streamed : {false, true}) {
    const std::string method = streamed ? "StreamGenerate" : "Generate";
    const double before = std::max(
        0.0, Metric(*server_, "deeppcr_requests_total",
                    {"code=\"CANCELLED\"", "method=\"" + method + "\"", "model=\"long\""}));
    grpc::ClientContext context;
    grpc::Status status;
    std::thread client([&] {
      const auto stub = Connect(server_->address());
      if (!streamed) {
        v1::GenerateResponse response;
        status = stub->Generate(&context, LongRequest(), &response);
        return;
      }
      const auto reader = stub->StreamGenerate(&context, LongRequest());
      for (v1::StreamGenerateResponse event; reader->Read(&event);)
        EXPECT_TRUE(event.has_progress());
      status = reader->Finish();
    });
    EXPECT_TRUE(WaitForInFlight(*server_, method, 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ExpectServing();  // the server answers others meanwhile
    // Calls count until gRPC is done with them, a moment after their replies.
    EXPECT_TRUE(WaitForInFlight(*server_, method, 1)) << "the call is too short for this test";

    context.TryCancel();

    // The call counts as in progress until the work has stopped, which would take much longer if
    // the call were not cancelled.
    EXPECT_TRUE(WaitForInFlight(*server_, method, 0, 5));
    client.join();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED) << status.error_message();
    EXPECT_EQ(Metric(*server_, "deeppcr_requests_total",
                     {"code=\"CANCELLED\"", "method=\"" + method + "\"", "model=\"long\""}),
              before + 1);
    ExpectServing();
  }
}

TEST_F(GenerateStreamTest, DeadlinesStopTheWork) {
  for (const bool streamed : {false, true}) {
    const std::string method = streamed ? "StreamGenerate" : "Generate";
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
    grpc::Status status;
    if (streamed) {
      const auto reader = stub_->StreamGenerate(&context, LongRequest());
      for (v1::StreamGenerateResponse event; reader->Read(&event);)
        EXPECT_TRUE(event.has_progress());
      status = reader->Finish();
    } else {
      v1::GenerateResponse response;
      status = stub_->Generate(&context, LongRequest(), &response);
    }
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
    EXPECT_TRUE(WaitForInFlight(*server_, method, 0, 5));
  }
  ExpectServing();
}

TEST_F(GenerateStreamTest, StreamsThatAreDroppedLeaveNothingBehind) {
  for (int i = 0; i < 2000; ++i) {
    // Some iterations drop the whole connection.
    if (i % 200 == 0) stub_ = Connect(server_->address());
    grpc::ClientContext context;
    const auto reader =
        stub_->StreamGenerate(&context, i % 50 == 0 ? LongRequest(16) : DdpmRequest(2));
    v1::StreamGenerateResponse event;
    if (i % 4 == 1) {
      EXPECT_TRUE(reader->Read(&event)) << i;
    }
    context.TryCancel();
    EXPECT_THAT(reader->Finish().error_code(),
                AnyOf(grpc::StatusCode::CANCELLED, grpc::StatusCode::OK));
  }
  EXPECT_TRUE(WaitForInFlight(*server_, "StreamGenerate", 0));
  EXPECT_EQ(Metric(*server_, "deeppcr_queue_depth", {}), 0);
  ExpectServing();
}

TEST_F(GenerateStreamTest, AStreamThatIsNotReadIsDroppedInTheEnd) {
  const auto server = StartServer({"--reply_seconds=0.1"});
  ASSERT_NE(server, nullptr);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65535);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto stub = v1::DeepPcr::NewStub(
      grpc::CreateCustomChannel(server->address(), grpc::InsecureChannelCredentials(), arguments));
  v1::GenerateRequest request = LongRequest(16);
  request.mutable_options()->Clear();
  request.mutable_options()->set_solver("sequential");
  request.mutable_options()->set_return_trajectory(true);  // 200 KB
  grpc::ClientContext context;
  const auto reader = stub->StreamGenerate(&context, request);

  EXPECT_TRUE(WaitForMetric(*server, "deeppcr_replies_dropped_total", {}, 1));

  EXPECT_TRUE(WaitForInFlight(*server, "StreamGenerate", 0));
  v1::GenerateResponse response;
  EXPECT_TRUE(Call(*Connect(server->address()), DdpmRequest(), &response).ok());
}

// The probes of liveness are told of work that does not end, and that it has ended.
TEST_F(GenerateStreamTest, WorkThatDoesNotEndIsNoSignOfLife) {
  const auto server = StartServer({"--stuck_seconds=0.05"});
  ASSERT_NE(server, nullptr);
  const auto await = [&](const char* code) {
    std::string reply;
    for (int i = 0; i < 4000 && reply.find(code) == std::string::npos; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      reply = server->Http("GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    }
    return reply;
  };
  EXPECT_THAT(await(" 200 "), HasSubstr(" 200 "));
  const auto stub = Connect(server->address());
  grpc::ClientContext context;
  const auto reader = stub->StreamGenerate(&context, LongRequest());
  const std::string stuck = await(" 503 ");
  EXPECT_THAT(stuck, HasSubstr(" 503 "));
  EXPECT_THAT(stuck, HasSubstr("a batch has been computed for"));
  context.TryCancel();
  EXPECT_THAT(await(" 200 "), HasSubstr(" 200 "));
}

TEST_F(GenerateStreamTest, AStreamThatIsOpenIsDrained) {
  // Beside other work a sanitizer takes 24 samples longer than the drain may.
  constexpr int32_t kSamples = kSanitized ? 6 : 24;
  const auto server = StartServer({"--drain_seconds=120"});
  ASSERT_NE(server, nullptr);
  const auto stub = Connect(server->address());
  grpc::ClientContext context;
  const auto reader = stub->StreamGenerate(&context, LongRequest(kSamples));
  v1::StreamGenerateResponse event;
  ASSERT_TRUE(reader->Read(&event));
  ASSERT_TRUE(event.has_progress()) << "the call is too short for this test";

  server->Signal(SIGTERM);
  for (int i = 0; i < 2000 && server->Get("/readyz").find("503") == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  while (reader->Read(&event)) continue;
  EXPECT_TRUE(event.has_result());
  EXPECT_THAT(event.result().samples().shape(), ElementsAre(kSamples, 16));
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(server->Wait(30), 0) << server->Log();
}

TEST_F(GenerateStreamTest, AStreamThatTakesTooLongIsEndedByTheDrain) {
  const auto server = StartServer({"--drain_seconds=0.2"});
  ASSERT_NE(server, nullptr);
  const auto stub = Connect(server->address());
  grpc::ClientContext context;
  const auto reader = stub->StreamGenerate(&context, LongRequest());
  v1::StreamGenerateResponse event;
  ASSERT_TRUE(reader->Read(&event));

  server->Signal(SIGTERM);

  while (reader->Read(&event)) EXPECT_TRUE(event.has_progress());
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("shutting down"));
  EXPECT_EQ(server->Wait(20), 1) << server->Log();
}

}  // namespace
}  // namespace deeppcr::testing
