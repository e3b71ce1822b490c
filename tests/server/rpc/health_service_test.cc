// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/health_service.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "tests/server/rpc/queue_server.h"

namespace deeppcr {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

class HealthServiceTest : public ::testing::Test {
 protected:
  // The status of a name, or -1 if it is unknown.
  int Check(const std::string& name) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(name);
    HealthCheckResponse response;
    const grpc::Status status = stub_->Check(&context, request, &response);
    if (status.error_code() == grpc::StatusCode::NOT_FOUND) return -1;
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.status();
  }

  struct Watch {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> reader;
    int Next() {
      HealthCheckResponse response;
      return reader->Read(&response) ? response.status() : -1;
    }
  };
  std::unique_ptr<Watch> Open(const std::string& name) {
    auto watch = std::make_unique<Watch>();
    HealthCheckRequest request;
    request.set_service(name);
    watch->reader = stub_->Watch(&watch->context, request);
    return watch;
  }

  HealthService service_;
  QueueServer server_{&service_, service_.Methods()};
  std::unique_ptr<Health::Stub> stub_ = Health::NewStub(server_.InProcess());
};

TEST_F(HealthServiceTest, KnowsWhatIsPublishedAndNoMore) {
  EXPECT_EQ(Check(""), -1);
  service_.Publish({{"", true}, {"net", false}});
  EXPECT_EQ(Check(""), HealthCheckResponse::SERVING);
  EXPECT_EQ(Check("net"), HealthCheckResponse::NOT_SERVING);
  service_.Publish({{"", true}});
  EXPECT_EQ(Check("net"), -1);
}

TEST_F(HealthServiceTest, WatchersHearOfEveryChangeOfTheirName) {
  const auto watch = Open("net");
  EXPECT_EQ(watch->Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  service_.Publish({{"net", false}});
  EXPECT_EQ(watch->Next(), HealthCheckResponse::NOT_SERVING);
  // What is not of its name, or no change, is no message.
  service_.Publish({{"net", false}, {"other", true}});
  service_.Publish({{"net", true}});
  EXPECT_EQ(watch->Next(), HealthCheckResponse::SERVING);
  service_.Publish({});
  EXPECT_EQ(watch->Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  watch->context.TryCancel();
  EXPECT_EQ(watch->Next(), -1);
  EXPECT_EQ(watch->reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

// Whoever asks is unknown: what it sends takes no memory that lasts.
TEST_F(HealthServiceTest, RequestsAreShortAndAreSuch) {
  EXPECT_EQ(Check(std::string(200, 'x')), -1);
  const std::string invalid("\x0a\x02\xff\xfe", 4), cut("\x0a\x05x", 3);
  for (const std::string& bytes : {std::string(1 << 20, 'x'), invalid, cut}) {
    for (const char* method : {"Check", "Watch"}) {
      grpc::GenericStub stub(server_.InProcess());
      grpc::ClientContext context;
      grpc::CompletionQueue queue;
      const grpc::Slice slice(bytes);
      grpc::ByteBuffer request(&slice, 1), response;
      const auto call = stub.PrepareUnaryCall(
          &context, std::string("/grpc.health.v1.Health/") + method, request, &queue);
      call->StartCall();
      grpc::Status status;
      call->Finish(&response, &status, nullptr);
      void* tag = nullptr;
      bool ok = false;
      ASSERT_TRUE(queue.Next(&tag, &ok));
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
          << method << " of " << bytes.size() << ": " << status.error_message();
    }
  }
}

TEST_F(HealthServiceTest, WatchersMayComeAndGoWhileMuchChanges) {
  std::atomic<bool> done{false};
  std::thread publisher([&] {
    for (int i = 0; !done.load(); ++i) service_.Publish({{"net", i % 2 == 0}});
  });
  std::vector<std::thread> clients;
  for (int t = 0; t < 4; ++t) {
    clients.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const auto watch = Open("net");
        for (int k = 0; k < (i + t) % 4; ++k) EXPECT_GT(watch->Next(), 0);
        watch->context.TryCancel();
        while (watch->Next() >= 0) continue;
        EXPECT_EQ(watch->reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  done.store(true);
  publisher.join();
}

}  // namespace
}  // namespace deeppcr
