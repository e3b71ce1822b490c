// SPDX-License-Identifier: Apache-2.0
// Streaming answers through a real gRPC server. Within one process a message counts as written when
// the client reads it, so a test decides how long a write is outstanding.
#include "server/rpc/responder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "deeppcr/v1/deeppcr.grpc.pb.h"
#include "tests/server/rpc/queue_server.h"

namespace deeppcr {
namespace {

using RawService = v1::DeepPcr::WithRawMethod_StreamGenerate<v1::DeepPcr::Service>;

grpc::ByteBuffer Bytes(const v1::StreamGenerateResponse& event) {
  const std::string bytes = event.SerializeAsString();
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}
grpc::ByteBuffer ProgressBytes(int32_t iterations, size_t padding = 0) {
  v1::StreamGenerateResponse event;
  event.mutable_progress()->set_iterations(iterations);
  event.mutable_progress()->set_solver(std::string(padding, 'x'));
  return Bytes(event);
}
grpc::ByteBuffer ReplyBytes() {
  v1::StreamGenerateResponse event;
  event.mutable_result()->set_request_id("the reply");
  return Bytes(event);
}

// Records the events of a call, and outlives it.
class Record {
 public:
  void Cancelled() { Set(&cancelled_); }
  void Done() { Set(&done_); }
  bool done() {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  bool WaitForCancelled() { return Wait(&cancelled_); }
  bool WaitForDone() { return Wait(&done_); }

 private:
  void Set(bool* what) {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(*what) << "gRPC said it twice";
    *what = true;
    changed_.notify_all();
  }
  bool Wait(const bool* what) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return *what; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool cancelled_ = false, done_ = false;
};

// A call that is deleted when gRPC is done with it, like the server's own calls: AddressSanitizer
// finds any later access.
class TestCall final : public CallEvents {
 public:
  TestCall(std::shared_ptr<Record> record, StreamOfQueue* call)
      : responder(*this, call), record_(std::move(record)) {}

  void OnCancelled() override { record_->Cancelled(); }
  void OnDone() override {
    const std::shared_ptr<Record> record = record_;
    delete this;
    record->Done();
  }

  StreamResponder responder;

 private:
  ~TestCall() = default;

  const std::shared_ptr<Record> record_;
};

struct Accepted {
  TestCall* call = nullptr;
  std::shared_ptr<Record> record;

  StreamResponder* operator->() const { return &call->responder; }
};

class TestService final : public RawService {
 public:
  std::vector<QueuedMethod> Methods() {
    return {Queued(this, &TestService::RequestStreamGenerate,
                   [this](StreamOfQueue* call) { Take(call); })};
  }

  Accepted Next() {
    std::unique_lock lock(mutex_);
    const bool came =
        arrived_.wait_for(lock, std::chrono::seconds(30), [&] { return !calls_.empty(); });
    if (!came) return {};
    const Accepted accepted = calls_.front();
    calls_.pop_front();
    return accepted;
  }

  // Runs before the handler returns. A test sets it before the call.
  std::function<void(StreamResponder&)> in_handler;

 private:
  void Take(StreamOfQueue* stream) {
    const auto record = std::make_shared<Record>();
    auto* call = new TestCall(record, stream);
    if (in_handler) in_handler(call->responder);
    const std::lock_guard lock(mutex_);
    calls_.push_back({call, record});
    arrived_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Accepted> calls_;
};

// The client's side of one call.
class Client {
 public:
  explicit Client(v1::DeepPcr::Stub& stub) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    reader_ = stub.StreamGenerate(&context_, v1::GenerateRequest());
  }
  ~Client() {
    context_.TryCancel();
    if (!finished_) Finish();
  }

  // The next message as text: the number of a progress message, "reply", or "end".
  std::string Read() {
    v1::StreamGenerateResponse event;
    if (!reader_->Read(&event)) return "end";
    if (event.has_progress()) return std::to_string(event.progress().iterations());
    return event.result().request_id() == "the reply" ? "reply" : "neither";
  }
  grpc::Status Finish() {
    finished_ = true;
    return reader_->Finish();
  }
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::StreamGenerateResponse>> reader_;
  bool finished_ = false;
};

class ResponderTest : public ::testing::Test {
 protected:
  // A client that limits how much it is sent before it reads.
  std::unique_ptr<v1::DeepPcr::Stub> OverTcp() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65535);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    return v1::DeepPcr::NewStub(grpc::CreateCustomChannel(
        server_.address(), grpc::InsecureChannelCredentials(), arguments));
  }

