// SPDX-License-Identifier: Apache-2.0
// deeppcr_go_back, beside the engine behind it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

#include "kernels/engine.h"
#include "tests/kernels/c_api/handles.h"

namespace deeppcr::testing {
namespace {

// A run and the way back from it.
struct Journey {
  Journey(const deeppcr_model* loaded, int64_t n, int64_t m)
      : model(loaded),
        info(InfoOf(loaded)),
        x(n * info.input_dim, 0.25F),
        answer(info, n, info.num_steps),
        of_outputs(n * m * info.output_dim, 0.5F),
        by_inputs(n * m * info.input_dim),
        by_initial(n * m * info.state_dim) {
    inputs = Request(n, x);
    deeppcr_run_options of_run = DEEPPCR_RUN_OPTIONS_INIT;
    of_run.solver = "sequential";
    EXPECT_EQ(deeppcr_run(model, &of_run, &inputs, &answer.view), DEEPPCR_OK);
    cotangents.states = answer.trajectory.data();
    cotangents.columns = m;
    cotangents.of_outputs = of_outputs.data();
    gradients.inputs = by_inputs.data();
    gradients.initial_states = by_initial.data();
  }
  deeppcr_status Back() {
    return deeppcr_go_back(model, &options, &inputs, &cotangents, &gradients);
  }

  const deeppcr_model* model;
  const deeppcr_model_info info;
  std::vector<float> x;
  Answer answer;
  std::vector<float> of_outputs, by_inputs, by_initial;
  deeppcr_inputs inputs = DEEPPCR_INPUTS_INIT;
  deeppcr_backward_options options = DEEPPCR_BACKWARD_OPTIONS_INIT;
  deeppcr_cotangents cotangents = DEEPPCR_COTANGENTS_INIT;
  deeppcr_gradients gradients = DEEPPCR_GRADIENTS_INIT;
};

TEST(CApiGradientsTest, AreThoseOfTheEngine) {
  const auto engine = NewEngine(true);
  const auto model = Load(engine.get(), "digits-resnet");
  const auto own = Engine::Create({.backend = "cpu", .num_threads = 1, .gradients = true}).value();
  const auto loaded = own->LoadModel(Folder("digits-resnet"), nullptr, nullptr).value();
  Journey journey(model.get(), 3, 2);
  for (const deeppcr_way way : {DEEPPCR_WAY_SEQUENTIAL, DEEPPCR_WAY_PARALLEL}) {
    journey.options.way = way;
    ASSERT_EQ(journey.Back(), DEEPPCR_OK) << deeppcr_last_error();
    const int64_t steps = journey.info.num_steps;
    const auto root = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(steps))));
    std::vector<float> by_inputs(journey.by_inputs.size()), by_initial(journey.by_initial.size());
    std::vector<BackwardReport> reports(3);
    BackwardItem item{.samples = {.num_samples = 3, .inputs = journey.x},
                      .states = journey.answer.trajectory,
                      .columns = 2,
                      .of_outputs = journey.of_outputs,
                      .inputs = by_inputs,
                      .initial = by_initial,
                      .reports = reports};
    const BackwardOptions options =
        way == DEEPPCR_WAY_SEQUENTIAL
            ? BackwardOptions{}
            : BackwardOptions{.way = BackwardWay::kParallel, .shooting_interval = root};
    ASSERT_TRUE(loaded->Find()->GoBack(options, {&item, 1}).ok());
    EXPECT_EQ(journey.by_inputs, by_inputs);
    EXPECT_EQ(journey.by_initial, by_initial);
    EXPECT_EQ(journey.gradients.dependent_stages, reports[0].dependent_stages);
    EXPECT_GT(journey.gradients.seconds, 0);
  }
}

TEST(CApiGradientsTest, ErrorsAreThoseThatTheEngineEstimates) {
  const auto engine = NewEngine(true);
  // Of tanh: the slopes of relu change with no small displacement.
  const auto model = Load(engine.get(), "digits-mlp");
  const auto own = Engine::Create({.backend = "cpu", .num_threads = 1, .gradients = true}).value();
  const auto loaded = own->LoadModel(Folder("digits-mlp"), nullptr, nullptr).value();
  Journey journey(model.get(), 3, 2);
  const std::vector<double> state_errors = {1e-5, NAN, 0};
  std::vector<double> estimates(3, -1);
  journey.cotangents.state_errors = state_errors.data();
  journey.gradients.error_estimates = estimates.data();
  ASSERT_EQ(journey.Back(), DEEPPCR_OK) << deeppcr_last_error();

  std::vector<float> by_inputs(journey.by_inputs.size()), by_initial(journey.by_initial.size());
  std::vector<BackwardReport> reports(3);
  BackwardItem item{.samples = {.num_samples = 3, .inputs = journey.x},
                    .states = journey.answer.trajectory,
                    .columns = 2,
                    .of_outputs = journey.of_outputs,
                    .inputs = by_inputs,
                    .initial = by_initial,
                    .reports = reports};
  const auto go_back = [&](std::span<BackwardItem> items) {
    return loaded->Find()->GoBack(BackwardOptions{}, items);
  };
  ASSERT_TRUE(go_back({&item, 1}).ok());
  const std::vector<std::optional<StateError>> of_states = {
      StateError{.relative = 1e-5, .floor = 1e-2}, std::nullopt, StateError{.floor = 1e-2}};
  const auto expected =
      EstimateGradientErrors(journey.info.state_dim, item, of_states, go_back).value();
  ASSERT_TRUE(expected[0].has_value());
  EXPECT_EQ(estimates[0], *expected[0]);
  EXPECT_GT(estimates[0], 0);
  EXPECT_TRUE(std::isnan(estimates[1])) << "nothing is known of its states";
  EXPECT_EQ(estimates[2], 0);
  EXPECT_EQ(journey.by_inputs, by_inputs);
}

