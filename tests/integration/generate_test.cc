// SPDX-License-Identifier: Apache-2.0
// Samples of diffusion models from the real server over real sockets.
#include "kernels/problem/philox.h"
#include "tests/integration/generation_fixture.h"

namespace deeppcr::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GenerateTest : public GenerationFixture {};

// Leaves nothing to the plan: the arithmetic for a sample is then the same for every size of
// request.
void Pin(v1::GenerateRequest& request) {
  if (request.options().solver() == "sequential") return;
  v1::SolverOptions& options = *request.mutable_options();
  options.set_shooting_interval(4);
  options.set_initial_guess(v1::INITIAL_GUESS_COARSE);
  if (options.solver() != "newton") return;
  options.set_warm_sweeps(1);
  options.set_jacobian_refresh(v1::JACOBIAN_REFRESH_EVERY_ITERATION);
}

void ExpectNear(const v1::Tensor& got, const v1::Tensor& want, double tolerance,
                const std::string& what) {
  EXPECT_TRUE(
      std::equal(got.shape().begin(), got.shape().end(), want.shape().begin(), want.shape().end()))
      << what;
  const std::vector<float> a = Values(got), b = Values(want);
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], tolerance) << what << " at " << i;
}

TEST_F(GenerateTest, GetModelSaysWhatMayBeAskedFor) {
  const v1::GetModelResponse ddpm = Describe("ddpm");
  EXPECT_THAT(ddpm.num_inference_steps(), ElementsAre(kSteps, kFewSteps));
  EXPECT_EQ(ddpm.num_classes(), kClasses);
  EXPECT_EQ(ddpm.input_dim(), 0);
  EXPECT_EQ(ddpm.output_dim(), kImage);
  EXPECT_EQ(ddpm.summary().model_type(), "diffusion");
  EXPECT_EQ(ddpm.summary().num_layers(), kSteps);
  EXPECT_EQ(ddpm.summary().state_dim(), kState);
  EXPECT_THAT(ddpm.solvers(), Contains("newton"));
  EXPECT_THAT(ddpm.solvers(), ::testing::Not(Contains("quasi_newton")));
  ASSERT_EQ(ddpm.plans_size(), 2);
  EXPECT_EQ(ddpm.plans(0).SerializeAsString(), ddpm.plan().SerializeAsString());
  EXPECT_NE(ddpm.plans(0).id(), ddpm.plans(1).id());
  EXPECT_GT(ddpm.plans(1).entries_size(), 0);

  const v1::GetModelResponse ddim = Describe("ddim");
  EXPECT_EQ(ddim.input_dim(), kConditioning);
  EXPECT_EQ(ddim.num_classes(), 0);
  EXPECT_EQ(ddim.plans_size(), 1);
  EXPECT_EQ(Describe("net").plans_size(), 0);
}

TEST_F(GenerateTest, EverySolverAgreesWithSequential) {
  for (const bool few : {false, true}) {
    for (const bool ddpm : {true, false}) {
      if (few && !ddpm) continue;
      v1::GenerateRequest request =
          ddpm ? DdpmRequest(3, "sequential") : DdimRequest(3, "sequential");
      if (few) request.mutable_input()->set_num_inference_steps(kFewSteps);
      v1::GenerateResponse expected;
      grpc::Status status = Call(*stub_, request, &expected);
      ASSERT_TRUE(status.ok()) << status.error_message();
      const v1::GetModelResponse model = Describe(request.model());
      EXPECT_GE(model.solvers_size(), 5);
      for (const std::string& solver : model.solvers()) {
        request.mutable_options()->set_solver(solver);
        request.set_request_id("id-" + solver);
        v1::GenerateResponse response;
        status = Call(*stub_, request, &response);

        ASSERT_TRUE(status.ok()) << solver << ": " << status.error_message();
        ExpectNear(response.samples(), expected.samples(), 1e-3, solver);
        EXPECT_EQ(response.request_id(), "id-" + solver);
        const v1::SolveReport& report = response.report();
        ASSERT_EQ(report.samples_size(), 3);
        for (const v1::SampleReport& sample : report.samples()) {
          EXPECT_TRUE(sample.converged()) << solver;
          if (solver != "auto" && solver != "jacobi") {
            EXPECT_EQ(sample.solver(), solver) << "no fallback is expected";
          }
          EXPECT_GT(sample.dependent_stages(), 0);
        }
        EXPECT_EQ(report.plan_id(), model.plans(few ? 1 : 0).id());
        EXPECT_EQ(report.num_steps(), model.num_inference_steps(few ? 1 : 0));
        EXPECT_EQ(report.model_version(), 1);
        EXPECT_GE(report.batch_samples(), 3);
        EXPECT_GT(report.solve_seconds(), 0);
      }
    }
  }
}

