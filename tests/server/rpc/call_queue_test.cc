// SPDX-License-Identifier: Apache-2.0
// Calls of a real gRPC server that come through a queue.
#include "server/rpc/call_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
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

namespace deeppcr {
namespace {

using std::chrono::milliseconds;
using ForwardService = v1::DeepPcr::WithRawMethod_Forward<v1::DeepPcr::Service>;

constexpr char kForward[] = "/deeppcr.v1.DeepPcr/Forward";
constexpr int kMaxMessage = 1 << 20, kThreads = 3;

grpc::ByteBuffer BytesOf(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}
std::string TextOf(const grpc::ByteBuffer& bytes) {
  grpc::Slice slice;
  if (!bytes.Valid() || !bytes.DumpToSingleSlice(&slice).ok()) return "invalid";
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

// The events of all calls of a test.
struct EventCounts {
  std::mutex mutex;
  std::condition_variable changed;
  int arrived = 0, cancelled = 0, done = 0;

  void Count(int* what) {
    const std::lock_guard lock(mutex);
    ++*what;
    changed.notify_all();
  }
  bool Wait(const int* what, int count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(30), [&] { return *what >= count; });
  }
};

// A call that is gone once it is done, like those of the server.
class EchoCall final : public CallEvents {
 public:
  EchoCall(EventCounts& record, QueuedCall* call)
      : record_(record),
        request(TextOf(*call->request())),
        rpc(call->rpc()),
        responder(*this, call) {}

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
  QueuedResponder responder;  // last: events come from here on
};

class CallQueueTest : public ::testing::Test {
 protected:
  CallQueueTest() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.SetMaxReceiveMessageSize(kMaxMessage);
    builder.RegisterService(&service_);
    queue_ = std::make_unique<CallQueue>(kThreads);
    queue_->AddTo(&builder);
    server_ = builder.BuildAndStart();
    queue_->Start({{std::bind_front(&ForwardService::RequestForward, &service_),
                    [this](QueuedCall* queued) { Take(queued); }}});
    channel_ = grpc::CreateChannel(address(), grpc::InsecureChannelCredentials());
  }
  ~CallQueueTest() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  // Echoes calls, but for those that a test answers by itself.
  void Take(QueuedCall* queued) {
    if (before_binding) before_binding(*queued);
    auto* call = new EchoCall(record_, queued);
    if (call->request.starts_with("keep")) {
      const std::lock_guard lock(record_.mutex);
      kept_.push_back(call);
    } else {
      call->responder.Respond(grpc::Status::OK, BytesOf(call->request));
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
  std::function<void(QueuedCall&)> before_binding;
  std::shared_ptr<grpc::Channel> channel_of_call;  // null: channel_
  int port_ = 0;
  ForwardService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<CallQueue> queue_;  // goes before the server
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(CallQueueTest, AnswersAndTellsOfTheEnd) {
  for (int i = 0; i < 100; ++i) {
    const Answer answer = Call("request " + std::to_string(i));
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.reply, "request " + std::to_string(i));
  }
  EXPECT_TRUE(record_.Wait(&record_.done, 100));
  EXPECT_EQ(record_.cancelled, 0);
}

TEST_F(CallQueueTest, GivesErrorsWithMetadata) {
  std::thread client([&] {
    const Answer answer = Call("keep");
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(answer.status.error_message(), "full");
    EXPECT_EQ(answer.hint, "7");
  });
  ASSERT_TRUE(record_.Wait(&record_.arrived, 1));
  EchoCall* call = Kept();
  call->rpc->AddTrailingMetadata("hint", "7");
  call->responder.Respond({grpc::StatusCode::RESOURCE_EXHAUSTED, "full"}, BytesOf("not sent"));
  client.join();
  EXPECT_TRUE(record_.Wait(&record_.done, 1));
}

TEST_F(CallQueueTest, HoldsMoreCallsThanItAsksFor) {
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
    call->responder.Respond(grpc::Status::OK, BytesOf(call->request));
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(record_.Wait(&record_.done, kCalls));
}

// Handlers that take long, as those of large requests do, keep nobody waiting while a thread is
// free.
TEST_F(CallQueueTest, GoesOnWhileAllThreadsButOneAreHeld) {
  std::mutex held;
  held.lock();
  std::atomic<int> holding = 0;
  before_binding = [&](QueuedCall& call) {
    if (TextOf(*call.request()) != "hold") return;
    ++holding;
    const std::lock_guard wait(held);
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < kThreads - 1; ++i)
    clients.emplace_back([this] { EXPECT_EQ(Call("hold").reply, "hold"); });
  while (holding.load() < kThreads - 1) std::this_thread::sleep_for(milliseconds(1));
  for (int i = 0; i < 10; ++i) {
    // On a connection of its own, and on that of those which are held.
    channel_of_call =
        grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), OwnConnection(i));
    EXPECT_EQ(Call("another").reply, "another");
    channel_of_call = nullptr;
    EXPECT_EQ(Call("the same").reply, "the same");
  }
  held.unlock();
  for (std::thread& client : clients) client.join();
}

TEST_F(CallQueueTest, TellsOfACancellation) {
  grpc::ClientContext context;
  std::thread client(
      [&] { EXPECT_EQ(Call("keep", &context).status.error_code(), grpc::StatusCode::CANCELLED); });
  ASSERT_TRUE(record_.Wait(&record_.arrived, 1));
  EXPECT_EQ(record_.cancelled, 0);
  context.TryCancel();
  EXPECT_TRUE(record_.Wait(&record_.cancelled, 1));
  client.join();
  EXPECT_EQ(record_.done, 0);
  Kept()->responder.Respond(grpc::Status::OK, BytesOf("late"));
  EXPECT_TRUE(record_.Wait(&record_.done, 1));
}

// The end of the call comes on one thread before another has made the call that is to hear of it.
TEST_F(CallQueueTest, TellsOfACancellationThatCameFirst) {
  grpc::ClientContext context;
  before_binding = [&](QueuedCall& call) {
    context.TryCancel();
    while (!call.rpc()->IsCancelled()) std::this_thread::sleep_for(milliseconds(1));
    std::this_thread::sleep_for(milliseconds(20));
  };
  EXPECT_FALSE(Call("keep", &context).status.ok());
  ASSERT_TRUE(record_.Wait(&record_.cancelled, 1));
  ASSERT_TRUE(record_.Wait(&record_.arrived, 1));
  Kept()->responder.Respond({grpc::StatusCode::CANCELLED, ""}, {});
  EXPECT_TRUE(record_.Wait(&record_.done, 1));
}

TEST_F(CallQueueTest, LosesNoCallInAStormOfCancellations) {
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
  server_->Shutdown(std::chrono::system_clock::now());
  EXPECT_TRUE(queue_->Stop(std::chrono::seconds(30)));
  EXPECT_EQ(record_.done, record_.arrived);
}

TEST_F(CallQueueTest, RefusesWhatIsTooLargeAndGoesOn) {
  for (int i = 0; i < 40; ++i) {
    const Answer answer = Call(std::string(kMaxMessage + 1, 'x'));
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  EXPECT_EQ(record_.arrived, 0);
  EXPECT_EQ(Call("small").reply, "small");
}

TEST_F(CallQueueTest, GoesOnAfterCallsWithoutAMessage) {
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

TEST_F(CallQueueTest, StopsOnceEveryCallIsAnswered) {
  std::thread client([this] { EXPECT_FALSE(Call("keep").status.ok()); });
  ASSERT_TRUE(record_.Wait(&record_.arrived, 1));
  server_->Shutdown(std::chrono::system_clock::now());
  EXPECT_TRUE(record_.Wait(&record_.cancelled, 1));
  client.join();

  EXPECT_FALSE(queue_->Stop(milliseconds(50)));
  Kept()->responder.Respond({grpc::StatusCode::CANCELLED, ""}, {});
  EXPECT_TRUE(queue_->Stop(std::chrono::seconds(30)));
  EXPECT_EQ(record_.done, 1);
}

TEST(CallQueueWithoutServerTest, Ends) {
  grpc::ServerBuilder builder;
  CallQueue queue(5);
  queue.AddTo(&builder);
}

}  // namespace
}  // namespace deeppcr
