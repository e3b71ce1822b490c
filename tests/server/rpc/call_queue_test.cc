// SPDX-License-Identifier: Apache-2.0
// Calls of a real gRPC server that come through a queue.
#include "server/rpc/call_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "deeppcr/v1/deeppcr.grpc.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "server/rpc/poll_policy.h"
#include "server/rpc/responder.h"
#include "tests/server/rpc/queue_rig.h"
#include "tests/server/rpc/queue_server.h"

namespace deeppcr {
namespace {

using std::chrono::milliseconds;
using ForwardService = v1::DeepPcr::WithRawMethod_Forward<v1::DeepPcr::Service>;

constexpr char kForward[] = "/deeppcr.v1.DeepPcr/Forward";
constexpr int kMaxMessage = QueueServer::kMaxMessage, kThreads = QueueServer::kThreads;

// A call that is gone once it is done, like those of the server.
class EchoCall final : public CallEvents {
 public:
  EchoCall(EventCounts& record, UnaryCallOfQueue* call)
      : record_(record),
        request(TextOf(*call->request())),
        rpc(call->rpc()),
        responder_(*this, call) {
    record.unanswered->fetch_add(1);
  }

  void Answer(const grpc::Status& status, grpc::ByteBuffer reply) {
    record_.unanswered->fetch_sub(1);
    responder_.Respond(status, std::move(reply));
  }

  void OnCancelled() override {
    EXPECT_FALSE(std::exchange(cancelled_, true)) << "told twice";
    record_.Count(&record_.cancelled);
  }
  void OnDone() override {
    EventCounts& record = record_;
    delete this;
    record.Count(&record.done);
  }

 private:
  ~EchoCall() = default;

  EventCounts& record_;
  bool cancelled_ = false;

 public:
  const std::string request;
  grpc::ServerContext* const rpc;

 private:
  UnaryResponder responder_;
};

// The queue sleeps where it waits, or looks for requests first.
class CallQueueTest : public ::testing::TestWithParam<std::chrono::microseconds> {
 protected:
  bool looks() const { return GetParam().count() > 0; }

  // Calls until it looks.
  void SetUp() override {
    record_.unanswered = &server_.unanswered;
    if (!looks()) return;
    int calls = 0;
    ASSERT_TRUE(ComesToLook([&] {
      for (int i = 0; i < PollPolicy::kLoneCalls; ++i, ++calls) Call("first");
    }));
    ASSERT_TRUE(record_.Wait(&record_.done, calls));
    record_.arrived = record_.done = 0;
  }
  // Waits as its mode has it once nothing is unanswered.
  bool ComesToWait() {
    return looks() ? ComesToLook([this] { Call("another"); }) : ComesToSleep();
  }

  // Echoes calls, but for those that a test answers by itself.
  void Take(UnaryCallOfQueue* queued) {
    if (in_handler) in_handler(*queued);
    auto* call = new EchoCall(record_, queued);
    if (call->request.starts_with("keep")) {
      const std::lock_guard lock(record_.mutex);
      kept_.push_back(call);
    } else {
      call->Answer(grpc::Status::OK, BytesOf(call->request));
    }
    record_.Count(&record_.arrived);
  }
  EchoCall* Kept() {
    const std::lock_guard lock(record_.mutex);
    EchoCall* call = kept_.front();
    kept_.pop_front();
    return call;
  }

