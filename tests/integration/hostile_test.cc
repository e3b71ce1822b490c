// SPDX-License-Identifier: Apache-2.0
// Requests that a hostile client may send (reference/serving.md 3.1): each gets its status and
// message, and the server keeps serving. request_codec_test covers the fields one by one; here the
// wire is real.
#include <functional>
#include <limits>
#include <thread>

#include "grpcpp/generic/generic_stub.h"
#include "tests/integration/service_fixture.h"

namespace deeppcr {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class HostileTest : public ServiceTest {
 protected:
  // Sends these bytes as the message.
  grpc::Status SendRaw(const std::string& method, const std::string& bytes,
                       const std::string& service = "deeppcr.v1.DeepPcr") {
    grpc::GenericStub stub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    grpc::CompletionQueue queue;
    const grpc::Slice slice(bytes);
    grpc::ByteBuffer body(&slice, 1), reply;
    const auto call = stub.PrepareUnaryCall(&context, "/" + service + "/" + method, body, &queue);
    call->StartCall();
    grpc::Status status;
    call->Finish(&reply, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  }

  void ExpectRefused(const v1::ForwardRequest& request, grpc::StatusCode code,
                     const std::string& message_part) {
    v1::ForwardResponse response;
    const grpc::Status status = Call(*stub_, request, &response);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(message_part));
    EXPECT_LE(status.error_message().size(), 1024u);
  }
};

TEST_F(HostileTest, NamesThatLeaveTheRepository) {
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("../../etc/passwd"),
        std::string("/etc"), std::string("net/1"), std::string("net\0x", 5), std::string("n et"),
        std::string(100000, 'a')}) {
    v1::ForwardRequest request = MakeRequest();
    request.set_model(name);
    ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "model: expected");
    v1::LoadModelRequest load;
    load.set_model(name);
    v1::LoadModelResponse loaded;
    grpc::ClientContext context;
    EXPECT_EQ(stub_->LoadModel(&context, load, &loaded).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
  ExpectServing();
}

TEST_F(HostileTest, UnknownModelsAndVersions) {
  v1::ForwardRequest request = MakeRequest(1, "nothing");
  ExpectRefused(request, grpc::StatusCode::NOT_FOUND, "'nothing'");
  request.set_model("net");
  request.set_version(2);
  ExpectRefused(request, grpc::StatusCode::NOT_FOUND, "version 2");
  request.set_version(-1);
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "version: expected");
  ExpectServing();
}

TEST_F(HostileTest, ShapesThatOverflow) {
  for (const int64_t extent :
       {int64_t{-1}, int64_t{0}, int64_t{17}, int64_t{1} << 31, (int64_t{1} << 32) + 2,
        int64_t{1} << 61, std::numeric_limits<int64_t>::max(),
        std::numeric_limits<int64_t>::min()}) {
    v1::ForwardRequest request = MakeRequest();
    request.mutable_inputs()->set_shape(0, extent);
    ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "inputs.shape: expected");
    request = MakeRequest();
    request.mutable_inputs()->set_shape(1, extent);
    ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "inputs.shape: expected");
  }
  v1::ForwardRequest request = MakeRequest();
  for (int i = 0; i < 1000; ++i) request.mutable_inputs()->add_shape(1);
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "rank 1002");
  ExpectServing();
}

TEST_F(HostileTest, ShapeAndBytesThatDisagree) {
  v1::ForwardRequest request = MakeRequest();
  request.mutable_inputs()->mutable_data()->resize(5);
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT,
                "inputs.data: expected 64 bytes for shape [2, 8], got 5 bytes");
  request.mutable_inputs()->mutable_data()->resize(1 << 20);
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "got 1048576 bytes");
  ExpectServing();
}

TEST_F(HostileTest, ValuesThatAreNotFinite) {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    v1::ForwardRequest request = MakeRequest();
    std::vector<float> values = Values(request.inputs());
    values[11] = value;
    SetTensor({2, kWidth}, values, request.mutable_inputs());
    ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "at flat index 11");
  }
  ExpectServing();
}