TEST_F(GenerateTest, TheSameRequestGivesTheSameBits) {
  for (const char* solver : {"sequential", "newton", "picard", "auto"}) {
    v1::GenerateResponse first, second, other;
    v1::GenerateRequest request = DdpmRequest(3, solver);
    ASSERT_TRUE(Call(*stub_, request, &first).ok());
    ASSERT_TRUE(Call(*stub_, request, &second).ok());
    EXPECT_EQ(first.samples().data(), second.samples().data()) << solver;
    EXPECT_EQ(first.latents().data(), second.latents().data()) << solver;
    for (const bool seed : {true, false}) {
      request = DdpmRequest(3, solver);
      seed ? request.mutable_input()->set_seed(1) : request.mutable_input()->set_first_sample(6);
      ASSERT_TRUE(Call(*stub_, request, &other).ok());
      EXPECT_NE(first.samples().data(), other.samples().data()) << solver;
    }
  }
}

TEST_F(GenerateTest, ClassesAndConditionsMatter) {
  v1::GenerateResponse first, second;
  v1::GenerateRequest request = DdpmRequest(1);
  ASSERT_TRUE(Call(*stub_, request, &first).ok());
  request.mutable_input()->set_class_labels(0, 1);
  ASSERT_TRUE(Call(*stub_, request, &second).ok());
  EXPECT_NE(first.samples().data(), second.samples().data());

  request = DdimRequest(1);
  ASSERT_TRUE(Call(*stub_, request, &first).ok());
  request.mutable_input()->mutable_conditioning()->mutable_data()->assign(4 * kConditioning, '\0');
  ASSERT_TRUE(Call(*stub_, request, &second).ok());
  EXPECT_NE(first.samples().data(), second.samples().data());
}

// A request for samples [first, first + n) of the whole.
v1::GenerateRequest Part(const v1::GenerateRequest& whole, int32_t first, int32_t n) {
  v1::GenerateRequest part = whole;
  v1::GenerationInput& input = *part.mutable_input();
  input.set_num_samples(n);
  input.set_first_sample(whole.input().first_sample() + static_cast<uint64_t>(first));
  input.clear_class_labels();
  for (int32_t i = first; i < first + n; ++i) {
    input.add_class_labels(whole.input().class_labels(i));
  }
  return part;
}

TEST_F(GenerateTest, AnySplitGivesTheSameSamples) {
  for (const char* solver : {"sequential", "newton", "picard", "auto"}) {
    const bool pinned = std::string(solver) != "auto";
    v1::GenerateRequest whole = DdpmRequest(9, solver);
    if (pinned) Pin(whole);
    v1::GenerateResponse together;
    ASSERT_TRUE(Call(*stub_, whole, &together).ok());
    for (const std::vector<int32_t>& sizes :
         {std::vector<int32_t>{9}, {1, 8}, {4, 5}, {2, 3, 1, 3}, std::vector<int32_t>(9, 1)}) {
      v1::Tensor joined = together.samples();
      joined.clear_data();
      int32_t first = 0;
      for (const int32_t n : sizes) {
        v1::GenerateResponse response;
        const grpc::Status status = Call(*stub_, Part(whole, first, n), &response);
        ASSERT_TRUE(status.ok()) << status.error_message();
        joined.mutable_data()->append(response.samples().data());
        first += n;
      }
      // The plan depends on the size of the request: `auto` may take another solver.
      ExpectNear(joined, together.samples(), 1e-3, solver);
      EXPECT_TRUE(!pinned || joined.data() == together.samples().data()) << solver;
    }
  }
}

