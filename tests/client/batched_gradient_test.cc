// SPDX-License-Identifier: Apache-2.0
#include "client/batched_gradient.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "client/batched_forward.h"
#include "tests/client/fake_service.h"

namespace deeppcr {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Array Filled(const std::vector<int64_t>& shape, float first = 0) {
  Array array{shape, {}};
  int64_t size = 1;
  for (const int64_t extent : shape) size *= extent;
  for (int64_t i = 0; i < size; ++i) array.values.push_back(first + static_cast<float>(i));
  return array;
}

class BatchedGradientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    client_ = *Client::Create({.server = service_.address()});
    model_ = *client_->GetModel("fake");
    draw_ = *client_->GetModel("draw");
  }

  absl::StatusOr<BatchedGradientResult> Run(const GradientTask& task,
                                            const BatchedGradientOptions& options = {}) {
    return BatchedGradient(*client_, task.generation != nullptr ? draw_ : model_, task, options);
  }

  FakeService service_;
  std::unique_ptr<Client> client_;
  v1::GetModelResponse model_, draw_;
};

TEST_F(BatchedGradientTest, SplitsAtTheModelsLimitAndKeepsTheOrder) {
  std::atomic<int64_t> done{0};
  const Array inputs = Filled({12, 3}), cotangents = Filled({12, 2});

  const auto result = Run({.inputs = &inputs, .cotangents = &cotangents}, {.done = &done}).value();

  std::vector<int64_t> sizes;
  for (const auto& request : service_.gradient_requests()) {
    sizes.push_back(request.inputs().shape(0));
    EXPECT_EQ(request.version(), 7);
    EXPECT_TRUE(request.has_options());
  }
  EXPECT_THAT(sizes, ElementsAre(5, 5, 2));
  EXPECT_THAT(result.by_inputs.shape, ElementsAre(12, 3));
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(result.by_inputs.values[3 * i], static_cast<float>(2 * i));
    EXPECT_EQ(result.by_inputs.values[3 * i + 2], static_cast<float>(2 * i + 1));
  }
  EXPECT_THAT(result.outputs.shape, ElementsAre(12, 2));
  EXPECT_THAT(result.by_initial_state.shape, IsEmpty());
  EXPECT_THAT(result.losses, IsEmpty());
  EXPECT_THAT(result.reports, SizeIs(3));
  EXPECT_THAT(result.backward_reports, SizeIs(3));
  EXPECT_EQ(done, 12);
}

TEST_F(BatchedGradientTest, CotangentsOfASampleStayTogether) {
  const Array inputs = Filled({6, 3}), cotangents = Filled({6, 4, 2});

  const auto result = Run({.inputs = &inputs,
                           .cotangents = &cotangents,
                           .way = v1::BACKWARD_WAY_PARALLEL,
                           .shooting_interval = 2,
                           .gradients = {v1::GRADIENT_BY_INITIAL_STATE}})
                          .value();

  EXPECT_THAT(result.by_initial_state.shape, ElementsAre(6, 4, 3));
  EXPECT_EQ(result.by_initial_state.values[3 * 23 + 2], 3 * 46.0f);
  EXPECT_THAT(result.by_inputs.shape, IsEmpty());
  const v1::GradientRequest last = service_.gradient_requests().back();
  EXPECT_THAT(last.cotangents().shape(), ElementsAre(1, 4, 2));
  EXPECT_EQ(last.way(), v1::BACKWARD_WAY_PARALLEL);
  EXPECT_EQ(last.shooting_interval(), 2);
}