TEST_F(HostileTest, OptionsOutOfRange) {
  v1::ForwardRequest request = MakeRequest();
  request.mutable_options()->set_solver(std::string(1 << 20, 'x'));
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "options.solver: expected one of");
  request = MakeRequest();
  request.mutable_options()->set_max_iterations(std::numeric_limits<int32_t>::max());
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "options.max_iterations");
  request = MakeRequest();
  request.mutable_options()->set_initial_guess(static_cast<v1::InitialGuess>(1 << 30));
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "options.initial_guess");
  ExpectServing();
}

TEST_F(HostileTest, BytesThatAreNoMessage) {
  const std::vector<std::string> bodies = {
      std::string(100, '\xff'),                 // no valid tag
      std::string("\x0a\xff\xff\xff\xff\x0f"),  // a string that claims 4 GiB
      std::string("\x1a\x80", 2),               // cut within a length
      std::string("\x0a\x02\xff\xfe", 4),       // a name that is not UTF-8
  };
  for (const std::string& body : bodies) {
    for (const char* method : {"Forward", "Compare", "Gradient", "GetModel", "LoadModel"}) {
      const grpc::Status status = SendRaw(method, body);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
      EXPECT_THAT(status.error_message(), HasSubstr("request: expected a deeppcr.v1."));
    }
  }
  ExpectServing();
}

// Each field has a few bytes on the wire and a hundred in memory.
TEST_F(HostileTest, MillionsOfEmptyFields) {
  std::string options, unknown;
  for (int i = 0; i < 4 << 20; ++i) {
    options.append("\x1a\x00", 2);
    unknown.append("\xfa\x07\x00", 3);
  }
  const double before = Metric("process_resident_memory_bytes");
  ASSERT_GT(before, 0);
  const auto expect_refused = [](const grpc::Status& status, const char* why) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(why));
  };
  for (const char* method : {"Forward", "Compare", "Gradient"}) {
    expect_refused(SendRaw(method, options), "at most 13312 fields");
  }
  for (const char* method : {"Forward", "Compare", "Gradient", "ListModels", "UnloadModel"}) {
    expect_refused(SendRaw(method, unknown), "at most 13312 fields");
    expect_refused(SendRaw(method, unknown.substr(0, 3)), "field 127 of deeppcr.v1.");
  }
  for (const char* method : {"ModelInfer", "ModelReady"}) {
    expect_refused(SendRaw(method, unknown, "inference.GRPCInferenceService"),
                   "at most 13312 fields");
  }
  // The server may hold a few copies of a received message; parsed, one would take 400 MB.
  EXPECT_LT(Metric("process_resident_memory_bytes"), before + 200e6);
  ExpectServing();
}

TEST_F(HostileTest, DeeplyNestedUnknownFields) {
  // An unknown field of groups within groups: the parser must stop at its recursion limit.
  EXPECT_FALSE(SendRaw("Forward", std::string(100000, '\xfb')).ok());
  ExpectServing();
}