TEST_F(GenerateTest, TheCallersNoiseIsUsedAsDrawnNoiseWouldBe) {
  v1::GenerateRequest drawn = DdpmRequest(2);
  v1::GenerateResponse expected;
  ASSERT_TRUE(Call(*stub_, drawn, &expected).ok());
  std::vector<float> initial(2 * kState), steps(2 * kSteps * kState);
  for (int64_t s = 0; s < 2; ++s) {
    const uint64_t sample = drawn.input().first_sample() + static_cast<uint64_t>(s);
    FillNormals(drawn.input().seed(), sample, kInitialNoiseStep, kState,
                initial.data() + s * kState);
    for (int64_t i = 0; i < kSteps; ++i) {
      FillNormals(drawn.input().seed(), sample, static_cast<uint32_t>(i), kState,
                  steps.data() + (s * kSteps + i) * kState);
    }
  }
  v1::GenerateRequest given = drawn;
  given.mutable_input()->set_seed(99);
  given.mutable_input()->set_first_sample(1000);
  SetTensor({2, kState}, initial, given.mutable_input()->mutable_initial_noise());
  SetTensor({2, kSteps, kState}, steps, given.mutable_input()->mutable_step_noise());
  v1::GenerateResponse response;
  ASSERT_TRUE(Call(*stub_, given, &response).ok());
  EXPECT_EQ(response.samples().data(), expected.samples().data());

  for (const bool initial_only : {true, false}) {
    v1::GenerateRequest half = given;
    initial_only ? half.mutable_input()->clear_step_noise()
                 : half.mutable_input()->clear_initial_noise();
    ASSERT_TRUE(Call(*stub_, half, &response).ok());
    EXPECT_NE(response.samples().data(), expected.samples().data());
    // Noise that the request does not give is drawn.
    half.mutable_input()->set_seed(drawn.input().seed());
    half.mutable_input()->set_first_sample(drawn.input().first_sample());
    ASSERT_TRUE(Call(*stub_, half, &response).ok());
    EXPECT_EQ(response.samples().data(), expected.samples().data());
  }
}

TEST_F(GenerateTest, LatentsAreWhatTheDecoderWasGiven) {
  v1::GenerateRequest request = DdpmRequest(3);
  request.mutable_options()->set_return_trajectory(true);
  v1::GenerateResponse response;
  ASSERT_TRUE(Call(*stub_, request, &response).ok());

  EXPECT_THAT(response.latents().shape(), ElementsAre(3, kState));
  EXPECT_THAT(response.trajectory().shape(), ElementsAre(3, kSteps + 1, kState));
  const std::vector<float> latents = Values(response.latents());
  const std::vector<float> states = Values(response.trajectory());
  ASSERT_EQ(states.size(), static_cast<size_t>(3 * (kSteps + 1) * kState));
  for (int64_t s = 0; s < 3; ++s) {
    const float* const first = states.data() + s * (kSteps + 1) * kState;
    EXPECT_EQ(std::memcmp(first + kSteps * kState, latents.data() + s * kState, 4 * kState), 0);
    std::vector<float> noise(kState);
    FillNormals(request.input().seed(), request.input().first_sample() + static_cast<uint64_t>(s),
                kInitialNoiseStep, kState, noise.data());
    EXPECT_EQ(std::memcmp(first, noise.data(), 4 * kState), 0);
  }

  ASSERT_TRUE(Call(*stub_, DdimRequest(2), &response).ok());
  EXPECT_FALSE(response.has_latents());
  EXPECT_FALSE(response.has_trajectory());
}

TEST_F(GenerateTest, ATrajectoryIsAGuessForTheNextSolve) {
  for (const int64_t steps : {kSteps, kFewSteps}) {
    v1::GenerateRequest request = DdpmRequest(2);
    request.mutable_input()->set_num_inference_steps(static_cast<int32_t>(steps));
    request.mutable_options()->set_shooting_interval(1);
    request.mutable_options()->set_warm_sweeps(0);
    request.mutable_options()->set_initial_guess(v1::INITIAL_GUESS_CONSTANT);
    request.mutable_options()->set_return_trajectory(true);
    v1::GenerateResponse first, second;
    ASSERT_TRUE(Call(*stub_, request, &first).ok());

    *request.mutable_initial_states() = first.trajectory();
    request.mutable_options()->set_initial_guess(v1::INITIAL_GUESS_PREVIOUS);
    const grpc::Status status = Call(*stub_, request, &second);

    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(second.report().initial_guess(), "previous");
    ExpectNear(second.trajectory(), first.trajectory(), 1e-3, "trajectory");
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(second.report().samples(i).iterations(), 1);
      EXPECT_GT(first.report().samples(i).iterations(), 1);
    }
  }
}