TEST_F(BatchedGradientTest, TargetsAndClassesGoWithTheirSamples) {
  const Array inputs = Filled({7, 3}), targets = Filled({7, 2});
  auto result = Run({.inputs = &inputs, .loss = v1::LOSS_MSE, .targets = &targets}).value();
  EXPECT_THAT(result.losses, AllOf(SizeIs(7), Each(0.5)));
  const v1::Tensor last = service_.gradient_requests().back().targets();
  EXPECT_THAT(TensorToArray(last, "targets")->values, ElementsAre(10, 11, 12, 13));

  result = Run({.inputs = &inputs,
                .loss = v1::LOSS_CROSS_ENTROPY,
                .target_classes = {0, 1, 0, 1, 0, 1, 0}})
               .value();
  const v1::GradientRequest request = service_.gradient_requests().back();
  EXPECT_THAT(request.target_classes(), ElementsAre(1, 0));
}

TEST_F(BatchedGradientTest, KeptStatesGoWithTheirRequestsAndAreSolvedAgainWhereTheyAreGone) {
  const Array inputs = Filled({8, 3}), cotangents = Filled({8, 2});
  v1::SolverOptions keeping;
  keeping.set_solver("picard");
  keeping.set_keep_trajectory(true);
  const BatchedForwardResult forward =
      BatchedForward(*client_, model_, inputs, {.solver = keeping, .batch_size = 3}).value();
  ASSERT_THAT(forward.kept, SizeIs(3));
  service_.gone = {"kept-2"};
  v1::SolverOptions again;
  again.set_solver("picard");

  const auto result =
      Run({.inputs = &inputs, .kept = forward.kept, .cotangents = &cotangents}, {.solver = again})
          .value();

  const auto requests = service_.gradient_requests();
  ASSERT_THAT(requests, SizeIs(4));
  const auto expect = [&](size_t i, const std::string& handle, int64_t rows) {
    EXPECT_EQ(requests[i].trajectory_handle(), handle) << i;
    EXPECT_EQ(requests[i].has_options(), handle.empty()) << i;
    EXPECT_EQ(requests[i].inputs().shape(0), rows) << i;
  };
  expect(0, "kept-1", 3);
  expect(1, "kept-2", 3);
  expect(2, "", 3);
  EXPECT_EQ(requests[2].options().solver(), "picard");
  expect(3, "kept-3", 2);
  EXPECT_EQ(result.solved_again, 3);
  EXPECT_THAT(result.by_inputs.shape, ElementsAre(8, 3));
  EXPECT_THAT(result.outputs.shape, IsEmpty());
}

TEST_F(BatchedGradientTest, ParametersAreSummedOverRequests) {
  const Array inputs = Filled({7, 3}), cotangents = Filled({7, 2});
  const auto result =
      Run({.inputs = &inputs, .cotangents = &cotangents, .parameters = true}).value();
  ASSERT_THAT(result.parameters, SizeIs(2));
  EXPECT_EQ(result.parameters[0].name, "output.weight");
  EXPECT_THAT(result.parameters[0].array.shape, ElementsAre(2, 3));
  EXPECT_THAT(result.parameters[0].array.values, ElementsAre(7, 14, 21, 28, 35, 42));
  EXPECT_EQ(result.parameters[1].name, "output.bias");
  EXPECT_THAT(result.parameters[1].array.values, ElementsAre(7, 14));
  EXPECT_THAT(result.by_inputs.shape, IsEmpty());
  EXPECT_THAT(result.outputs.shape, ElementsAre(7, 2));
  EXPECT_THAT(result.reports, SizeIs(2));
}