TEST_F(HostileTest, MethodsThatDoNotExist) {
  EXPECT_EQ(SendRaw("Forwards", "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  ExpectServing();
}

TEST_F(HostileTest, MessagesAboveTheLimit) {
  v1::ForwardRequest request = MakeRequest();
  request.mutable_inputs()->mutable_data()->resize((64 << 20) + 1);

  ExpectRefused(request, grpc::StatusCode::RESOURCE_EXHAUSTED, "16777216");

  ExpectServing();
}

TEST_F(HostileTest, CompressedMessagesAreRefusedBeforeTheyUnpack) {
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    v1::ForwardRequest request = MakeRequest();
    request.mutable_inputs()->mutable_data()->resize(60 << 20);
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    v1::ForwardResponse response;

    const grpc::Status status = stub_->Forward(&context, request, &response);

    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
  }
  ExpectServing();
}

TEST_F(HostileTest, LargeHeaders) {
  grpc::ClientContext context;
  context.AddMetadata("x-large", std::string(1 << 20, 'a'));
  v1::ForwardResponse response;

  EXPECT_EQ(stub_->Forward(&context, MakeRequest(), &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);

  // The server closes this connection, but no other one.
  stub_ = Connect(server_->address());
  ExpectServing();
}

TEST_F(HostileTest, RequestIdsThatAreNoText) {
  for (const std::string& id :
       {std::string(129, 'a'), std::string("a\nb"), std::string("\xc3\xa9")}) {
    v1::ForwardRequest forward = MakeRequest();
    forward.set_request_id(id);
    v1::ForwardResponse response;
    const grpc::Status status = Call(*stub_, forward, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("request_id: expected at most 128 printable"));
    EXPECT_THAT(status.error_message(), HasSubstr("(model \"net\")"));

    v1::GenerateRequest generate;
    generate.set_model("net");
    generate.set_request_id(id);
    v1::GenerateResponse sample;
    grpc::ClientContext unary, stream;
    EXPECT_THAT(stub_->Generate(&unary, generate, &sample).error_message(),
                HasSubstr("request_id: expected"));
    v1::StreamGenerateResponse event;
    const auto reader = stub_->StreamGenerate(&stream, generate);
    EXPECT_FALSE(reader->Read(&event));
    EXPECT_THAT(reader->Finish().error_message(), HasSubstr("request_id: expected"));
  }
  ExpectServing();
}

TEST_F(HostileTest, ComparisonsWithoutBound) {
  v1::CompareRequest request;
  request.set_model("net");
  *request.mutable_inputs() = MakeRequest(2).inputs();
  request.set_repetitions(std::numeric_limits<int32_t>::max());
  v1::CompareResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(stub_->Compare(&context, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);

  request.set_repetitions(1);
  for (int i = 0; i < 1000; ++i) request.add_options()->set_solver("auto");
  grpc::ClientContext other;
  const grpc::Status status = stub_->Compare(&other, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("at most 16 rows, got 1000"));
  ExpectServing();
}

TEST_F(HostileTest, HttpThatIsNoHttp) {
  for (const std::string& request :
       {std::string("\0\1\2\3\r\n\r\n", 8), std::string("GET /../../etc/passwd HTTP/1.0\r\n\r\n"),
        "GET /" + std::string(1 << 16, 'a') + " HTTP/1.0\r\n\r\n",
        std::string("POST /metrics HTTP/1.0\r\nContent-Length: 99999999999\r\n\r\n")}) {
    EXPECT_THAT(server_->Http(request), ::testing::Not(HasSubstr("200 OK")));
  }
  EXPECT_THAT(server_->Get("/livez"), HasSubstr("200 OK"));
  ExpectServing();
}

TEST_F(HostileTest, ACancelStorm) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto stub = Connect(server_->address());
      for (int i = 0; i < 200; ++i) {
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() +
                             std::chrono::microseconds((i * 37 + t * 11) % 1500));
        v1::ForwardResponse response;
        const grpc::Status status = stub->Forward(&context, MakeRequest(4), &response);
        if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
          // Who would wait for longer than its deadline is refused at once.
          EXPECT_THAT(status.error_message(), HasSubstr("its deadline is in"));
        } else {
          EXPECT_THAT(status.error_code(),
                      AnyOf(grpc::StatusCode::OK, grpc::StatusCode::DEADLINE_EXCEEDED))
              << status.error_message();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectServing();
  // The server has no requests left.
  for (int i = 0; i < 1000 && Metric("deeppcr_requests_in_flight{method=\"Forward\"}") != 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(Metric("deeppcr_requests_in_flight{method=\"Forward\"}"), 0);
  EXPECT_EQ(Metric("deeppcr_queue_depth{model=\"net\",version=\"1\"}"), 0);
}

}  // namespace
}  // namespace deeppcr
