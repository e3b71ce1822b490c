// SPDX-License-Identifier: Apache-2.0
// libdeeppcr, as a program sees it that links it, beside the engine behind it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <immintrin.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/c_api/deeppcr.h"
#include "kernels/engine.h"
#include "tests/kernels/c_api/handles.h"
#include "tests/testing/sanitizers.h"

namespace deeppcr::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class CApiTest : public ::testing::Test {
 protected:
  // Inputs that differ from sample to sample.
  std::vector<float> Inputs(const deeppcr_model_info& info, int64_t n) const {
    std::vector<float> x(n * info.input_dim);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 37) % 64) / 64.0F;
    return x;
  }

  const Owned<deeppcr_engine> engine_ = NewEngine();
};

TEST_F(CApiTest, ForwardHasTheBitsOfTheEngine) {
  const Owned<deeppcr_model> model = Load(engine_.get(), "digits-resnet");
  const deeppcr_model_info info = InfoOf(model.get());
  EXPECT_STREQ(info.model_type, "resnet");
  EXPECT_EQ(info.generates, 0);
  const auto engine = Engine::Create({.backend = "cpu", .num_threads = 1}).value();
  const auto loaded = engine->LoadModel(Folder("digits-resnet"), nullptr, nullptr).value();
  EXPECT_EQ(info.weights_sha256, loaded->info().weights_sha256);
  for (const int64_t n : {1, 3}) {
    const std::vector<float> x = Inputs(info, n);
    for (const char* solver : {"auto", "sequential", "newton", "picard"}) {
      Answer got(info, n, info.num_steps), expected(info, n, info.num_steps);
      deeppcr_run_options options = DEEPPCR_RUN_OPTIONS_INIT;
      options.solver = solver;
      deeppcr_inputs inputs = Request(n, x);
      ASSERT_EQ(deeppcr_run(model.get(), &options, &inputs, &got.view), DEEPPCR_OK)
          << deeppcr_last_error();
      std::vector<SampleReport> reports(n);
      RunItem item{.samples = {.num_samples = n, .inputs = x},
                   .outputs = expected.outputs,
                   .final_states = expected.final_states,
                   .trajectory = expected.trajectory,
                   .reports = reports};
      const auto system = loaded->Find();
      ASSERT_TRUE(
          system->Run(system->Resolve({.solver = solver}, n).value(), {&item, 1}, nullptr).ok());
      EXPECT_EQ(got.outputs, expected.outputs) << solver;
      EXPECT_EQ(got.final_states, expected.final_states) << solver;
      EXPECT_EQ(got.trajectory, expected.trajectory) << solver;
      EXPECT_GT(got.view.seconds, 0);
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_EQ(got.reports[i].solver, reports[i].solver);
        EXPECT_EQ(got.reports[i].iterations, reports[i].iterations);
        EXPECT_EQ(got.reports[i].dependent_stages, reports[i].dependent_stages);
        EXPECT_EQ(got.reports[i].converged, 1);
        EXPECT_EQ(std::isnan(got.reports[i].error_estimate), !reports[i].error_estimate);
      }
    }
  }
}

TEST_F(CApiTest, APreviousTrajectoryIsAGuess) {
  const Owned<deeppcr_model> model = Load(engine_.get(), "digits-resnet");
  const deeppcr_model_info info = InfoOf(model.get());
  const std::vector<float> x = Inputs(info, 1);
  Answer first(info, 1, info.num_steps), second(info, 1, info.num_steps);
  deeppcr_run_options options = DEEPPCR_RUN_OPTIONS_INIT;
  options.solver = "newton";
  deeppcr_inputs inputs = Request(1, x);
  ASSERT_EQ(deeppcr_run(model.get(), &options, &inputs, &first.view), DEEPPCR_OK);
  options.initial_guess = DEEPPCR_GUESS_PREVIOUS;
  ExpectRefused(deeppcr_run(model.get(), &options, &inputs, &second.view), DEEPPCR_INVALID_ARGUMENT,
                "inputs.initial_states: expected a pointer");
  inputs.initial_states = first.trajectory.data();
  ASSERT_EQ(deeppcr_run(model.get(), &options, &inputs, &second.view), DEEPPCR_OK);
  EXPECT_LT(second.reports[0].iterations, first.reports[0].iterations);
}

