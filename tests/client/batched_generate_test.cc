// SPDX-License-Identifier: Apache-2.0
#include "client/batched_generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/client/fake_service.h"

namespace deeppcr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// An array whose values differ from row to row.
Array Rows(std::vector<int64_t> shape, float first) {
  Array array{std::move(shape), {}};
  const int64_t size = array.rows() * array.row_size();
  for (int64_t i = 0; i < size; ++i) array.values.push_back(first + static_cast<float>(i));
  return array;
}

class BatchedGenerateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    client_ = *Client::Create({.server = service_.address()});
    model_ = *client_->GetModel("draw");
  }

  static Generation Ask(int64_t n, uint64_t first_sample = 0) {
    Generation generation{.num_samples = n, .seed = 5, .first_sample = first_sample};
    for (int64_t i = 0; i < n; ++i) {
      generation.class_labels.push_back(static_cast<int32_t>((first_sample + i) % 10));
    }
    return generation;
  }

  std::string ErrorOf(const Generation& generation, const BatchedGenerateOptions& options = {}) {
    return std::string(BatchedGenerate(*client_, model_, generation, options).status().message());
  }

  FakeService service_;
  std::unique_ptr<Client> client_;
  v1::GetModelResponse model_;
};

TEST_F(BatchedGenerateTest, SplitsAtTheModelsLimitAndAdvancesTheFirstSample) {
  const auto result = BatchedGenerate(*client_, model_, Ask(12, 3), {}).value();

  std::vector<int32_t> sizes;
  std::vector<uint64_t> firsts;
  for (const v1::GenerateRequest& request : service_.generate_requests()) {
    sizes.push_back(request.input().num_samples());
    firsts.push_back(request.input().first_sample());
    EXPECT_EQ(request.input().class_labels_size(), request.input().num_samples());
    EXPECT_EQ(request.input().class_labels(0), static_cast<int32_t>(firsts.back() % 10));
    EXPECT_EQ(request.input().seed(), 5u);
    EXPECT_EQ(request.version(), 7);
  }
  EXPECT_THAT(sizes, ElementsAre(5, 5, 2));
  EXPECT_THAT(firsts, ElementsAre(3u, 8u, 13u));
  EXPECT_EQ(result.reports.size(), 3u);
  EXPECT_EQ(service_.streams(), 0);
}

TEST_F(BatchedGenerateTest, EverySplitGivesTheSameSamples) {
  const Array initial = Rows({11, kDrawWidth}, 100);
  const Array step = Rows({11, kDrawSteps, kDrawWidth}, 1000);
  const Array previous = Rows({11, kDrawSteps + 1, kDrawWidth}, 0);
  Generation generation = Ask(11, 3);
  generation.initial_noise = &initial;
  generation.step_noise = &step;
  generation.previous = &previous;
  BatchedGenerateOptions options{.batch_size = 5};
  options.solver.set_return_trajectory(true);
  const auto expected = BatchedGenerate(*client_, model_, generation, options).value();
  ASSERT_THAT(expected.samples.shape, ElementsAre(11, kDrawPixels));
  ASSERT_THAT(expected.latents.shape, ElementsAre(11, kDrawWidth));
  ASSERT_THAT(expected.trajectory.shape, ElementsAre(11, kDrawSteps + 1, kDrawWidth));
  EXPECT_EQ(expected.class_labels, generation.class_labels);
  for (int64_t i = 0; i < 11; ++i) EXPECT_EQ(expected.latents.values[2 * i], 3.0f + i);

  for (const int64_t batch : {0, 1, 2, 3, 4}) {
    options.batch_size = batch;
    const auto result = BatchedGenerate(*client_, model_, generation, options).value();

    EXPECT_EQ(result.samples.values, expected.samples.values) << batch;
    EXPECT_EQ(result.latents.values, expected.latents.values) << batch;
    EXPECT_EQ(result.trajectory.values, expected.trajectory.values) << batch;
  }
  const auto last = TensorToArray(service_.generate_requests().back().initial_states(), "states");
  EXPECT_EQ(last->values.back(), previous.values.back());
}