  struct Answer {
    grpc::Status status;
    std::string reply;
    std::string hint;  // trailing metadata
  };
  // Waits for the answer of a call that may be cancelled through the context.
  Answer Call(const std::string& request, grpc::ClientContext* context) {
    grpc::GenericStub stub(channel_of_call != nullptr ? channel_of_call : channel_);
    grpc::CompletionQueue cq;
    const auto call = stub.PrepareUnaryCall(context, kForward, BytesOf(request), &cq);
    call->StartCall();
    grpc::ByteBuffer reply;
    Answer answer;
    call->Finish(&reply, &answer.status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(cq.Next(&tag, &ok));
    answer.reply = TextOf(reply);
    const auto& trailing = context->GetServerTrailingMetadata();
    if (const auto found = trailing.find("hint"); found != trailing.end())
      answer.hint = std::string(found->second.data(), found->second.size());
    return answer;
  }
  Answer Call(const std::string& request) {
    grpc::ClientContext context;
    return Call(request, &context);
  }
  static grpc::ChannelArguments OwnConnection(int number) {
    grpc::ChannelArguments arguments;
    arguments.SetInt("deeppcr.test_connection", number);
    return arguments;
  }

  EventCounts record_;
  std::deque<EchoCall*> kept_;  // guarded by the record's mutex
  std::function<void(UnaryCallOfQueue&)> in_handler;
  std::shared_ptr<grpc::Channel> channel_of_call;  // null: channel_
  ForwardService service_;
  QueueServer server_{&service_,
                      {Queued(&service_, &ForwardService::RequestForward,
                              [this](UnaryCallOfQueue* queued) { Take(queued); })},
                      {.busy_poll = GetParam()}};
  std::shared_ptr<grpc::Channel> channel_ =
      grpc::CreateChannel(server_.address(), grpc::InsecureChannelCredentials());
};

TEST_P(CallQueueTest, AnswersAndTellsOfTheEnd) {
  for (int i = 0; i < 100; ++i) {
    const Answer answer = Call("request " + std::to_string(i));
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.reply, "request " + std::to_string(i));
  }
  EXPECT_TRUE(record_.Wait(&record_.done, 100));
  EXPECT_EQ(record_.cancelled, 0);
}

TEST_P(CallQueueTest, GivesErrorsWithMetadata) {
  std::thread client([&] {
    const Answer answer = Call("keep");
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(answer.status.error_message(), "full");
    EXPECT_EQ(answer.hint, "7");
  });
  ASSERT_TRUE(record_.Wait(&record_.arrived, 1));
  EchoCall* call = Kept();
  call->rpc->AddTrailingMetadata("hint", "7");
  call->Answer({grpc::StatusCode::RESOURCE_EXHAUSTED, "full"}, BytesOf("not sent"));
  client.join();
  EXPECT_TRUE(record_.Wait(&record_.done, 1));
}

TEST_P(CallQueueTest, HoldsMoreCallsThanItAsksFor) {
  constexpr int kCalls = 150;
  std::vector<std::thread> clients;
  for (int i = 0; i < kCalls; ++i)
    clients.emplace_back([this, i] {
      const std::string request = "keep " + std::to_string(i);
      EXPECT_EQ(Call(request).reply, request);
    });
  EXPECT_TRUE(record_.Wait(&record_.arrived, kCalls));
  for (int i = 0; i < kCalls; ++i) {
    EchoCall* call = Kept();
    call->Answer(grpc::Status::OK, BytesOf(call->request));
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(record_.Wait(&record_.done, kCalls));
}

// Handlers that take long, by what they say or by the size of the request, keep nobody waiting
// while a thread is free.
TEST_P(CallQueueTest, GoesOnWhileAllThreadsButOneAreHeld) {
  std::mutex held;
  held.lock();
  std::atomic<int> holding = 0;
  in_handler = [&](UnaryCallOfQueue& call) {
    const std::string request = TextOf(*call.request());
    if (!request.starts_with("hold")) return;
    if (request == "hold") call.MayTakeLong();
    ++holding;
    const std::lock_guard wait(held);
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < kThreads - 1; ++i)
    clients.emplace_back([this, i] {
      const std::string request = i % 2 == 0 ? "hold" : "hold" + std::string(100'000, '.');
      EXPECT_EQ(Call(request).reply, request);
    });
  while (holding.load() < kThreads - 1) std::this_thread::sleep_for(milliseconds(1));
  for (int i = 0; i < 10; ++i) {
    // On a connection of its own, and on that of those which are held.
    channel_of_call = grpc::CreateCustomChannel(
        server_.address(), grpc::InsecureChannelCredentials(), OwnConnection(i));
    EXPECT_EQ(Call("another").reply, "another");
    channel_of_call = nullptr;
    EXPECT_EQ(Call("the same").reply, "the same");
  }
  held.unlock();
  for (std::thread& client : clients) client.join();
}

TEST_P(CallQueueTest, TellsOfACancellation) {
  grpc::ClientContext context;
  std::thread client(
      [&] { EXPECT_EQ(Call("keep", &context).status.error_code(), grpc::StatusCode::CANCELLED); });
  ASSERT_TRUE(record_.Wait(&record_.arrived, 1));
  EXPECT_EQ(record_.cancelled, 0);
  context.TryCancel();
  EXPECT_TRUE(record_.Wait(&record_.cancelled, 1));
  client.join();
  EXPECT_EQ(record_.done, 0);
  Kept()->Answer(grpc::Status::OK, BytesOf("late"));
  EXPECT_TRUE(record_.Wait(&record_.done, 1));
}

// The end of the call comes on one thread while another runs the handler: it is told after that.
TEST_P(CallQueueTest, TellsOfACancellationThatCameFirst) {
  grpc::ClientContext context;
  in_handler = [&](UnaryCallOfQueue& call) {
    call.MayTakeLong();  // so that another thread hears of it
    context.TryCancel();
    while (!call.rpc()->IsCancelled()) std::this_thread::sleep_for(milliseconds(1));
    std::this_thread::sleep_for(milliseconds(20));
    const std::lock_guard lock(record_.mutex);
    EXPECT_EQ(record_.cancelled, 0);
  };
  EXPECT_FALSE(Call("keep", &context).status.ok());
  ASSERT_TRUE(record_.Wait(&record_.cancelled, 1));
  ASSERT_TRUE(record_.Wait(&record_.arrived, 1));
  Kept()->Answer({grpc::StatusCode::CANCELLED, ""}, {});
  EXPECT_TRUE(record_.Wait(&record_.done, 1));
}

TEST_P(CallQueueTest, LosesNoCallInAStormOfCancellations) {
  constexpr int kClients = 8, kRounds = 60;
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i)
    clients.emplace_back([this, i] {
      for (int round = 0; round < kRounds; ++round) {
        grpc::ClientContext context;
        std::thread cancel([&context, i, round] {
          std::this_thread::sleep_for(std::chrono::microseconds(37 * ((i + round) % 11)));
          context.TryCancel();
        });
        Call("request", &context);
        cancel.join();
      }
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(Call("still there").reply, "still there");
  server_.Shutdown();
  EXPECT_TRUE(server_.queue().Stop(std::chrono::seconds(30)));
  EXPECT_EQ(record_.done, record_.arrived);
}

TEST_P(CallQueueTest, RefusesWhatIsTooLargeAndGoesOn) {
  for (int i = 0; i < 40; ++i) {
    const Answer answer = Call(std::string(kMaxMessage + 1, 'x'));
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  EXPECT_EQ(record_.arrived, 0);
  EXPECT_EQ(Call("small").reply, "small");
}

TEST_P(CallQueueTest, GoesOnAfterCallsWithoutAMessage) {
  grpc::GenericStub stub(channel_);
  for (int i = 0; i < 40; ++i) {
    grpc::ClientContext context;
    grpc::CompletionQueue cq;
    const auto call = stub.PrepareCall(&context, kForward, &cq);
    void* tag = nullptr;
    bool ok = false;
    call->StartCall(nullptr);
    EXPECT_TRUE(cq.Next(&tag, &ok));
    call->WritesDone(nullptr);
    EXPECT_TRUE(cq.Next(&tag, &ok));
    grpc::Status status;
    call->Finish(&status, nullptr);
    EXPECT_TRUE(cq.Next(&tag, &ok));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  }
  EXPECT_EQ(Call("with one").reply, "with one");
}

TEST_P(CallQueueTest, StopsOnceEveryCallIsAnswered) {
  std::thread client([this] { EXPECT_FALSE(Call("keep").status.ok()); });
  ASSERT_TRUE(record_.Wait(&record_.arrived, 1));
  server_.Shutdown();
  EXPECT_TRUE(record_.Wait(&record_.cancelled, 1));
  client.join();

  EXPECT_FALSE(server_.queue().Stop(milliseconds(50)));
  Kept()->Answer({grpc::StatusCode::CANCELLED, ""}, {});
  EXPECT_TRUE(server_.queue().Stop(std::chrono::seconds(30)));
  EXPECT_EQ(record_.done, 1);
}

// Few handlers that take long keep no thread idle, though they have not said that they may: not
// even those of two clients, of which one waits in its socket while nobody looks there.
TEST_P(CallQueueTest, LetsAnotherLeadWhereHandlersTakeLong) {
  std::atomic<int> at_work = 0, most = 0;
  in_handler = [&](UnaryCallOfQueue&) {
    const int now = ++at_work;
    for (int before = most.load(); before < now && !most.compare_exchange_weak(before, now);) {
    }
    std::this_thread::sleep_for(milliseconds(2));
    --at_work;
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < 2; ++i)
    clients.emplace_back([this] {
      for (int k = 0; k < 40; ++k) EXPECT_EQ(Call("request").reply, "request");
    });
  for (std::thread& client : clients) client.join();
  EXPECT_GT(most.load(), 1);
}

TEST_P(CallQueueTest, SleepsWhileARequestIsUnanswered) {
  EXPECT_TRUE(ComesToWait());
  std::thread client([this] { EXPECT_EQ(Call("keep").reply, "keep"); });
  ASSERT_TRUE(record_.Wait(&record_.arrived, 1));
  EXPECT_TRUE(ComesToSleep());
  Kept()->Answer(grpc::Status::OK, BytesOf("keep"));
  client.join();
  EXPECT_TRUE(ComesToWait());
}

// Another thread leads before the handler has counted its request.
TEST_P(CallQueueTest, SleepsWhileAHandlerBegins) {
  std::mutex held;
  held.lock();
  std::atomic<bool> holding = false;
  in_handler = [&](UnaryCallOfQueue& call) {
    call.MayTakeLong();
    holding = true;
    const std::lock_guard wait(held);
  };
  std::thread client([this] { EXPECT_EQ(Call("request").reply, "request"); });
  while (!holding.load()) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(ComesToSleep());
  held.unlock();
  client.join();
  EXPECT_TRUE(ComesToWait());
}

TEST_P(CallQueueTest, SleepsOnceRequestsHaveComeTogether) {
  std::thread one([this] { EXPECT_EQ(Call("keep").reply, "reply"); });
  std::thread other([this] { EXPECT_EQ(Call("keep").reply, "reply"); });
  ASSERT_TRUE(record_.Wait(&record_.arrived, 2));
  for (int i = 0; i < 2; ++i) Kept()->Answer(grpc::Status::OK, BytesOf("reply"));
  one.join();
  other.join();
  EXPECT_TRUE(ComesToSleep());
}

// A leader that would look for an hour sees all that happens meanwhile.
INSTANTIATE_TEST_SUITE_P(SleepingOrLooking, CallQueueTest,
                         ::testing::Values(std::chrono::microseconds(0), std::chrono::hours(1)),
                         [](const ::testing::TestParamInfo<std::chrono::microseconds>& mode) {
                           return mode.param.count() > 0 ? "Looks" : "Sleeps";
                         });

TEST(CallQueueWithoutServerTest, Ends) {
  const std::atomic<int64_t> unanswered(0);
  grpc::ServerBuilder builder;
  CallQueue queue({.all = 5, .leaders = 2}, unanswered);
  queue.AddTo(&builder);
}

}  // namespace
}  // namespace deeppcr