TEST_F(CApiTest, SamplesFollowFromSeedAndNumber) {
  const Owned<deeppcr_model> model = Load(engine_.get(), "swissroll-ddpm");
  const deeppcr_model_info info = InfoOf(model.get());
  EXPECT_EQ(info.generates, 1);
  deeppcr_run_options options = DEEPPCR_RUN_OPTIONS_INIT;
  options.num_inference_steps = 37;  // has no plan of its own
  Answer all(info, 4, 37), last(info, 1, 37);
  deeppcr_inputs inputs = DEEPPCR_INPUTS_INIT;
  inputs.num_samples = 4;
  inputs.seed = 11;
  ASSERT_EQ(deeppcr_run(model.get(), &options, &inputs, &all.view), DEEPPCR_OK)
      << deeppcr_last_error();
  inputs.num_samples = 1;
  inputs.first_sample = 3;
  ASSERT_EQ(deeppcr_run(model.get(), &options, &inputs, &last.view), DEEPPCR_OK);
  const int64_t out = info.output_dim;
  EXPECT_EQ(std::memcmp(last.outputs.data(), all.outputs.data() + 3 * out, out * sizeof(float)), 0);
  EXPECT_NE(std::memcmp(last.outputs.data(), all.outputs.data(), out * sizeof(float)), 0);
  inputs.first_sample = UINT64_MAX;
  ExpectRefused(deeppcr_run(model.get(), &options, &inputs, &last.view), DEEPPCR_INVALID_ARGUMENT,
                "first_sample");
  inputs.first_sample = 0;
  options.num_inference_steps = -1;
  ExpectRefused(deeppcr_run(model.get(), &options, &inputs, &last.view), DEEPPCR_INVALID_ARGUMENT,
                "num_inference_steps");
  options.num_inference_steps = info.max_inference_steps + 1;
  ExpectRefused(deeppcr_run(model.get(), &options, &inputs, &last.view), DEEPPCR_INVALID_ARGUMENT,
                "steps");
}

TEST_F(CApiTest, ClassesAreChecked) {
  const Owned<deeppcr_model> model = Load(engine_.get(), "digits-class");
  const deeppcr_model_info info = InfoOf(model.get());
  ASSERT_EQ(info.num_classes, 10);
  deeppcr_run_options options = DEEPPCR_RUN_OPTIONS_INIT;
  options.num_inference_steps = 10;
  Answer answer(info, 2, 10);
  deeppcr_inputs inputs = DEEPPCR_INPUTS_INIT;
  inputs.num_samples = 2;
  ExpectRefused(deeppcr_run(model.get(), &options, &inputs, &answer.view), DEEPPCR_INVALID_ARGUMENT,
                "inputs.class_labels: expected a pointer, got NULL");
  for (const int32_t wrong : {-1, 10}) {
    const int32_t labels[] = {3, wrong};
    inputs.class_labels = labels;
    ExpectRefused(deeppcr_run(model.get(), &options, &inputs, &answer.view),
                  DEEPPCR_INVALID_ARGUMENT, "[0, 9]");
  }
  const int32_t labels[] = {3, 9};
  inputs.class_labels = labels;
  EXPECT_EQ(deeppcr_run(model.get(), &options, &inputs, &answer.view), DEEPPCR_OK)
      << deeppcr_last_error();
}