TEST_F(BatchedGradientTest, PiecesThatDoNotFitAreRefused) {
  const Array inputs = Filled({2, 3}), cotangents = Filled({2, 2});
  using Pieces = std::vector<v1::ParameterPiece>;
  const std::function<void(Pieces*)> faults[] = {
      [](Pieces* p) { p->clear(); },
      [](Pieces* p) { p->pop_back(), p->pop_back(); },
      [](Pieces* p) { p->erase(p->begin()); },
      [](Pieces* p) { p->erase(p->begin() + 1); },
      [](Pieces* p) { std::swap((*p)[0], (*p)[1]); },
      [](Pieces* p) { p->push_back(p->front()); },
      [](Pieces* p) { (*p)[0].set_total(7); },
      [](Pieces* p) { (*p)[0].set_shape(0, int64_t{1} << 62); },
      [](Pieces* p) { (*p)[0].set_shape(0, -2); },
      [](Pieces* p) { (*p)[0].clear_data(); },
      [](Pieces* p) { (*p)[0].mutable_data()->pop_back(); },
      [](Pieces* p) { (*p)[0].mutable_data()->append(16, 'a'); },
      [](Pieces* p) { (*p)[1].set_offset(-4); },
      [](Pieces* p) { (*p)[2].set_name("a\"x"); },
      [](Pieces* p) { (*p)[2].set_name(""); }};
  for (const auto& fault : faults) {
    service_.on_pieces = fault;
    const auto result = Run({.inputs = &inputs, .cotangents = &cotangents, .parameters = true});
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal) << result.status();
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("bad reply: "));
  }
}

TEST_F(BatchedGradientTest, ParametersAreAFileOfSafetensors) {
  const std::string bytes = FormatSafetensors({{"b", {{2}, {1, 2}}}, {"a.w", {{1, 3}, {3, 4, 5}}}});
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof(size));
  EXPECT_EQ(size % 8, 0u);
  EXPECT_EQ(bytes.size(), 8 + size + 5 * sizeof(float));
  EXPECT_THAT(bytes.substr(8, size),
              HasSubstr(R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                        R"("a.w":{"dtype":"F32","shape":[1,3],"data_offsets":[8,20]}})"));
  float last = 0;
  std::memcpy(&last, bytes.data() + bytes.size() - sizeof(last), sizeof(last));
  EXPECT_EQ(last, 5);
}

TEST_F(BatchedGradientTest, KeptStatesAreCheckedFirst) {
  const Array inputs = Filled({8, 3}), cotangents = Filled({8, 2}), targets = Filled({8, 2});
  const std::vector<KeptStates> kept = {{"a", 5}, {"b", 3}};
  const GradientTask task = {.inputs = &inputs, .kept = kept, .cotangents = &cotangents};
  GradientTask few = task, loss = task;
  few.kept.pop_back();
  loss.cotangents = nullptr;
  loss.loss = v1::LOSS_MSE;
  loss.targets = &targets;
  EXPECT_THAT(std::string(Run(few).status().message()),
              HasSubstr("kept: expected states of 8 samples, got those of 5"));
  EXPECT_THAT(std::string(Run(loss).status().message()), HasSubstr("kept: expected no trajectory"));
  EXPECT_FALSE(Run(task, {.batch_size = 2}).ok());
  EXPECT_THAT(service_.gradient_requests(), IsEmpty());
}

TEST_F(BatchedGradientTest, KeptStatesAreALineEach) {
  const std::vector<KeptStates> kept = {{"0123abcd", 5}, {"", 3}};
  EXPECT_EQ(FormatKept(kept), "0123abcd 5\n- 3\n");
  const auto parsed = ParseKept(FormatKept(kept)).value();
  ASSERT_THAT(parsed, SizeIs(2));
  EXPECT_EQ(parsed[0].handle, "0123abcd");
  EXPECT_EQ(parsed[0].num_samples, 5);
  EXPECT_EQ(parsed[1].handle, "");
  for (const char* text :
       {"", "\n", "a", "a 0", "a -1", "a 1 2", " 1", "a x", "a 99999999999999999999", "a 10000001"})
    EXPECT_FALSE(ParseKept(text).ok()) << text;
  EXPECT_THAT(std::string(ParseKept("a 1\nb\n").status().message()),
              HasSubstr("line 2: expected a handle and a number of samples, got \"b\""));
}