// A program that was built with the header of before has neither errors nor estimates.
TEST(CApiGradientsTest, OlderStructuresAreTaken) {
  const auto engine = NewEngine(true);
  const auto model = Load(engine.get(), "digits-resnet");
  Journey journey(model.get(), 1, 1);
  std::vector<double> estimates(1, -1);
  journey.gradients.error_estimates = estimates.data();
  journey.gradients.struct_size = offsetof(deeppcr_gradients, error_estimates);
  journey.cotangents.struct_size = offsetof(deeppcr_cotangents, state_errors);
  ASSERT_EQ(journey.Back(), DEEPPCR_OK) << deeppcr_last_error();
  EXPECT_EQ(estimates[0], -1);
  EXPECT_NE(journey.by_inputs[0], 0);
}

TEST(CApiGradientsTest, WhatCannotBeIsRefusedByName) {
  const auto engine = NewEngine(true);
  const auto model = Load(engine.get(), "digits-resnet");
  const auto refuse = [&](const char* name, const auto& change) {
    Journey journey(model.get(), 2, 1);
    change(journey);
    ExpectRefused(journey.Back(), DEEPPCR_INVALID_ARGUMENT, name);
  };
  refuse("cotangents.states", [](Journey& j) { j.cotangents.states = nullptr; });
  refuse("cotangents.states", [](Journey& j) { j.answer.trajectory.back() = NAN; });
  refuse("cotangents.columns", [](Journey& j) { j.cotangents.columns = 0; });
  refuse("cotangents.columns", [](Journey& j) { j.cotangents.columns = 5000; });
  refuse("options.way", [](Journey& j) { j.options.way = 2; });
  refuse("options.timeout_seconds", [](Journey& j) { j.options.timeout_seconds = NAN; });
  refuse("options.num_inference_steps", [](Journey& j) { j.options.num_inference_steps = 3; });
  refuse("inputs.inputs", [](Journey& j) { j.inputs.inputs = nullptr; });
  refuse("inputs.num_samples", [](Journey& j) { j.inputs.num_samples = 0; });
  refuse("gradients.step_noise", [](Journey& j) { j.gradients.step_noise = j.by_initial.data(); });
  refuse("gradients.struct_size", [](Journey& j) { j.gradients.struct_size += 8; });
  std::vector<double> estimates(2);
  refuse("cotangents.state_errors",
         [&](Journey& j) { j.gradients.error_estimates = estimates.data(); });
  const double outside[] = {1e-5, -1e-5};
  refuse("cotangents.state_errors", [&](Journey& j) {
    j.gradients.error_estimates = estimates.data();
    j.cotangents.state_errors = outside;
  });
  refuse("cotangents.state_floor", [&](Journey& j) {
    j.gradients.error_estimates = estimates.data();
    j.cotangents.state_errors = estimates.data();
    j.cotangents.state_floor = NAN;
  });
  refuse("options.shooting_interval", [](Journey& j) {
    j.options.way = DEEPPCR_WAY_PARALLEL;
    j.options.shooting_interval = -1;
  });
  Journey stopped(model.get(), 2, 1);
  deeppcr_token* made = nullptr;
  ASSERT_EQ(deeppcr_token_create(&made), DEEPPCR_OK);
  const Owned<deeppcr_token> token(made);
  deeppcr_token_cancel(made);
  stopped.options.token = made;
  EXPECT_EQ(stopped.Back(), DEEPPCR_CANCELLED);
  const auto without = NewEngine();
  const auto plain = Load(without.get(), "digits-resnet");
  Journey none(plain.get(), 1, 1);
  ExpectRefused(none.Back(), DEEPPCR_UNIMPLEMENTED, "gradients");
}

}  // namespace
}  // namespace deeppcr::testing