TEST_F(CApiTest, WrongRequestsAreRefusedByName) {
  const Owned<deeppcr_model> model = Load(engine_.get(), "digits-mlp");
  const deeppcr_model_info info = InfoOf(model.get());
  const std::vector<float> x = Inputs(info, 1);
  Answer answer(info, 1, info.num_steps);
  deeppcr_inputs inputs = Request(1, x);
  const auto run = [&](auto change) {
    deeppcr_run_options options = DEEPPCR_RUN_OPTIONS_INIT;
    deeppcr_inputs changed = inputs;
    deeppcr_outputs outputs = answer.view;
    change(options, changed, outputs);
    return deeppcr_run(model.get(), &options, &changed, &outputs);
  };
  const auto refuse = [&](const char* text, auto change) {
    ExpectRefused(run(change), DEEPPCR_INVALID_ARGUMENT, text);
  };
  refuse("solver: expected auto, ", [](auto& o, auto&, auto&) { o.solver = "fast"; });
  refuse("rtol", [](auto& o, auto&, auto&) { o.rtol = NAN; });
  refuse("atol", [](auto& o, auto&, auto&) { o.atol = -1; });
  refuse("max_iterations", [](auto& o, auto&, auto&) { o.max_iterations = -1; });
  refuse("shooting_interval", [](auto& o, auto&, auto&) { o.shooting_interval = 1 << 20; });
  refuse("warm_sweeps", [](auto& o, auto&, auto&) { o.warm_sweeps = 65; });
  refuse("initial_guess: expected a value in [0, 4], got 5",
         [](auto& o, auto&, auto&) { o.initial_guess = 5; });
  refuse("jacobian_refresh", [](auto& o, auto&, auto&) { o.jacobian_refresh = -1; });
  refuse("on_no_convergence", [](auto& o, auto&, auto&) { o.on_no_convergence = 3; });
  refuse("timeout_seconds", [](auto& o, auto&, auto&) { o.timeout_seconds = NAN; });
  refuse("num_inference_steps", [](auto& o, auto&, auto&) { o.num_inference_steps = 5; });
  refuse("num_samples: expected a number in [1, ",
         [](auto&, auto& i, auto&) { i.num_samples = 0; });
  refuse("num_samples", [](auto&, auto& i, auto&) { i.num_samples = INT64_MAX; });
  refuse("inputs.inputs: expected a pointer", [](auto&, auto& i, auto&) { i.inputs = nullptr; });
  const int32_t label = 0;
  refuse("class_labels: expected NULL", [&](auto&, auto& i, auto&) { i.class_labels = &label; });
  refuse("outputs.outputs", [](auto&, auto&, auto& o) { o.outputs = nullptr; });
  refuse("options.struct_size", [](auto& o, auto&, auto&) { o.struct_size = 0; });
  refuse("options.struct_size", [](auto& o, auto&, auto&) { o.struct_size += 8; });
  refuse("inputs.struct_size", [](auto&, auto& i, auto&) { i.struct_size = 1; });
  // A size that ends inside a pointer would leave half of one.
  for (size_t size = 0; size <= sizeof(deeppcr_inputs) + 16; ++size) {
    if (size % 8 != 0)
      refuse("inputs.struct_size", [size](auto&, auto& i, auto&) { i.struct_size = size; });
  }
  refuse("outputs.report_size: expected a multiple of 8 in [16, ",
         [](auto&, auto&, auto& o) { o.report_size -= 4; });
  refuse("got 18446744073709551615", [](auto&, auto&, auto& o) { o.report_size = SIZE_MAX; });
  refuse("outputs.struct_size", [](auto&, auto&, auto& o) { o.struct_size = 1 << 20; });
  EXPECT_EQ(run([](auto&, auto&, auto&) {}), DEEPPCR_OK) << deeppcr_last_error();
  EXPECT_STREQ(deeppcr_last_error(), "");
}