// Every solver must report the overflow: `auto` and `sequential` too.
TEST_F(GenerateTest, OverflowIsAnErrorWhereThatIsAskedFor) {
  v1::GenerateRequest request = DdimRequest(2);
  SetTensor({2, 3}, {0, 0, 0, 3e38f, 3e38f, -3e38f},
            request.mutable_input()->mutable_initial_noise());
  for (const char* solver : {"auto", "sequential", "newton"}) {
    request.mutable_options()->set_solver(solver);
    request.mutable_options()->set_on_no_convergence(v1::ON_NO_CONVERGENCE_ERROR);
    v1::GenerateResponse response;
    const grpc::Status status = Call(*stub_, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED) << solver;
    EXPECT_THAT(status.error_message(), HasSubstr("sample 1 did not converge")) << solver;
    EXPECT_EQ(Stream(*stub_, request).status.error_code(), grpc::StatusCode::ABORTED) << solver;

    request.mutable_options()->clear_on_no_convergence();
    ASSERT_TRUE(Call(*stub_, request, &response).ok()) << solver;
    EXPECT_TRUE(response.report().samples(0).converged()) << solver;
    EXPECT_FALSE(response.report().samples(1).converged()) << solver;
    EXPECT_EQ(response.report().samples(1).termination(), "non_finite") << solver;
  }
}