  TestService service_;
  QueueServer server_{&service_, service_.Methods()};
  std::unique_ptr<v1::DeepPcr::Stub> stub_ = v1::DeepPcr::NewStub(server_.InProcess());
};

// Waits until the client has read what was written; true if it has.
bool WaitForIdle(const Accepted& call) {
  for (int i = 0; i < 6000 && !call->idle(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return call->idle();
}

TEST_F(ResponderTest, SendsProgressAndThenTheReply) {
  Client client(*stub_);
  const Accepted call = service_.Next();
  ASSERT_NE(call.call, nullptr);
  EXPECT_TRUE(call->idle());
  for (int32_t i = 1; i <= 3; ++i) {
    call->Progress(ProgressBytes(i));
    EXPECT_EQ(client.Read(), std::to_string(i));
    EXPECT_TRUE(WaitForIdle(call));
  }
  EXPECT_FALSE(call.record->done());

  call->Respond(grpc::Status::OK, ReplyBytes());

  EXPECT_EQ(client.Read(), "reply");
  EXPECT_EQ(client.Read(), "end");
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_TRUE(call.record->WaitForDone());
}

TEST_F(ResponderTest, ProgressThatWaitsIsReplaced) {
  Client client(*stub_);
  const Accepted call = service_.Next();
  ASSERT_NE(call.call, nullptr);
  for (int32_t i = 1; i <= 1000; ++i) {
    call->Progress(ProgressBytes(i));
    EXPECT_FALSE(call->idle());
  }

  EXPECT_EQ(client.Read(), "1");
  EXPECT_EQ(client.Read(), "1000");

  EXPECT_TRUE(WaitForIdle(call));
  call->Progress(ProgressBytes(1001));
  EXPECT_EQ(client.Read(), "1001");
  call->Respond(grpc::Status::OK, ReplyBytes());
  EXPECT_EQ(client.Read(), "reply");
  EXPECT_EQ(client.Read(), "end");
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_TRUE(call.record->WaitForDone());
}

TEST_F(ResponderTest, AReplyWaitsForTheWriteAndReplacesTheProgressBehindIt) {
  Client client(*stub_);
  const Accepted call = service_.Next();
  ASSERT_NE(call.call, nullptr);
  call->Progress(ProgressBytes(1));
  call->Progress(ProgressBytes(2));

  call->Respond(grpc::Status::OK, ReplyBytes());

  call->Progress(ProgressBytes(3));  // without effect
  EXPECT_FALSE(call.record->done());
  EXPECT_EQ(client.Read(), "1");
  EXPECT_EQ(client.Read(), "reply");
  EXPECT_EQ(client.Read(), "end");
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_TRUE(call.record->WaitForDone());
}

TEST_F(ResponderTest, AnErrorComesInsteadOfAReply) {
  for (const bool outstanding : {false, true}) {
    Client client(*stub_);
    const Accepted call = service_.Next();
    ASSERT_NE(call.call, nullptr);
    if (outstanding) {
      call->Progress(ProgressBytes(1));
      call->Progress(ProgressBytes(2));
    }

    call->Respond(grpc::Status(grpc::StatusCode::ABORTED, "did not converge"), ReplyBytes());

    if (outstanding) {
      EXPECT_EQ(client.Read(), "1");
    }
    EXPECT_EQ(client.Read(), "end");
    const grpc::Status status = client.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
    EXPECT_EQ(status.error_message(), "did not converge");
    EXPECT_TRUE(call.record->WaitForDone());
  }
}

TEST_F(ResponderTest, AnswersBeforeTheHandlerReturns) {
  for (const bool ok : {true, false}) {
    service_.in_handler = [ok](StreamResponder& responder) {
      if (ok) responder.Progress(ProgressBytes(1));
      responder.Respond(ok ? grpc::Status::OK : grpc::Status(grpc::StatusCode::NOT_FOUND, "none"),
                        ReplyBytes());
    };
    Client client(*stub_);
    const Accepted call = service_.Next();
    ASSERT_NE(call.call, nullptr);
    if (ok) {
      EXPECT_EQ(client.Read(), "1");
      EXPECT_EQ(client.Read(), "reply");
    }
    EXPECT_EQ(client.Read(), "end");
    EXPECT_EQ(client.Finish().error_code(),
              ok ? grpc::StatusCode::OK : grpc::StatusCode::NOT_FOUND);
    EXPECT_TRUE(call.record->WaitForDone());
  }
}

TEST_F(ResponderTest, ACancelledCallEndsWithItsAnswerAndNotBefore) {
  for (const bool outstanding : {false, true}) {
    for (const bool ok : {false, true}) {
      Client client(*stub_);
      const Accepted call = service_.Next();
      ASSERT_NE(call.call, nullptr);
      if (outstanding) {
        call->Progress(ProgressBytes(1));
        call->Progress(ProgressBytes(2));
      }
      client.Cancel();
      ASSERT_TRUE(call.record->WaitForCancelled());
      // Every write into the broken stream ends too.
      EXPECT_TRUE(WaitForIdle(call));
      call->Progress(ProgressBytes(3));
      EXPECT_TRUE(WaitForIdle(call));
      EXPECT_FALSE(call.record->done());

      call->Respond(ok ? grpc::Status::OK : grpc::Status(grpc::StatusCode::CANCELLED, "cancelled"),
                    ReplyBytes());

      EXPECT_TRUE(call.record->WaitForDone());
      EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::CANCELLED);
    }
  }
}

TEST_F(ResponderTest, ACancelEndsACallThatWasAnsweredButNotRead) {
  Client client(*stub_);
  const Accepted call = service_.Next();
  ASSERT_NE(call.call, nullptr);
  call->Progress(ProgressBytes(1));
  call->Respond(grpc::Status::OK, ReplyBytes());
  EXPECT_FALSE(call.record->done());

  client.Cancel();

  EXPECT_TRUE(call.record->WaitForDone());
}

double ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  double total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

TEST_F(ResponderTest, AClientThatNeverReadsTakesNoMemory) {
  constexpr size_t kPadding = 256 << 10;
  constexpr int32_t kMessages = 4000;  // a gigabyte
  const auto stub = OverTcp();
  Client client(*stub);
  const Accepted call = service_.Next();
  ASSERT_NE(call.call, nullptr);
  for (int32_t i = 1; i <= 8; ++i) call->Progress(ProgressBytes(i, kPadding));
  const double before = ResidentBytes();
  ASSERT_GT(before, 0);

  for (int32_t i = 9; i <= kMessages; ++i) call->Progress(ProgressBytes(i, kPadding));

  EXPECT_LT(ResidentBytes(), before + 100e6);
  call->Respond(grpc::Status::OK, ReplyBytes());
  // The client reads the messages that were on their way by then, and the reply.
  int read = 0;
  std::string last;
  for (std::string next = client.Read(); next != "end"; next = client.Read()) {
    ++read;
    last = next;
  }
  EXPECT_LT(read, 100);
  EXPECT_EQ(last, "reply");
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_TRUE(call.record->WaitForDone());
}

TEST_F(ResponderTest, ManyThreadsMayTellAtOnce) {
  for (int round = 0; round < 20; ++round) {
    const auto stub = OverTcp();
    Client client(*stub);
    const Accepted call = service_.Next();
    ASSERT_NE(call.call, nullptr);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int32_t i = 0; i < 500; ++i) call->Progress(ProgressBytes(1000 * (t + 1) + i));
      });
    }
    std::thread reader([&] {
      std::vector<int> last(4, -1);
      std::string next = client.Read();
      EXPECT_NE(next, "reply") << "no progress came first";
      for (; next != "reply" && next != "end"; next = client.Read()) {
        const int value = std::stoi(next);
        int& before = last[static_cast<size_t>(value / 1000 - 1)];
        EXPECT_GT(value % 1000, before);  // each thread's messages are in order
        before = value % 1000;
      }
      EXPECT_EQ(next, "reply");
      EXPECT_EQ(client.Read(), "end");
    });
    for (std::thread& thread : threads) thread.join();
    call->Respond(grpc::Status::OK, ReplyBytes());
    reader.join();
    EXPECT_TRUE(client.Finish().ok());
    EXPECT_TRUE(call.record->WaitForDone());
  }
}

// A solve reports progress and answers while its client goes away: no order of events may lose the
// end.
TEST_F(ResponderTest, NoRaceOfWritesCancelAndAnswerLosesTheEnd) {
  const auto stub = OverTcp();
  for (int round = 0; round < 300; ++round) {
    Client client(*stub);
    const Accepted call = service_.Next();
    ASSERT_NE(call.call, nullptr);
    std::thread solve([&] {
      for (int32_t i = 0; i < 1 + round % 7; ++i) call->Progress(ProgressBytes(i));
      call->Respond(grpc::Status::OK, ReplyBytes());
    });
    if (round % 3 == 0) client.Read();
    client.Cancel();
    solve.join();
    EXPECT_TRUE(call.record->WaitForDone()) << round;
  }
}

}  // namespace
}  // namespace deeppcr