TEST_F(CApiTest, MissingPointersAreRefused) {
  deeppcr_engine* engine = nullptr;
  deeppcr_model* model = nullptr;
  EXPECT_EQ(deeppcr_engine_create(nullptr, nullptr), DEEPPCR_INVALID_ARGUMENT);
  EXPECT_EQ(deeppcr_model_load(nullptr, "x", nullptr, &model), DEEPPCR_INVALID_ARGUMENT);
  EXPECT_EQ(deeppcr_model_load(engine_.get(), nullptr, nullptr, &model), DEEPPCR_INVALID_ARGUMENT);
  EXPECT_EQ(deeppcr_model_load(engine_.get(), "", nullptr, &model), DEEPPCR_INVALID_ARGUMENT);
  ExpectRefused(deeppcr_model_load(engine_.get(), std::string(5000, 'x').c_str(), nullptr, &model),
                DEEPPCR_INVALID_ARGUMENT, "File name too long");
  EXPECT_EQ(deeppcr_model_describe(nullptr, nullptr), DEEPPCR_INVALID_ARGUMENT);
  EXPECT_EQ(deeppcr_run(nullptr, nullptr, nullptr, nullptr), DEEPPCR_INVALID_ARGUMENT);
  EXPECT_EQ(deeppcr_token_create(nullptr), DEEPPCR_INVALID_ARGUMENT);
  EXPECT_EQ(deeppcr_model_solver(nullptr, 0), nullptr);
  deeppcr_engine_destroy(nullptr);
  deeppcr_model_destroy(nullptr);
  deeppcr_token_destroy(nullptr);
  deeppcr_token_cancel(nullptr);
  deeppcr_engine_options options = DEEPPCR_ENGINE_OPTIONS_INIT;
  options.backend = "tpu";
  ExpectRefused(deeppcr_engine_create(&options, &engine), DEEPPCR_INVALID_ARGUMENT, "\"tpu\"");
  options = DEEPPCR_ENGINE_OPTIONS_INIT;
  options.plan_mode = 3;
  ExpectRefused(deeppcr_engine_create(&options, &engine), DEEPPCR_INVALID_ARGUMENT, "plan_mode");
  options = DEEPPCR_ENGINE_OPTIONS_INIT;
  options.num_threads = -1;
  ExpectRefused(deeppcr_engine_create(&options, &engine), DEEPPCR_INVALID_ARGUMENT, "num_threads");
  EXPECT_EQ(engine, nullptr);
  ExpectRefused(deeppcr_model_load(engine_.get(), "/nowhere", nullptr, &model), DEEPPCR_NOT_FOUND,
                "/nowhere");
  EXPECT_EQ(model, nullptr);
}

TEST_F(CApiTest, LimitsAndSizesAreChecked) {
  deeppcr_engine* engine = nullptr;
  const auto refuse = [&](const char* text, auto change) {
    deeppcr_engine_options options = DEEPPCR_ENGINE_OPTIONS_INIT;
    change(options);
    ExpectRefused(deeppcr_engine_create(&options, &engine), DEEPPCR_INVALID_ARGUMENT, text);
  };
  refuse("num_threads: expected", [](auto& o) { o.num_threads = 1025; });
  refuse("max_concurrent_runs", [](auto& o) { o.max_concurrent_runs = INT32_MAX; });
  refuse("max_model_bytes", [](auto& o) { o.max_model_bytes = INT64_MAX; });
  refuse("max_workspace_bytes", [](auto& o) { o.max_workspace_bytes = 0; });
  const deeppcr_engine_options defaults = DEEPPCR_ENGINE_OPTIONS_INIT;
  EXPECT_EQ(defaults.max_unplanned_bytes, EngineOptions{}.max_unplanned_bytes);
  refuse("max_unplanned_bytes", [](auto& o) { o.max_unplanned_bytes = -2; });
  const Owned<deeppcr_model> model = Load(engine_.get(), "digits-mlp");
  const deeppcr_model_info info = InfoOf(model.get());
  const std::vector<float> x = Inputs(info, 1);
  Answer answer(info, 1, info.num_steps);
  deeppcr_inputs inputs = Request(1, x);
  for (const size_t size : {size_t{0}, size_t{8}, sizeof(deeppcr_report) + 8}) {
    answer.view.report_size = size;
    ExpectRefused(deeppcr_run(model.get(), nullptr, &inputs, &answer.view),
                  DEEPPCR_INVALID_ARGUMENT, "report_size");
  }
}

