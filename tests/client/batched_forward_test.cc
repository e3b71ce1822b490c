// SPDX-License-Identifier: Apache-2.0
#include "client/batched_forward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/fake_service.h"

namespace deeppcr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class BatchedForwardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    client_ = *Client::Create({.server = service_.address()});
    model_ = *client_->GetModel("fake");
  }

  // Inputs whose rows are (i, 10 i, 100 i).
  static Array Inputs(int64_t rows) {
    Array array{{rows, kFakeInputs}, {}};
    for (int64_t i = 0; i < rows; ++i) {
      const float value = static_cast<float>(i);
      array.values.insert(array.values.end(), {value, 10 * value, 100 * value});
    }
    return array;
  }

  FakeService service_;
  std::unique_ptr<Client> client_;
  v1::GetModelResponse model_;
};

TEST_F(BatchedForwardTest, SplitsAtTheModelsLimitAndKeepsTheOrder) {
  std::atomic<int64_t> done{0};

  const auto result = BatchedForward(*client_, model_, Inputs(12), {.done = &done}).value();

  std::vector<int64_t> sizes;
  for (const auto& request : service_.forward_requests())
    sizes.push_back(request.inputs().shape(0));
  EXPECT_THAT(sizes, ElementsAre(5, 5, 2));
  EXPECT_THAT(result.outputs.shape, ElementsAre(12, 2));
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(result.outputs.values[2 * i], 11.0f * static_cast<float>(i));
    EXPECT_EQ(result.outputs.values[2 * i + 1], 100.0f * static_cast<float>(i));
  }
  EXPECT_EQ(result.reports.size(), 3u);
  EXPECT_EQ(done, 12);
}

TEST_F(BatchedForwardTest, EveryRequestNamesTheSameVersion) {
  ASSERT_TRUE(BatchedForward(*client_, model_, Inputs(6), {}).ok());

  for (const auto& request : service_.forward_requests()) EXPECT_EQ(request.version(), 7);
}

TEST_F(BatchedForwardTest, TrajectoryAndPreviousAreSplitAlike) {
  BatchedForwardOptions options{.batch_size = 4};
  options.solver.set_return_trajectory(true);
  const auto first = BatchedForward(*client_, model_, Inputs(6), options).value();
  ASSERT_THAT(first.trajectory.shape, ElementsAre(6, kFakeLayers + 1, kFakeWidth));
  options.previous = &first.trajectory;

  ASSERT_TRUE(BatchedForward(*client_, model_, Inputs(6), options).ok());

  const auto last = TensorToArray(service_.forward_requests().back().initial_states(), "states");
  ASSERT_TRUE(last.ok());
  EXPECT_THAT(last->shape, ElementsAre(2, kFakeLayers + 1, kFakeWidth));
  EXPECT_EQ(last->values[0], 4);  // sample 4 begins the second request
}

TEST_F(BatchedForwardTest, RefusesInputsThatDoNotFit) {
  const Array wrong{{1, 2}, {1, 2}};
  const Array empty{{0, kFakeInputs}, {}};
  const Array previous{{1, 1, 1}, {1}};

  EXPECT_EQ(std::string(BatchedForward(*client_, model_, wrong, {}).status().message()),
            "inputs: expected shape [1, 3], got [1, 2]");
  EXPECT_FALSE(BatchedForward(*client_, model_, empty, {}).ok());
  EXPECT_FALSE(BatchedForward(*client_, model_, Inputs(1), {.batch_size = 6}).ok());
  EXPECT_FALSE(BatchedForward(*client_, model_, Inputs(1), {.previous = &previous}).ok());
  EXPECT_TRUE(service_.forward_requests().empty());
}

TEST_F(BatchedForwardTest, RefusesRepliesThatDoNotMatchTheirRequest) {
  service_.on_forward = [](auto*, const auto&, v1::ForwardResponse* reply) {
    reply->mutable_outputs()->add_shape(1);
    reply->mutable_outputs()->add_shape(1);
    reply->mutable_outputs()->set_data("1234");
    return grpc::Status::OK;
  };

  const auto result = BatchedForward(*client_, model_, Inputs(2), {});

  EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("outputs: expected shape [2, 2]"));
}

TEST_F(BatchedForwardTest, RefusesOutputsOfAnotherWidth) {
  service_.on_forward = [](auto*, const auto&, v1::ForwardResponse* reply) {
    reply->mutable_outputs()->add_shape(1);
    reply->mutable_outputs()->add_shape(1);
    reply->mutable_outputs()->set_data("1234");
    return grpc::Status::OK;
  };

  const auto result = BatchedForward(*client_, model_, Inputs(1), {});

  EXPECT_EQ(std::string(result.status().message()),
            "bad reply: outputs: expected shape [1, 2], got [1, 1]");
}

TEST_F(BatchedForwardTest, TheFirstFailureEndsIt) {
  service_.on_forward = [](auto*, const auto&, auto*) {
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue full");
  };

  const auto result = BatchedForward(*client_, model_, Inputs(12), {});

  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(service_.forward_requests().size(), 1u);
}

TEST(LargestBatchTest, KeepsTrajectoriesBelowTheByteLimit) {
  v1::GetModelResponse model;
  model.set_max_batch_size(64);
  model.set_input_dim(64);
  model.set_output_dim(10);
  model.mutable_summary()->set_num_layers(16384);
  model.mutable_summary()->set_state_dim(64);

  EXPECT_EQ(LargestBatch(model, false), 64);
  // 4 * (16385 * 64 + 74) bytes per sample: two fit in 12 MiB.
  EXPECT_EQ(LargestBatch(model, true), 2);
  model.mutable_summary()->set_num_layers(INT64_MAX);
  EXPECT_EQ(LargestBatch(model, true), 1);
}

}  // namespace
}  // namespace deeppcr
