// SPDX-License-Identifier: Apache-2.0
// Streams of a real gRPC server whose messages come through a queue.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "inference/grpc_service.grpc.pb.h"
#include "server/rpc/call_queue.h"
#include "server/rpc/poll_policy.h"
#include "tests/server/rpc/queue_rig.h"
#include "tests/server/rpc/queue_server.h"

namespace deeppcr {
namespace {

using StreamService = inference::GRPCInferenceService::WithRawMethod_ModelStreamInfer<
    inference::GRPCInferenceService::Service>;

// A stream of messages that answers each with itself, and ends with a message of its own.
class EchoStream final : QueuedEvents {
 public:
  EchoStream(EventCounts& record, DuplexOfQueue* call) : record_(record), call_(*call) {
    call_.ReportTo(this);
  }
  void Start() { call_.Read(&message_); }
  void Answer() {
    record_.unanswered->fetch_sub(1);
    call_.Write(message_);
  }

 private:
  ~EchoStream() = default;

  // True for what a test answers.
  bool Kept() const { return TextOf(message_).find("keep") != std::string::npos; }

  void OnReadDone(bool ok) override {
    if (ok) {
      record_.unanswered->fetch_add(1);
      return Kept() ? record_.Count(&record_.arrived) : Answer();
    }
    if (broken_) return call_.Finish(grpc::Status::CANCELLED);
    call_.FinishWith(BytesOf("the end"));
  }
  void OnWriteDone(bool ok) override {
    broken_ = broken_ || !ok;
    message_.Clear();
    call_.Read(&message_);
  }
  void OnCancel() override { record_.Count(&record_.cancelled); }
  void OnDone() override {
    EventCounts& record = record_;
    delete this;
    record.Count(&record.done);
  }

  EventCounts& record_;
  DuplexOfQueue& call_;
  grpc::ByteBuffer message_;
  bool broken_ = false;
};

class StreamOfQueueTest : public ::testing::TestWithParam<QueueServer::Waiting> {
 protected:
  void SetUp() override { record_.unanswered = &server_.unanswered; }

  using Stream =
      grpc::ClientReaderWriter<inference::ModelInferRequest, inference::ModelStreamInferResponse>;

  std::unique_ptr<Stream> Open(grpc::ClientContext* context) {
    return stub_->ModelStreamInfer(context);
  }
  static inference::ModelInferRequest MessageOf(int number, size_t padding = 0) {
    // What comes back is read as a reply, whose first field is text too.
    inference::ModelInferRequest message;
    message.set_model_name(std::to_string(number) + std::string(padding, '.'));
    return message;
  }

  EventCounts record_;
  std::atomic<EchoStream*> newest_{nullptr};
  StreamService service_;
  QueueServer server_{&service_,
                      {Queued(&service_, &StreamService::RequestModelStreamInfer,
                              [this](DuplexOfQueue* call) {
                                auto* const stream = new EchoStream(record_, call);
                                newest_ = stream;
                                stream->Start();
                              })},
                      GetParam()};
  std::unique_ptr<inference::GRPCInferenceService::Stub> stub_ =
      inference::GRPCInferenceService::NewStub(
          grpc::CreateChannel(server_.address(), grpc::InsecureChannelCredentials()));
};

TEST_P(StreamOfQueueTest, ReadsAndWritesUntilTheEnd) {
  grpc::ClientContext context;
  const auto stream = Open(&context);
  inference::ModelStreamInferResponse reply;
  for (int i = 0; i < 200; ++i) {
    const size_t padding = i % 10 == 0 ? 100'000 : 0;
    ASSERT_TRUE(stream->Write(MessageOf(i, padding)));
    ASSERT_TRUE(stream->Read(&reply));
    EXPECT_EQ(reply.error_message(), MessageOf(i, padding).model_name());
  }
  EXPECT_EQ(record_.done, 0);
  stream->WritesDone();
  // No field has the number that its first byte stands for.
  EXPECT_FALSE(stream->Read(&reply));
  stream->Finish();
  EXPECT_TRUE(record_.Wait(&record_.done, 1));
  EXPECT_EQ(record_.cancelled, 0);
}

// The end comes before any message.
TEST_P(StreamOfQueueTest, MayBeEmpty) {
  for (int i = 0; i < 40; ++i) {
    grpc::ClientContext context;
    const auto stream = Open(&context);
    stream->WritesDone();
    inference::ModelStreamInferResponse reply;
    EXPECT_FALSE(stream->Read(&reply));
    stream->Finish();
  }
  EXPECT_TRUE(record_.Wait(&record_.done, 40));
  EXPECT_EQ(record_.cancelled, 0);
}

TEST_P(StreamOfQueueTest, EndsWhereverItIsCancelled) {
  constexpr int kClients = 6, kRounds = 50;
  std::vector<std::thread> clients;
  for (int t = 0; t < kClients; ++t)
    clients.emplace_back([this, t] {
      for (int round = 0; round < kRounds; ++round) {
        grpc::ClientContext context;
        const auto stream = Open(&context);
        const int written = (t + round) % 4;
        for (int i = 0; i < written; ++i) stream->Write(MessageOf(i));
        inference::ModelStreamInferResponse reply;
        if (written > 0 && round % 2 == 0) stream->Read(&reply);
        context.TryCancel();
        EXPECT_FALSE(stream->Finish().ok());
      }
    });
  for (std::thread& client : clients) client.join();
  server_.Shutdown();
  EXPECT_TRUE(server_.queue().Stop(std::chrono::seconds(30)));
  EXPECT_EQ(record_.done, record_.cancelled);
}

// The requests of a stream are looked for like calls, and worked on without.
TEST_P(StreamOfQueueTest, SleepsWhileItsRequestIsUnanswered) {
  grpc::ClientContext context;
  const auto stream = Open(&context);
  inference::ModelStreamInferResponse reply;
  const auto comes_to_wait = [&] {
    if (GetParam().busy_poll.count() == 0) return ComesToSleep();
    return ComesToLook([&] {
      for (int i = 0; i < PollPolicy::kLoneCalls; ++i) {
        EXPECT_TRUE(stream->Write(MessageOf(i)));
        EXPECT_TRUE(stream->Read(&reply));
      }
    });
  };
  EXPECT_TRUE(comes_to_wait());
  inference::ModelInferRequest message;
  message.set_model_name("keep");
  ASSERT_TRUE(stream->Write(message));
  ASSERT_TRUE(record_.Wait(&record_.arrived, 1));
  EXPECT_TRUE(ComesToSleep());
  newest_.load()->Answer();
  ASSERT_TRUE(stream->Read(&reply));
  EXPECT_TRUE(comes_to_wait());
}

INSTANTIATE_TEST_SUITE_P(SleepingOrLooking, StreamOfQueueTest,
                         ::testing::Values(QueueServer::Waiting{.leaders = 2},
                                           QueueServer::Waiting{
                                               .busy_poll = std::chrono::hours(1)}),
                         [](const ::testing::TestParamInfo<QueueServer::Waiting>& mode) {
                           return mode.param.busy_poll.count() > 0 ? "Looks" : "Sleeps";
                         });

}  // namespace
}  // namespace deeppcr