// A caller's thread that rounds down and flushes denormals gets the same bits, and keeps its mode.
TEST_F(CApiTest, TheCallersArithmeticDoesNotMatter) {
  const Owned<deeppcr_model> model = Load(engine_.get(), "digits-resnet");
  const deeppcr_model_info info = InfoOf(model.get());
  const std::vector<float> x = Inputs(info, 4);
  deeppcr_inputs inputs = Request(4, x);
  Answer expected(info, 4, info.num_steps), got(info, 4, info.num_steps);
  ASSERT_EQ(deeppcr_run(model.get(), nullptr, &inputs, &expected.view), DEEPPCR_OK);
  const unsigned before = _mm_getcsr(), other = 0x1F80 | 0x2000 | 0x8040;
  _mm_setcsr(other);
  const deeppcr_status status = deeppcr_run(model.get(), nullptr, &inputs, &got.view);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  ASSERT_EQ(status, DEEPPCR_OK);
  EXPECT_EQ(after, other);
  EXPECT_EQ(got.outputs, expected.outputs);
  EXPECT_EQ(got.trajectory, expected.trajectory);
}

TEST_F(CApiTest, NoConvergenceIsWhatTheOptionsSay) {
  const Owned<deeppcr_model> model = Load(engine_.get(), "digits-mlp");
  const deeppcr_model_info info = InfoOf(model.get());
  const std::vector<float> x = Inputs(info, 1);
  Answer answer(info, 1, info.num_steps);
  deeppcr_inputs inputs = Request(1, x);
  deeppcr_run_options options = DEEPPCR_RUN_OPTIONS_INIT;
  options.solver = "newton";
  options.max_iterations = 1;
  options.shooting_interval = 1;
  options.initial_guess = DEEPPCR_GUESS_CONSTANT;
  EXPECT_EQ(deeppcr_run(model.get(), &options, &inputs, &answer.view), DEEPPCR_OK);
  EXPECT_EQ(answer.reports[0].fallback, 1);
  EXPECT_STREQ(answer.reports[0].solver, "sequential");
  EXPECT_STREQ(answer.reports[0].attempt_solver, "newton");
  EXPECT_STREQ(answer.reports[0].attempt_termination, "max_iterations");
  options.on_no_convergence = DEEPPCR_NO_CONVERGENCE_RETURN;
  EXPECT_EQ(deeppcr_run(model.get(), &options, &inputs, &answer.view), DEEPPCR_OK);
  EXPECT_EQ(answer.reports[0].converged, 0);
  EXPECT_TRUE(std::isnan(answer.reports[0].error_estimate));
  EXPECT_EQ(answer.reports[0].attempt_solver, nullptr);
  options.on_no_convergence = DEEPPCR_NO_CONVERGENCE_ERROR;
  ExpectRefused(deeppcr_run(model.get(), &options, &inputs, &answer.view), DEEPPCR_ABORTED,
                "sample 0 did not converge");
}

TEST_F(CApiTest, WhatIsNotFiniteDoesNotConverge) {
  const Owned<deeppcr_model> model = Load(engine_.get(), "digits-resnet");
  const deeppcr_model_info info = InfoOf(model.get());
  deeppcr_inputs inputs = DEEPPCR_INPUTS_INIT;
  inputs.num_samples = 2;
  deeppcr_run_options options = DEEPPCR_RUN_OPTIONS_INIT;
  for (const char* solver : {"sequential", "newton"}) {
    for (const float poison : {NAN, INFINITY, 1e38F}) {
      std::vector<float> x = Inputs(info, 2);
      x[info.input_dim + 5] = poison;
      inputs.inputs = x.data();
      options.solver = solver;
      Answer answer(info, 2, info.num_steps);
      EXPECT_EQ(deeppcr_run(model.get(), &options, &inputs, &answer.view), DEEPPCR_OK);
      EXPECT_EQ(answer.reports[0].converged, 1) << "the other sample";
      const bool finite =
          std::isfinite(answer.outputs[info.output_dim]) && std::isfinite(answer.trajectory.back());
      EXPECT_EQ(answer.reports[1].converged, finite ? 1 : 0) << solver << " " << poison;
    }
  }
}