TEST_F(BatchedGenerateTest, LaterSamplesAreTheSecondPartOfAll) {
  const auto all = BatchedGenerate(*client_, model_, Ask(10), {});
  const auto part = BatchedGenerate(*client_, model_, Ask(4, 6), {});
  ASSERT_TRUE(all.ok() && part.ok());

  const std::vector<float> tail(all->samples.values.begin() + 6 * kDrawPixels,
                                all->samples.values.end());
  EXPECT_EQ(part->samples.values, tail);
}

TEST_F(BatchedGenerateTest, TellsHowFarItIs) {
  std::vector<std::vector<int64_t>> seen;
  BatchedGenerateOptions options;
  options.on_progress = [&](const GenerationProgress& progress) {
    seen.push_back(
        {progress.done, progress.in_request, progress.num_samples, progress.solve.iterations()});
  };

  const auto result = BatchedGenerate(*client_, model_, Ask(7), options).value();

  using Row = std::vector<int64_t>;
  EXPECT_THAT(seen,
              ElementsAre(Row{0, 5, 7, 0}, Row{0, 5, 7, 1}, Row{0, 5, 7, 2}, Row{0, 5, 7, 3},
                          Row{5, 2, 7, 0}, Row{5, 2, 7, 1}, Row{5, 2, 7, 2}, Row{5, 2, 7, 3}));
  EXPECT_EQ(service_.streams(), 2);
  EXPECT_EQ(result.samples.values, BatchedGenerate(*client_, model_, Ask(7), {})->samples.values);
}

TEST_F(BatchedGenerateTest, RefusesWhatDoesNotFitTheModel) {
  EXPECT_EQ(ErrorOf(Ask(0)), "num_samples: expected at least 1, got 0");
  EXPECT_THAT(ErrorOf(Ask(2, std::numeric_limits<uint64_t>::max())),
              HasSubstr("first_sample: expected at most 18446744073709551613 for 2 samples"));
  EXPECT_EQ(ErrorOf({.num_samples = 2}),
            "class_labels: expected 2 for 2 samples of this model, got 0");
  EXPECT_EQ(ErrorOf({.num_samples = 1, .class_labels = {10}}),
            "class_labels: expected 0 to 9, got 10");
  EXPECT_EQ(ErrorOf(Ask(1), {.batch_size = 6}),
            "batch_size: expected 0 to 5, the model's limit, got 6");
  Generation generation = Ask(1);
  generation.num_inference_steps = 3;
  EXPECT_EQ(ErrorOf(generation),
            "steps: expected a number that the model was loaded for (4, 2), got 3");
  model_.set_max_inference_steps(9);
  generation.num_inference_steps = 10;
  EXPECT_EQ(ErrorOf(generation), "steps: expected 1 to 9, got 10");
  EXPECT_EQ(*ResolveInferenceSteps(model_, 9), 9);
  EXPECT_EQ(*ResolveInferenceSteps(model_, 0), 4);
  EXPECT_FALSE(ResolveInferenceSteps(model_, -1).ok());
  EXPECT_TRUE(service_.generate_requests().empty());
}

TEST_F(BatchedGenerateTest, RefusesArraysOfOtherShapes) {
  const Array wrong = Rows({3, 1}, 0);
  Generation generation = Ask(2);
  generation.initial_noise = &wrong;
  EXPECT_EQ(ErrorOf(generation), "initial_noise: expected shape [2, 2], got [3, 1]");
  generation = Ask(2);
  generation.num_inference_steps = 2;
  generation.step_noise = &wrong;
  EXPECT_EQ(ErrorOf(generation), "step_noise: expected shape [2, 2, 2], got [3, 1]");
  generation = Ask(2);
  generation.previous = &wrong;
  EXPECT_EQ(ErrorOf(generation), "previous trajectory: expected shape [2, 5, 2], got [3, 1]");
  generation = Ask(2);
  generation.conditioning = &wrong;
  EXPECT_EQ(ErrorOf(generation), "conditioning: this model is not conditioned on a vector");
  model_.set_input_dim(4);
  EXPECT_EQ(ErrorOf(generation), "conditioning: expected shape [2, 4], got [3, 1]");
  generation.conditioning = nullptr;
  EXPECT_THAT(ErrorOf(generation), HasSubstr("conditioned on a vector of 4 values"));
  EXPECT_TRUE(service_.generate_requests().empty());
}

