// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/message_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>

#include "server/codec/reply_codec.h"
#include "server/codec/request_codec.h"
#include "server/rpc/solve_methods.h"
#include "tests/testing/fake_engine.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

// Counts what the whole program takes from the heap by new. GCC, when it inlines one of these and
// not the other, takes them for a mismatch.
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace deeppcr::testing {
namespace {

// Counts the allocations of a piece of code.
template <typename Code>
int64_t CountAllocations(const Code& code) {
  const int64_t before = allocations;
  code();
  return allocations - before;
}

constexpr int64_t kMessageLimit = 1 << 20;

std::string RequestBytes() {
  v1::ForwardRequest request;
  request.set_model("a-model-name");
  request.mutable_options()->set_solver("sequential");
  request.mutable_inputs()->mutable_shape()->Add(1);
  request.mutable_inputs()->mutable_shape()->Add(2);
  request.mutable_inputs()->set_data(std::string(8, '\0'));
  return request.SerializeAsString();
}

class DoneJob : public Job {
 public:
  DoneJob() {
    model = std::make_shared<ServedModel>("m", 7, std::make_shared<FakeModel>(), nullptr);
    system = model->model->Find();
    options.solver = "sequential";
  }
  void Done(absl::Status, const JobTimings&) override {}
};

TEST(MessageMemoryTest, ARequestAndItsReplyTakeNextToNothingElsewhere) {
  const std::string bytes = RequestBytes();
  const DoneJob job;
  const ModelInfo& info = job.model->model->info();
  SampleReport sample;
  sample.solver = "sequential";
  MessageMemory request_memory, reply_memory;
  // The first use of a thread and of a type sets up what protobuf keeps for all later ones.
  google::protobuf::Arena::CreateMessage<v1::ForwardRequest>(request_memory.arena())
      ->ParseFromString(bytes);
  request_memory.Free();

  v1::ForwardRequest* request = nullptr;
  absl::StatusOr<SolveInput> input;
  ForwardMethod method;
  RunItem item;
  const int64_t parsing = CountAllocations([&] {
    request = google::protobuf::Arena::CreateMessage<v1::ForwardRequest>(request_memory.arena());
    request->ParseFromString(bytes);
  });
  const int64_t decoding = CountAllocations([&] {
    input = ForwardMethod::Decode(request, info, kMessageLimit);
    ASSERT_TRUE(input.ok());
    ASSERT_TRUE(CheckFinite(*input).ok());
  });
  const int64_t replying = CountAllocations([&] {
    method.Allocate(info, *input, reply_memory.arena(), &item);
    FillSolveReport(job, {&sample, 1}, JobTimings(), method.report());
    method.Reply(*job.model, "");
  });

  EXPECT_EQ(parsing, 0);
  EXPECT_EQ(decoding, 0);
  EXPECT_EQ(replying, 1) << "the plan's id, which is longer than a string holds by itself";
  EXPECT_EQ(request_memory.bytes(), reply_memory.bytes()) << "both within their first blocks";
}

TEST(MessageMemoryTest, LargeMessagesGrowBeyondTheObjectAndAreCounted) {
  MessageMemory memory;
  EXPECT_EQ(memory.bytes(), 0);
  auto* const request = google::protobuf::Arena::CreateMessage<v1::GenerateRequest>(memory.arena());
  const int64_t small = memory.bytes();
  for (int i = 0; i < 4096; ++i) request->mutable_input()->add_class_labels(i);

  EXPECT_GT(memory.bytes(), small + 4 * 4096);
  memory.Free();
  EXPECT_EQ(memory.bytes(), 0);
  EXPECT_TRUE(google::protobuf::Arena::CreateMessage<v1::GenerateRequest>(memory.arena())
                  ->input()
                  .class_labels()
                  .empty());
}

}  // namespace
}  // namespace deeppcr::testing