TEST_F(CApiTest, DeadlineAndTokenStop) {
  const Owned<deeppcr_model> model = Load(engine_.get(), "digits-ddpm");
  const deeppcr_model_info info = InfoOf(model.get());
  Answer answer(info, 1, info.num_steps);
  deeppcr_inputs inputs = DEEPPCR_INPUTS_INIT;
  inputs.num_samples = 1;
  deeppcr_run_options options = DEEPPCR_RUN_OPTIONS_INIT;
  options.timeout_seconds = 1e-9;
  EXPECT_EQ(deeppcr_run(model.get(), &options, &inputs, &answer.view), DEEPPCR_DEADLINE_EXCEEDED);
  deeppcr_token* made = nullptr;
  ASSERT_EQ(deeppcr_token_create(&made), DEEPPCR_OK);
  const Owned<deeppcr_token> token(made);
  options.timeout_seconds = 1e300;
  options.token = token.get();
  EXPECT_EQ(deeppcr_run(model.get(), &options, &inputs, &answer.view), DEEPPCR_OK);
  deeppcr_token_cancel(token.get());
  EXPECT_EQ(deeppcr_run(model.get(), &options, &inputs, &answer.view), DEEPPCR_CANCELLED);
  deeppcr_model* other = nullptr;
  EXPECT_EQ(deeppcr_model_load(engine_.get(), Folder("digits-ddpm").c_str(), token.get(), &other),
            DEEPPCR_CANCELLED);
}

// A header from before a member was added made a shorter structure.
TEST_F(CApiTest, OlderStructuresAreTaken) {
  const Owned<deeppcr_model> model = Load(engine_.get(), "digits-mlp");
  const deeppcr_model_info info = InfoOf(model.get());
  const std::vector<float> x = Inputs(info, 2);
  Answer answer(info, 2, info.num_steps);
  deeppcr_inputs inputs = DEEPPCR_INPUTS_INIT;
  inputs.struct_size = offsetof(deeppcr_inputs, initial_states);
  inputs.num_samples = 2;
  inputs.inputs = x.data();
  inputs.class_labels = reinterpret_cast<const int32_t*>(1);  // beyond what this header had
  std::vector<char> reports(2 * offsetof(deeppcr_report, iterations) + 1, 'x');
  answer.view.struct_size = offsetof(deeppcr_outputs, seconds);
  answer.view.seconds = -3;
  answer.view.reports = reinterpret_cast<deeppcr_report*>(reports.data());
  answer.view.report_size = offsetof(deeppcr_report, iterations);
  ASSERT_EQ(deeppcr_run(model.get(), nullptr, &inputs, &answer.view), DEEPPCR_OK)
      << deeppcr_last_error();
  EXPECT_EQ(answer.view.seconds, -3);
  EXPECT_EQ(reports.back(), 'x');
  const char* second = nullptr;
  std::memcpy(&second, reports.data() + answer.view.report_size, sizeof(second));
  EXPECT_STREQ(second, "sequential");
  deeppcr_model_info older = DEEPPCR_MODEL_INFO_INIT;
  older.struct_size = offsetof(deeppcr_model_info, input_dim);
  older.input_dim = -3;
  EXPECT_EQ(deeppcr_model_describe(model.get(), &older), DEEPPCR_OK);
  EXPECT_EQ(older.input_dim, -3);
  EXPECT_EQ(older.struct_size, offsetof(deeppcr_model_info, input_dim));
}