TEST_F(BatchedGradientTest, AGenerationsSamplesKeepTheirNumbers) {
  const Generation generation = {
      .num_samples = 7, .seed = 3, .first_sample = 100, .class_labels = std::vector<int32_t>(7, 2)};
  const Array cotangents = Filled({7, kDrawPixels});

  const auto result =
      Run({.generation = &generation,
           .cotangents = &cotangents,
           .gradients = {v1::GRADIENT_BY_INITIAL_STATE, v1::GRADIENT_BY_STEP_NOISE}},
          {.solver =
               [] {
                 v1::SolverOptions solver;
                 solver.set_return_trajectory(true);
                 return solver;
               }()})
          .value();

  EXPECT_THAT(result.by_initial_state.shape, ElementsAre(7, kDrawWidth));
  EXPECT_EQ(result.by_initial_state.values[12], 106);
  EXPECT_THAT(result.by_step_noise.shape, ElementsAre(7, kDrawSteps, kDrawWidth));
  EXPECT_EQ(result.by_step_noise.values.back(), 106);
  EXPECT_THAT(result.trajectory.shape, ElementsAre(7, kDrawSteps + 1, kDrawWidth));
}

TEST_F(BatchedGradientTest, AlongGivenStatesNothingIsSolved) {
  const Array inputs = Filled({6, 3}), cotangents = Filled({6, 2}), states = Filled({6, 5, 3});

  const auto result =
      Run({.inputs = &inputs, .trajectory = &states, .cotangents = &cotangents}).value();

  EXPECT_THAT(result.outputs.shape, IsEmpty());
  EXPECT_THAT(result.by_inputs.shape, ElementsAre(6, 3));
  for (const auto& request : service_.gradient_requests()) {
    EXPECT_FALSE(request.has_options());
    EXPECT_EQ(request.trajectory().shape(0), request.inputs().shape(0));
  }
}

TEST_F(BatchedGradientTest, RefusesWhatIsNotOneRowPerSample) {
  const Array inputs = Filled({3, 3}), few = Filled({2, 2}), none;
  const Generation generation = {.num_samples = 3};
  const std::vector<std::pair<GradientTask, std::string>> cases = {
      {{.cotangents = &few}, "task: expected either inputs or a generation"},
      {{.inputs = &inputs, .generation = &generation}, "task: expected either inputs"},
      {{.inputs = &inputs, .cotangents = &few},
       "cotangents: expected a row for each of 3 samples, got shape [2, 2]"},
      {{.inputs = &inputs, .targets = &none}, "targets: expected a row for each of 3 samples"},
      {{.inputs = &inputs, .target_classes = {1}},
       "target_classes: expected 3, one per sample, got 1"}};
  for (const auto& [task, part] : cases) {
    const absl::Status status = BatchedGradient(*client_, model_, task, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << part;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
  EXPECT_THAT(service_.gradient_requests(), IsEmpty());
}

TEST_F(BatchedGradientTest, RefusesRepliesThatDoNotMatch) {
  const Array inputs = Filled({3, 3}), cotangents = Filled({3, 2});
  const std::vector<std::pair<std::function<void(v1::GradientResponse&)>, std::string>> cases = {
      {[](auto& reply) { reply.mutable_input_gradients()->set_shape(0, 2); },
       "bad reply: input_gradients"},
      {[](auto& reply) { reply.clear_input_gradients(); }, "bad reply: input_gradients"},
      {[](auto& reply) { reply.clear_outputs(); }, "bad reply: outputs"},
      {[](auto& reply) { reply.clear_backward(); },
       "bad reply: expected 3 reports of the way back, got 0"},
      {[](auto& reply) { reply.add_losses(1); }, "bad reply: expected 0 losses, got 1"},
      {[](auto& reply) { reply.clear_report(); }, "bad reply: expected 3 sample reports, got 0"}};
  for (const auto& [spoil, part] : cases) {
    service_.on_gradient = [&spoil = spoil](v1::GradientResponse* reply) {
      spoil(*reply);
      return grpc::Status::OK;
    };
    const absl::Status status = Run({.inputs = &inputs, .cotangents = &cotangents}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << part;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

}  // namespace
}  // namespace deeppcr