TEST_F(GenerateTest, MistakesAreRefusedInWords) {
  v1::GenerateRequest request = DdpmRequest();
  const auto expect = [&](const std::string& part) {
    v1::GenerateResponse response;
    const grpc::Status status = Call(*stub_, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << part;
    EXPECT_THAT(status.error_message(), HasSubstr(part));
    const Streamed streamed = Stream(*stub_, request);
    EXPECT_EQ(streamed.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << part;
    EXPECT_EQ(streamed.status.error_message(), status.error_message());
    EXPECT_TRUE(streamed.progress.empty() && streamed.results.empty());
  };
  request.mutable_input()->set_num_inference_steps(1001);
  expect("input.num_inference_steps: expected an integer in [0, 1000], or one of 24, 8, got 1001");
  request = DdpmRequest();
  request.mutable_input()->set_class_labels(1, 3);
  expect("input.class_labels: expected a number in [0, 2], got 3");
  request = DdpmRequest();
  request.mutable_options()->set_initial_guess(v1::INITIAL_GUESS_CALIBRATED);
  expect("a diffusion model has coarse instead");
  // The interval is within another L, but not within the L of this request.
  request = DdpmRequest();
  request.mutable_input()->set_num_inference_steps(kFewSteps);
  request.mutable_options()->set_shooting_interval(kFewSteps + 1);
  expect("options.shooting_interval: expected a number in [0, 8], got 9");
  request = DdpmRequest();
  SetTensor({3, kState}, std::vector<float>(3 * kState, NAN),
            request.mutable_input()->mutable_initial_noise());
  expect("input.initial_noise.data: expected finite values, got nan at flat index 0");
  request = DdimRequest();
  SetTensor({3, kConditioning}, std::vector<float>(3 * kConditioning, NAN),
            request.mutable_input()->mutable_conditioning());
  expect("input.conditioning.data: expected finite values, got nan at flat index 0");
  request = DdimRequest();
  request.set_model("net");
  expect("model: expected a diffusion model for Generate, got one of type resnet: use Forward");

  v1::ForwardResponse response;
  const grpc::Status status = deeppcr::Call(*stub_, MakeRequest(1, "ddpm", 1), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("use Generate"));
}

// Requests that wait for a number of steps end on the model that they found, though a reload has
// put another one in its place.
TEST_F(GenerateTest, AReloadLeavesThoseThatWaitForTheirSteps) {
  std::atomic<bool> stop{false};
  std::atomic<int32_t> number{9}, answers{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i)
    clients.emplace_back([&] {
      const auto stub = Connect(server_->address());
      while (!stop) {
        v1::GenerateRequest request = DdpmRequest(1, "sequential");
        request.mutable_input()->set_num_inference_steps(number++ % 900 + 9);
        v1::GenerateResponse response;
        const grpc::Status status = Call(*stub, request, &response);
        EXPECT_TRUE(status.ok()) << status.error_message();
        ++answers;
      }
    });
  for (int reload = 0; reload < 8; ++reload) {
    const int32_t seen = answers;
    v1::LoadModelRequest request;
    request.set_model("ddpm");
    v1::LoadModelResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->LoadModel(&context, request, &response).ok());
    while (answers < seen + 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  stop = true;
  for (std::thread& client : clients) client.join();
}

// The bits are those of a server whose config.json names the number.
TEST_F(GenerateTest, TakesNumbersOfStepsThatNoPlanWasMadeFor) {
  EXPECT_EQ(Describe("ddpm").max_inference_steps(), 1000);
  ModelConfig config = DdpmConfig();
  config.num_inference_steps = {37};
  TemporaryDirectory named;
  WriteDiffusionModel(named.File("ddpm/1"), config, "DDPMScheduler");
  const auto other = ServerProcess::Start(named.path(), {"--threads=1"});
  ASSERT_NE(other, nullptr);
  const auto other_stub = Connect(other->address());
  for (const char* solver : {"sequential", "newton", "picard", "auto"}) {
    v1::GenerateRequest request = DdpmRequest(3, solver);
    request.mutable_input()->set_num_inference_steps(37);
    v1::GenerateResponse response, expected;
    const grpc::Status status = Call(*stub_, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_TRUE(Call(*other_stub, request, &expected).ok());
    EXPECT_EQ(response.report().num_steps(), 37) << solver;
    EXPECT_EQ(response.report().plan_id().size(), 16U);
    for (const v1::SampleReport& sample : response.report().samples())
      EXPECT_TRUE(sample.converged()) << solver;
    ExpectNear(response.samples(), expected.samples(), 2e-3, solver);
    if (std::string_view(solver) != "sequential") continue;
    EXPECT_EQ(response.samples().data(), expected.samples().data());
    const Streamed streamed = Stream(*stub_, request);
    ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
    EXPECT_EQ(streamed.results.at(0).samples().data(), expected.samples().data());
  }
}

// Many clients at once, each with a number of its own, more of them than are kept.
TEST_F(GenerateTest, ManyNumbersOfStepsAtOnceAllGetTheirAnswers) {
  constexpr int kThreads = 8, kEach = 5;
  std::atomic<int> answered = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto stub = Connect(server_->address());
      for (int i = 0; i < kEach; ++i) {
        const int32_t steps = 40 + 3 * ((t + i) % 12);
        v1::GenerateRequest request = DdpmRequest(2, i % 2 == 0 ? "newton" : "auto");
        request.mutable_input()->set_num_inference_steps(steps);
        v1::GenerateResponse response;
        const grpc::Status status = Call(*stub, request, &response);
        EXPECT_TRUE(status.ok()) << status.error_message();
        EXPECT_EQ(response.report().num_steps(), steps);
        answered += status.ok() ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered.load(), kThreads * kEach);
}

TEST_F(GenerateTest, AServerMayKeepToTheNumbersThatConfigNames) {
  const auto strict = StartServer({"--max_unplanned_bytes=0"});
  ASSERT_NE(strict, nullptr);
  v1::GenerateRequest request = DdpmRequest();
  request.mutable_input()->set_num_inference_steps(37);
  v1::GenerateResponse response;
  const grpc::Status status = Call(*Connect(strict->address()), request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(),
              HasSubstr("input.num_inference_steps: expected one of 24, 8"));
}

TEST_F(GenerateTest, CompareTakesAGeneration) {
  const v1::GetModelResponse model = Describe("ddpm");
  for (const int32_t steps : {0, static_cast<int32_t>(kFewSteps), 11}) {
    v1::CompareRequest request;
    request.set_model("ddpm");
    *request.mutable_generation() = DdpmRequest(2).input();
    request.mutable_generation()->set_num_inference_steps(steps);
    for (const char* solver : {"newton", "picard", "sequential"}) {
      request.add_options()->set_solver(solver);
    }
    request.mutable_options(0)->set_initial_guess(v1::INITIAL_GUESS_COARSE);
    request.set_repetitions(3);
    v1::GenerateRequest alone = DdpmRequest(2, "sequential");
    alone.mutable_input()->set_num_inference_steps(steps);
    v1::GenerateResponse expected;
    ASSERT_TRUE(Call(*stub_, alone, &expected).ok());
    v1::CompareResponse response;
    grpc::ClientContext context;

    const grpc::Status status = stub_->Compare(&context, request, &response);

    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(response.rows_size(), 3);
    for (const v1::CompareRow& row : response.rows()) {
      EXPECT_EQ(row.error(), "");
      EXPECT_TRUE(row.converged());
      EXPECT_LT(row.max_state_error(), 1e-3);
      EXPECT_GT(row.min_seconds(), 0);
      ExpectNear(row.outputs(), expected.samples(), 1e-3, row.requested_solver());
    }
    EXPECT_EQ(response.rows(2).outputs().data(), expected.samples().data());
    EXPECT_EQ(response.sequential_stages(), steps == 0 ? kSteps : steps);
    EXPECT_EQ(response.plan_id(), expected.report().plan_id());
    if (steps != 11) {
      EXPECT_EQ(response.plan_id(), model.plans(steps == 0 ? 0 : 1).id());
    }
  }
}

TEST_F(GenerateTest, EachMethodIsCounted) {
  const std::vector<std::string> durations = {"method=\"Generate\"", "model=\"ddpm\"",
                                              "solver=\"newton\""};
  v1::GenerateResponse response;
  ASSERT_TRUE(Call(*stub_, DdpmRequest(3), &response).ok());
  ASSERT_TRUE(Stream(*stub_, DdpmRequest(3)).status.ok());
  const auto answered = [&](const char* method) {
    return Metric(*server_, "deeppcr_requests_total",
                  {"code=\"OK\"", std::string("method=\"") + method + "\"", "model=\"ddpm\""});
  };
  const double generate = answered("Generate"), stream = answered("StreamGenerate");
  const double before = Metric(*server_, "deeppcr_request_duration_seconds_count", durations);
  const double iterations =
      Metric(*server_, "deeppcr_iterations_count", {"model=\"ddpm\"", "solver=\"newton\""});
  ASSERT_GE(before, 2);
  ASSERT_TRUE(Call(*stub_, DdpmRequest(3), &response).ok());
  ASSERT_TRUE(Stream(*stub_, DdpmRequest(3)).status.ok());

  // Durations of streams count as Generate's too.
  for (const char* name :
       {"deeppcr_request_duration_seconds_count", "deeppcr_queue_duration_seconds_count",
        "deeppcr_solve_duration_seconds_count"}) {
    EXPECT_EQ(Metric(*server_, name, durations), before + 2) << name;
  }
  EXPECT_EQ(answered("Generate"), generate + 1);
  EXPECT_EQ(answered("StreamGenerate"), stream + 1);
  EXPECT_EQ(Metric(*server_, "deeppcr_iterations_count", {"model=\"ddpm\"", "solver=\"newton\""}),
            iterations + 6);
  EXPECT_EQ(Metric(*server_, "deeppcr_request_duration_seconds_count",
                   {"method=\"Forward\"", "model=\"ddpm\""}),
            -1);
}

TEST_F(GenerateTest, ShadowPairsAreMeasured) {
  for (const char* solver : {"newton", "sequential"}) {
    const auto server = StartServer({"--shadow_rate=1"});
    ASSERT_NE(server, nullptr);
    const auto stub = Connect(server->address());
    v1::GenerateRequest request = DdpmRequest(3, solver);
    request.mutable_input()->set_num_inference_steps(kFewSteps);
    v1::GenerateResponse response;
    // The server always samples the first request.
    const bool streamed = std::string(solver) == "newton";
    ASSERT_TRUE(streamed ? Stream(*stub, request).status.ok()
                         : Call(*stub, request, &response).ok());

    EXPECT_TRUE(WaitForMetric(*server, "deeppcr_shadow_runs_total", {"outcome=\"measured\""}, 1))
        << server->Get("/metrics");

    const std::vector<std::string> labels = {"method=\"Generate\"", "model=\"ddpm\"",
                                             std::string("solver=\"") + solver + "\""};
    EXPECT_EQ(Metric(*server, "deeppcr_speedup_ratio_count", labels), 1);
    EXPECT_GT(Metric(*server, "deeppcr_speedup_ratio_sum", labels), 0);
    EXPECT_EQ(Metric(*server, "deeppcr_shadow_relative_error_count", labels), 1);
    EXPECT_LT(Metric(*server, "deeppcr_shadow_relative_error_sum", labels), 1e-3);
    EXPECT_EQ(Metric(*server, "deeppcr_shadow_runs_total", {"outcome=\"failed\""}), 0);
  }
}

}  // namespace
}  // namespace deeppcr::testing