TEST_F(CApiTest, ThreadsHaveErrorsAndAnswersOfTheirOwn) {
  const Owned<deeppcr_model> model = Load(engine_.get(), "digits-resnet");
  const deeppcr_model_info info = InfoOf(model.get());
  const std::vector<float> x = Inputs(info, 8);
  Answer expected(info, 8, info.num_steps);
  deeppcr_inputs inputs = Request(8, x);
  ASSERT_EQ(deeppcr_run(model.get(), nullptr, &inputs, &expected.view), DEEPPCR_OK);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Answer answer(info, 8, info.num_steps);
      for (int i = 0; i < 50; ++i) {
        deeppcr_inputs wrong = DEEPPCR_INPUTS_INIT;
        wrong.num_samples = -t;
        EXPECT_EQ(deeppcr_run(model.get(), nullptr, &wrong, &answer.view),
                  DEEPPCR_INVALID_ARGUMENT);
        const std::string error = deeppcr_last_error();
        EXPECT_THAT(error, HasSubstr("got " + std::to_string(-t)));
        EXPECT_EQ(deeppcr_run(model.get(), nullptr, &inputs, &answer.view), DEEPPCR_OK);
        EXPECT_EQ(answer.outputs, expected.outputs);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CApiTest, AModelOutlivesItsEngine) {
  Owned<deeppcr_engine> engine = NewEngine();
  const Owned<deeppcr_model> model = Load(engine.get(), "digits-mlp");
  EXPECT_THAT(deeppcr_engine_device(engine.get()), StartsWith("cpu-"));
  engine.reset();
  const deeppcr_model_info info = InfoOf(model.get());
  const std::vector<float> x = Inputs(info, 3);
  Answer answer(info, 3, info.num_steps);
  deeppcr_inputs inputs = Request(3, x);
  EXPECT_EQ(deeppcr_run(model.get(), nullptr, &inputs, &answer.view), DEEPPCR_OK);
  EXPECT_STREQ(deeppcr_model_solver(model.get(), 0), "auto");
  EXPECT_EQ(deeppcr_model_solver(model.get(), 100), nullptr);
  EXPECT_EQ(deeppcr_model_solver(model.get(), -1), nullptr);
}

// What a child may do: be told why, let go of what it inherited, and make an engine of its own.
int InAChild(deeppcr_engine* engine, deeppcr_model* model) {
  const deeppcr_model_info info = InfoOf(model);
  Answer answer(info, 4, info.num_steps);
  const std::vector<float> x(4 * info.input_dim, 0.5F);
  deeppcr_inputs inputs = Request(4, x);
  if (deeppcr_run(model, nullptr, &inputs, &answer.view) != DEEPPCR_FAILED_PRECONDITION) return 1;
  if (std::strstr(deeppcr_last_error(), "fork") == nullptr) return 2;
  deeppcr_model* another = nullptr;
  if (deeppcr_model_load(engine, Folder("digits-mlp").c_str(), nullptr, &another) !=
      DEEPPCR_FAILED_PRECONDITION)
    return 3;
  deeppcr_model_destroy(model);
  deeppcr_engine_destroy(engine);
  const Owned<deeppcr_engine> own = NewEngine();
  const Owned<deeppcr_model> loaded = Load(own.get(), "digits-mlp");
  return deeppcr_run(loaded.get(), nullptr, &inputs, &answer.view) == DEEPPCR_OK ? 0 : 4;
}

TEST_F(CApiTest, AChildIsToldAndMakesItsOwn) {
  if (kThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer ends a child that starts threads";
  const Owned<deeppcr_model> model = Load(engine_.get(), "digits-mlp");
  const pid_t child = fork();
  if (child == 0) _exit(InAChild(engine_.get(), model.get()));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(CApiTest, ALoadTellsWhatItDoes) {
  deeppcr_engine_options options = DEEPPCR_ENGINE_OPTIONS_INIT;
  std::vector<std::string> steps;
  options.progress = [](void* user, int is_problem, const char* text) {
    EXPECT_EQ(is_problem, 0);
    static_cast<std::vector<std::string>*>(user)->emplace_back(text);
  };
  options.progress_user = &steps;
  deeppcr_engine* engine = nullptr;
  ASSERT_EQ(deeppcr_engine_create(&options, &engine), DEEPPCR_OK);
  const Owned<deeppcr_engine> owned(engine);
  const Owned<deeppcr_model> model = Load(engine, "digits-mlp");
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps[0], "reading");
}

}  // namespace
}  // namespace deeppcr::testing