TEST_F(BatchedGenerateTest, RefusesMoreThanFitsInMemory) {
  model_.set_output_dim(int64_t{1} << 27);

  EXPECT_THAT(ErrorOf(Ask(3)), HasSubstr("more than the 268435456 elements allowed"));
}

TEST_F(BatchedGenerateTest, RefusesModelsThatDrawNothing) {
  model_ = *client_->GetModel("fake");

  EXPECT_EQ(ErrorOf(Ask(1)), "model: 'fake' is no diffusion model and draws no samples");
}

TEST_F(BatchedGenerateTest, RefusesRepliesThatDoNotMatchTheirRequest) {
  service_.on_generate = [](auto*, const auto&, v1::GenerateResponse* reply) {
    reply->mutable_report()->add_samples();
    reply->mutable_samples()->add_shape(1);
    reply->mutable_samples()->add_shape(1);
    reply->mutable_samples()->set_data("1234");
    return grpc::Status::OK;
  };

  EXPECT_EQ(ErrorOf(Ask(1)), "bad reply: samples: expected shape [1, 6], got [1, 1]");
  EXPECT_EQ(ErrorOf(Ask(2)), "bad reply: expected 2 sample reports, got 1");
}

TEST_F(BatchedGenerateTest, LatentsAreUnsetWithoutDecoderAndNeverHalf) {
  std::atomic<int> count{0};
  const auto answer = [](const v1::GenerateRequest& request, bool latents,
                         v1::GenerateResponse* reply) {
    const int n = request.input().num_samples();
    for (int i = 0; i < n; ++i) reply->mutable_report()->add_samples();
    RowsToTensor(Rows({n, kDrawPixels}, 0), 0, n, reply->mutable_samples());
    if (latents) RowsToTensor(Rows({n, kDrawWidth}, 0), 0, n, reply->mutable_latents());
    return grpc::Status::OK;
  };
  service_.on_generate = [&](auto*, const auto& request, auto* reply) {
    return answer(request, false, reply);
  };
  EXPECT_TRUE(BatchedGenerate(*client_, model_, Ask(7), {})->latents.shape.empty());

  service_.on_generate = [&](auto*, const auto& request, auto* reply) {
    return answer(request, count++ == 0, reply);
  };
  EXPECT_THAT(ErrorOf(Ask(7)), HasSubstr("bad reply: latents"));
}

TEST_F(BatchedGenerateTest, TheFirstFailureEndsIt) {
  service_.on_generate = [](auto*, const auto&, auto*) {
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue full");
  };

  EXPECT_EQ(ErrorOf(Ask(12)), "queue full");
  EXPECT_EQ(service_.generate_requests().size(), 1u);
}

TEST(LargestGenerationTest, KeepsRequestAndReplyBelowTheByteLimit) {
  v1::GetModelResponse model;
  model.set_max_batch_size(256);
  model.set_output_dim(64);
  model.mutable_summary()->set_state_dim(1024);
  const Array array;
  Generation generation;

  EXPECT_EQ(LargestGeneration(model, generation, 1000, false), 256);
  // 4 * (1001 * 1024 + 1024 + 64) + 256 bytes per sample: three fit in 12 MiB.
  EXPECT_EQ(LargestGeneration(model, generation, 1000, true), 3);
  EXPECT_EQ(LargestGeneration(model, generation, 10000, true), 1);
  generation.step_noise = &array;
  EXPECT_EQ(LargestGeneration(model, generation, 1000, false), 3);
  generation.previous = &array;
  EXPECT_EQ(LargestGeneration(model, generation, 1000, false), 1);
}

}  // namespace
}  // namespace deeppcr
