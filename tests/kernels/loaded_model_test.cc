// SPDX-License-Identifier: Apache-2.0
#include "kernels/loaded_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/base/file.h"
#include "tests/testing/diffusion_tensors.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/faulty_backend.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {
namespace {

using nlohmann::json;
using LoadedPtr = std::shared_ptr<const LoadedModel>;

constexpr int64_t kSteps = 64, kWidth = 8;
constexpr char kConfig[] =
    R"({"model_type":"resnet","input_dim":8,"output_dim":8,"state_dim":8,"num_layers":64,)"
    R"("activation":"tanh","max_batch_size":2})";

std::vector<float> Normal(int64_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0F, 0.3F);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// A backend that refuses every model.
class RefusingBackend final : public Backend {
 public:
  explicit RefusingBackend(absl::Status status) : status_(std::move(status)) {}
  std::string_view name() const override { return "refusing"; }
  std::string_view device() const override { return "nothing"; }
  DeviceClass device_class() const override { return {.bits = "nothing"}; }
  absl::StatusOr<std::unique_ptr<System>> NewSystem(const SystemSpec&,
                                                    const PackingLimits&) const override {
    return status_;
  }

 private:
  const absl::Status status_;
};

class LoadedModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(
        WriteModel(model_.path(), kConfig,
                   {{"layers.weight", {kSteps, kWidth, kWidth}, Normal(kSteps * kWidth * kWidth)},
                    {"layers.bias", {kSteps, kWidth}, Normal(kSteps * kWidth)}})
            .ok());
  }

  // Loads the model; problems_ then has the problems of the load.
  absl::StatusOr<LoadedPtr> Load(int64_t max_workspace_bytes = int64_t{1} << 28) {
    problems_.clear();
    return LoadWith({.backend = "cpu",
                     .num_threads = 1,
                     .plan_cache_dir = plans_.path(),
                     .max_workspace_bytes = max_workspace_bytes});
  }
  absl::StatusOr<LoadedPtr> LoadWith(const EngineOptions& options,
                                     std::span<const LoadedPtr> loaded = {}) {
    problems_.clear();
    auto engine = Engine::Create(options);
    if (!engine.ok()) return engine.status();
    engines_.push_back(*std::move(engine));
    return engines_.back()->LoadModel(
        model_.path(),
        [&](LoadNews news, std::string_view text) {
          if (news == LoadNews::kProblem) problems_ += std::string(text) + "\n";
        },
        token_, loaded);
  }

  // Prepares the model on a backend that refuses it, then on the cpu backend.
  absl::StatusOr<LoadedPtr> PrepareAfterRefusal(absl::Status refusal) {
    return PrepareAfter({std::make_unique<RefusingBackend>(std::move(refusal)), {}});
  }
  // Prepares the model on a backend with this fault that is checked against the reference, then on
  // the cpu backend.
  absl::StatusOr<LoadedPtr> PrepareAfterFault(Fault fault) {
    auto cpu = SelectBackends("cpu"), reference = SelectBackends("reference");
    if (!cpu.ok()) return cpu.status();
    if (!reference.ok()) return reference.status();
    SelectedBackend faulty{NewFaultyBackend(std::move(cpu->backends.front().backend), fault),
                           cpu->backends.front().rates};
    faulty.oracles.push_back(std::move(reference->backends.front().backend));
    return PrepareAfter(std::move(faulty));
  }
  absl::StatusOr<LoadedPtr> PrepareAfter(SelectedBackend first) {
    problems_.clear();
    backends_.clear();
    backends_.push_back(std::move(first));
    auto cpu = SelectBackends("cpu");
    if (!cpu.ok()) return cpu.status();
    backends_.push_back(std::move(cpu->backends.front()));
    absl::StatusOr<Model> model = ReadModel(model_.path(), {});
    if (!model.ok()) return model.status();
    return PrepareModel(*std::move(model), {.backends = backends_,
                                            .pool = &pool_,
                                            .options = &options_,
                                            .progress = [&](LoadNews news, std::string_view text) {
                                              if (news == LoadNews::kProblem)
                                                problems_ += std::string(text) + "\n";
                                            }});
  }

  std::string PlanPath() const { return model_.File("plan.json"); }

  // Removes cached plans: each least interval has a plan of its own.
  void ForgetPlans() {
    for (const auto& entry : std::filesystem::directory_iterator(plans_.path()))
      std::filesystem::remove(entry.path());
  }

  // Edits the only plan and gives the edited plan its right id, which the refusal of the edited
  // plan names.
  void EditPlan(const std::function<void(json&)>& edit, int64_t max_workspace_bytes) {
    const std::string path = std::filesystem::directory_iterator(plans_.path())->path().string();
    json plan = json::parse(*ReadFile(path, 1 << 20));
    edit(plan);
    plan["id"] = "0";
    ASSERT_TRUE(WriteFileAtomically(path, plan.dump()).ok());
    ASSERT_TRUE(Load(max_workspace_bytes).ok());
    const std::string marker = "id: expected ";
    const size_t at = problems_.find(marker);
    ASSERT_NE(at, std::string::npos) << problems_;
    plan["id"] = problems_.substr(at + marker.size(), 16);
    ASSERT_TRUE(WriteFileAtomically(path, plan.dump()).ok());
  }

  TemporaryDirectory model_;
  TemporaryDirectory plans_;
  std::vector<std::unique_ptr<Engine>> engines_;  // engines outlive their models
  std::vector<SelectedBackend> backends_;         // and so do these
  ThreadPool pool_{1};
  EngineOptions options_;
  std::string problems_;
  const CancelToken* token_ = nullptr;
};

TEST_F(LoadedModelTest, GoesToTheNextBackendWhereOneHasNoCodeForItAndSaysSo) {
  const auto model = PrepareAfterRefusal(absl::UnimplementedError("no code for it")).value();
  EXPECT_EQ(model->info().backend, "cpu");
  EXPECT_FALSE(model->info().on_gpu);
  EXPECT_EQ(model->Find()->plan().device, backends_.back().backend->device());
  EXPECT_EQ(problems_, "the refusing backend cannot run this model: no code for it\n");
  EXPECT_EQ(model->info().backend_choice, BackendChoice::kNoCode);
  EXPECT_EQ(model->info().backend_reason + "\n", problems_);
}

TEST_F(LoadedModelTest, ABackendThatFailsItsSelfCheckIsPassedOverAndTheModelSaysWhy) {
  const LoadedPtr model = PrepareAfterFault(Fault::kForgottenBias).value();

  EXPECT_EQ(model->info().backend, "cpu");
  EXPECT_EQ(model->info().backend_choice, BackendChoice::kSelfCheck);
  EXPECT_THAT(model->info().backend_reason,
              ::testing::StartsWith("self-check of the faulty backend failed: a step of sample 0"));
  EXPECT_EQ(model->info().backend_reason + "\n", problems_);
}

TEST_F(LoadedModelTest, ABackendThatPassesItsSelfCheckServes) {
  const LoadedPtr model = PrepareAfterFault(Fault::kNone).value();

  EXPECT_EQ(model->info().backend, "faulty");
  EXPECT_EQ(model->info().backend_choice, BackendChoice::kFirst);
  EXPECT_EQ(model->info().backend_reason, "");
  EXPECT_EQ(problems_, "");
}

// Both backends measure their plans, and a request goes where its number of samples is answered
// sooner.
TEST_F(LoadedModelTest, ACheckedBackendServesWhereItsPlanIsFaster) {
  const LoadedPtr slow = PrepareAfterFault(Fault::kSlow).value();

  EXPECT_EQ(slow->info().backend, "faulty");
  EXPECT_EQ(slow->info().other_backend, "cpu");
  for (const int64_t n : {1, 2}) {
    EXPECT_EQ(slow->Find(0, n)->Resolve({}, n)->backend, "cpu");
    EXPECT_EQ(slow->Find(0, n, "faulty")->Resolve({}, n)->backend, "faulty");
    EXPECT_EQ(slow->Find(0, n, "cpu")->Resolve({}, n)->backend, "cpu");
  }
  EXPECT_EQ(slow->Find(999), nullptr);
  // What is valid does not depend on the number of samples: only open requests go by the plans.
  EXPECT_EQ(slow->FindFor({}, 0, 1), slow->Find(0, 1, "cpu"));
  EXPECT_EQ(slow->FindFor({.solver = "newton"}, 0, 1), slow->Find(0, 1, "faulty"));
  EXPECT_EQ(slow->FindFor({.shooting_interval = 4}, 0, 1), slow->Find(0, 1, "faulty"));
}

// The faulty backend has no backward pass, whatever is inside it.
TEST_F(LoadedModelTest, GradientsComeFromTheBackendThatHasThem) {
  options_.gradients = true;
  const LoadedPtr both = PrepareAfterFault(Fault::kSlow).value();
  const SolveOptions open, named = {.solver = "newton"};

  ASSERT_EQ(both->Find(0, 1, "faulty")->backward_limits(), nullptr);
  EXPECT_EQ(both->FindFor(named, 0, 1), both->Find(0, 1, "faulty"));
  for (const SolveOptions& options : {open, named})
    for (const bool by_parameters : {false, true})
      EXPECT_EQ(both->FindForGradients(options, 0, 1, by_parameters), both->Find(0, 1, "cpu"));
  EXPECT_TRUE(both->Find(0, 1, "cpu")->has_parameter_gradients());
  EXPECT_FALSE(both->Find(0, 1, "faulty")->has_parameter_gradients());
  EXPECT_TRUE(absl::IsUnimplemented(
      both->Find(0, 1, "faulty")->AddParameterGradients({}, {}, nullptr, [](double) {})));
  EXPECT_EQ(both->FindForGradients(named, 999, 1), nullptr);

  options_.gradients = false;
  const LoadedPtr none = PrepareAfterFault(Fault::kSlow).value();
  EXPECT_EQ(none->FindForGradients(named, 0, 1), none->Find(0, 1, "faulty"));
}

// A number of steps that is made on demand has gradients where the model has, and the two systems
// stay apart.
TEST_F(LoadedModelTest, GradientsOfStepsOnDemandComeFromTheBackendThatHasThem) {
  ModelConfig config;
  config.denoiser = DenoiserKind::kResidualMlp;
  config.state_dim = config.output_dim = 3;
  config.hidden_dim = 8;
  config.num_blocks = 1;
  config.time_embedding_dim = 4;
  const nlohmann::json text = {{"model_type", "diffusion"},
                               {"state_dim", config.state_dim},
                               {"output_dim", config.output_dim},
                               {"denoiser", "residual_mlp"},
                               {"hidden_dim", config.hidden_dim},
                               {"num_blocks", config.num_blocks},
                               {"activation", "silu"},
                               {"time_embedding_dim", config.time_embedding_dim},
                               {"num_inference_steps", 8}};
  ASSERT_TRUE(WriteModel(model_.path(), text.dump(), DiffusionTensors(config)).ok());
  ASSERT_TRUE(WriteFileAtomically(model_.path() + "/scheduler_config.json",
                                  R"({"_class_name": "DDPMScheduler"})")
                  .ok());
  options_.gradients = true;
  const LoadedPtr both = PrepareAfterFault(Fault::kSlow).value();
  ASSERT_EQ(both->info().backend, "faulty");
  SystemKey back(5);
  back.backward = true;
  const auto forward = both->Prepare(5, nullptr), with_gradients = both->Prepare(back, nullptr);
  ASSERT_TRUE(forward.ok()) << forward.status();
  ASSERT_TRUE(with_gradients.ok()) << with_gradients.status();
  EXPECT_EQ((*forward)->Resolve({}, 1)->backend, "faulty");
  EXPECT_EQ((*forward)->backward_limits(), nullptr);
  EXPECT_EQ((*with_gradients)->Resolve({}, 1)->backend, "cpu");
  EXPECT_NE((*with_gradients)->backward_limits(), nullptr);
  EXPECT_EQ((*with_gradients)->plan().device, backends_.back().backend->device());
  EXPECT_EQ(both->Find(5), *forward);
  EXPECT_EQ(both->FindForGradients({}, 5, 1), *with_gradients);
}

TEST_F(LoadedModelTest, ABackendThatIsNotCheckedServesAlone) {
  const LoadedPtr model = PrepareAfterRefusal(absl::UnimplementedError("no code for it")).value();

  EXPECT_EQ(model->info().other_backend, "");
  EXPECT_EQ(model->Find(0, 1), model->Find(0, 2));
}

// A plan that is there already spares the measurement, and not the check.
TEST_F(LoadedModelTest, AStoredPlanIsCheckedToo) {
  options_.plan_cache_dir = plans_.path();
  ASSERT_EQ(PrepareAfterFault(Fault::kNone)->get()->info().backend, "faulty");

  const LoadedPtr model = PrepareAfterFault(Fault::kRare).value();

  EXPECT_EQ(model->info().backend, "cpu");
  EXPECT_THAT(problems_, ::testing::HasSubstr("other bits"));
}

TEST_F(LoadedModelTest, TheOnlyBackendsFailedSelfCheckIsTheLoadsError) {
  ASSERT_TRUE(PrepareAfterFault(Fault::kForgottenBias).ok());
  backends_.pop_back();
  Model model = ReadModel(model_.path(), {}).value();

  ExpectError(
      PrepareModel(std::move(model), {.backends = backends_, .pool = &pool_, .options = &options_}),
      absl::StatusCode::kDataLoss, "self-check of the faulty backend failed");
}

TEST_F(LoadedModelTest, ABackendWhoseDeviceFailsIsPassedOverUnlessItIsTheOnlyOne) {
  int failures = 0;
  options_.device_failed = [&](const absl::Status&) { ++failures; };

  const LoadedPtr model = PrepareAfterRefusal(absl::UnavailableError("no answer")).value();
  backends_.pop_back();
  Model again = ReadModel(model_.path(), {}).value();

  EXPECT_EQ(model->info().backend, "cpu");
  EXPECT_EQ(model->info().backend_choice, BackendChoice::kSelfCheck);
  EXPECT_EQ(problems_, "the device of the refusing backend failed: no answer\n");
  EXPECT_EQ(failures, 0);
  ExpectError(
      PrepareModel(std::move(again), {.backends = backends_, .pool = &pool_, .options = &options_}),
      absl::StatusCode::kUnavailable, "no answer");
  EXPECT_EQ(failures, 1);
}

// Only where the code is missing: a model that does not fit would otherwise become slow unseen.
TEST_F(LoadedModelTest, OtherErrorsOfABackendAreTheLoads) {
  ExpectError(PrepareAfterRefusal(absl::ResourceExhaustedError("too large")),
              absl::StatusCode::kResourceExhausted, "too large");
  EXPECT_EQ(problems_, "");
}

TEST_F(LoadedModelTest, WhereNoBackendHasTheCodeTheErrorSaysWhich) {
  std::vector<SelectedBackend> backends;
  backends.push_back({std::make_unique<RefusingBackend>(absl::UnimplementedError("not yet")), {}});
  Model model = ReadModel(model_.path(), {}).value();
  ExpectError(
      PrepareModel(std::move(model), {.backends = backends, .pool = &pool_, .options = &options_}),
      absl::StatusCode::kUnimplemented, "the refusing backend cannot run this model: not yet");
}

TEST_F(LoadedModelTest, TakesThePlanOfAnEarlierLoad) {
  const auto first = Load().value();
  EXPECT_EQ(first->Find()->plan().source, PlanSource::kMeasured);

  const auto second = Load().value();

  EXPECT_EQ(second->Find()->plan().source, PlanSource::kCache);
  EXPECT_EQ(problems_, "");
  EXPECT_EQ(second->Find()->plan().id, first->Find()->plan().id);
}

// The workspace does not fit C = 1, but the entry of the cached plan runs it.
TEST_F(LoadedModelTest, AnEntryBelowTheLeastIntervalIsMeasuredAnew) {
  int64_t bytes = int64_t{1} << 20;
  while (bytes > 0 && (*Load(bytes))->info().min_shooting_interval < 4) bytes = bytes * 3 / 4;
  ForgetPlans();
  ASSERT_TRUE(Load(bytes).ok());
  EditPlan(
      [](json& plan) {
        json& entry = plan["plan"]["entries"][0];
        entry["parallel"]["solver"] = entry["solver"] = "newton";
        entry["parallel"]["shooting_interval"] = 1;
      },
      bytes);

  const auto model = Load(bytes).value();

  EXPECT_EQ(model->Find()->plan().source, PlanSource::kMeasured);
  EXPECT_NE(problems_.find("this model cannot run with its entry for "), std::string::npos)
      << problems_;
  const auto resolved = model->Find()->Resolve({}, 1).value();
  EXPECT_TRUE(resolved.solver == "sequential" || resolved.shooting_interval >= 4);
}

// The answers of every solver to two samples, one after the other.
std::vector<float> Answers(const LoadedModel& model) {
  std::vector<float> all, inputs = Normal(2 * kWidth), outputs(2 * kWidth);
  std::vector<SampleReport> reports(2);
  for (const std::string& solver : model.info().solvers) {
    RunItem item{
        .samples = {.num_samples = 2, .inputs = inputs}, .outputs = outputs, .reports = reports};
    const auto resolved = model.Find()->Resolve({.solver = solver}, 2);
    EXPECT_TRUE(resolved.ok() && model.Find()->Run(*resolved, {&item, 1}, nullptr).ok()) << solver;
    all.insert(all.end(), outputs.begin(), outputs.end());
  }
  return all;
}

// Threads share only the samples of a batch.
TEST_F(LoadedModelTest, TheNumberOfThreadsChangesNeitherPlanNorBits) {
  const auto one = LoadWith({.backend = "cpu", .num_threads = 1}).value();
  for (const int threads : {2, 5}) {
    const auto more = LoadWith({.backend = "cpu", .num_threads = threads}).value();
    EXPECT_EQ(more->Find()->plan().source, PlanSource::kMeasured);
    EXPECT_EQ(more->Find()->plan().id, one->Find()->plan().id);
    EXPECT_EQ(Answers(*more), Answers(*one));
  }
}

TEST_F(LoadedModelTest, APlanFileIsEnoughWhereOneIsRequired) {
  const EngineOptions require{.backend = "cpu", .plan_mode = PlanMode::kRequire};
  ExpectError(LoadWith(require), absl::StatusCode::kFailedPrecondition, "plan.json: there is none");
  const auto measured = LoadWith({.backend = "cpu"}).value();
  ASSERT_TRUE(WriteFileAtomically(PlanPath(), measured->PlanFileText()).ok());

  const auto model = LoadWith(require).value();

  EXPECT_EQ(model->Find()->plan().source, PlanSource::kFile);
  EXPECT_EQ(model->Find()->plan().id, measured->Find()->plan().id);
  EXPECT_EQ(model->PlanFileText(), measured->PlanFileText());
  EXPECT_EQ(Answers(*model), Answers(*measured));
  EXPECT_EQ(problems_, "");
}

// The key fits except for the build: the choices of the plan are run, compared with sequential, and
// kept.
TEST_F(LoadedModelTest, APlanFileOfAnotherBuildIsCheckedAndKept) {
  const auto measured = LoadWith({.backend = "cpu"}).value();
  json root = json::parse(measured->PlanFileText());
  json& item = root["devices"].front()[0];
  item["key"]["build"] = "0.0.1+old";
  ASSERT_TRUE(WriteFileAtomically(PlanPath(), root.dump()).ok());
  const EngineOptions require{.backend = "cpu", .plan_mode = PlanMode::kRequire};

  const auto model = LoadWith(require).value();

  // The id is that of this build, which made the same plan.
  EXPECT_EQ(model->Find()->plan().id, measured->Find()->plan().id);

  item["key"]["weights_sha256"] = "0";
  ASSERT_TRUE(WriteFileAtomically(PlanPath(), root.dump()).ok());
  ExpectError(LoadWith(require), absl::StatusCode::kFailedPrecondition, "weights_sha256");
}

TEST_F(LoadedModelTest, APlanFileThatIsNoneIsNamed) {
  ASSERT_TRUE(WriteFileAtomically(PlanPath(), "{\"format\": 3}").ok());
  ExpectError(LoadWith({.backend = "cpu", .plan_mode = PlanMode::kRequire}),
              absl::StatusCode::kInvalidArgument, "plan.json: format: expected a string");
  ASSERT_TRUE(LoadWith({.backend = "cpu"}).ok());
  EXPECT_NE(problems_.find("plan.json: format"), std::string::npos) << problems_;
  // Nobody reads the file if the mode is kMeasure.
  ASSERT_TRUE(LoadWith({.backend = "cpu", .plan_mode = PlanMode::kMeasure}).ok());
  EXPECT_EQ(problems_, "");
}

// A write that was cut off leaves an empty file, which holds no plan but is not a missing file.
TEST_F(LoadedModelTest, AnEmptyPlanFileIsNamedToo) {
  ASSERT_TRUE(WriteFileAtomically(PlanPath(), "").ok());
  ExpectError(LoadWith({.backend = "cpu", .plan_mode = PlanMode::kRequire}),
              absl::StatusCode::kInvalidArgument, "plan.json: ");
  ASSERT_TRUE(LoadWith({.backend = "cpu"}).ok());
  EXPECT_NE(problems_.find("plan.json: "), std::string::npos) << problems_;
}

TEST_F(LoadedModelTest, AReloadTakesOverThePlanThatServes) {
  const auto serving = LoadWith({.backend = "cpu"}).value();
  const std::vector<LoadedPtr> loaded = {serving};
  const auto again = LoadWith({.backend = "cpu"}, loaded).value();
  EXPECT_EQ(again->Find()->plan().source, PlanSource::kServing);
  EXPECT_EQ(again->Find()->plan().id, serving->Find()->plan().id);

  std::string config = kConfig;
  config.replace(config.find("tanh"), 4, "silu");
  ASSERT_TRUE(WriteFileAtomically(model_.File("config.json"), config).ok());
  const auto other = LoadWith({.backend = "cpu"}, loaded).value();
  EXPECT_EQ(other->Find()->plan().source, PlanSource::kMeasured);
}

TEST_F(LoadedModelTest, ALoadStopsWhenItsTokenFires) {
  CancelToken token;
  token.Cancel();
  token_ = &token;
  ExpectError(Load(), absl::StatusCode::kCancelled, "stopped");
}

TEST_F(LoadedModelTest, AComparisonPastItsDeadlineSaysSoThoughItWasCancelledToo) {
  const auto model = Load().value();
  const std::vector<float> inputs(kWidth, 0.5F);
  const SampleInputs samples{.num_samples = 1, .inputs = inputs};
  const std::vector options = {model->Find()->Resolve({.solver = "sequential"}, 1),
                               model->Find()->Resolve({.solver = "newton"}, 1)};
  CancelToken token(CancelToken::Clock::now());
  token.Cancel();
  ExpectError(model->Find()->Compare(samples, options, {.repetitions = 1}, &token),
              absl::StatusCode::kDeadlineExceeded, "deadline");

  CancelToken cancelled;
  cancelled.Cancel();
  ExpectError(model->Find()->Compare(samples, options, {.repetitions = 1}, &cancelled),
              absl::StatusCode::kCancelled, "cancelled");
}

TEST_F(LoadedModelTest, AComparisonOutOfTimeStopsRepeatingAndSaysWhatItHas) {
  const auto model = Load().value();
  const std::vector<float> inputs(kWidth, 0.5F);
  const SampleInputs samples{.num_samples = 1, .inputs = inputs};
  const std::vector options = {model->Find()->Resolve({.solver = "sequential"}, 1),
                               model->Find()->Resolve({.solver = "newton"}, 1)};
  const auto rows =
      model->Find()->Compare(samples, options, {.repetitions = 100, .seconds = 1e-9}, nullptr);
  ASSERT_TRUE(rows.ok()) << rows.status();
  for (const ComparisonRow& row : *rows) {
    EXPECT_EQ(row.seconds.size(), 1U);
    EXPECT_EQ(row.outputs.size(), rows->front().outputs.size());
  }
  EXPECT_GT((*rows)[1].max_error_over_tolerance, 0);
  EXPECT_LE((*rows)[1].max_error_over_tolerance, 1);
  EXPECT_EQ((*rows)[0].max_error_over_tolerance, 0);
}

TEST_F(LoadedModelTest, ARowThatCannotRunCarriesItsErrorAndLeavesTheOthersAlone) {
  const auto model = Load().value();
  const std::vector<float> inputs = Normal(2 * kWidth);
  const SampleInputs samples{.num_samples = 2, .inputs = inputs};
  const std::vector options = {
      model->Find()->Resolve({.solver = "newton", .shooting_interval = 4}, 2),
      model->Find()->Resolve({.solver = "guess"}, 2),
      model->Find()->Resolve({.solver = "newton", .initial_guess = InitialGuess::kPrevious}, 2)};

  const auto rows = model->Find()->Compare(samples, options, {.repetitions = 3}, nullptr).value();

  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].error, "");
  EXPECT_EQ(rows[0].shooting_interval, 4);
  EXPECT_EQ(rows[0].seconds.size(), 3U);
  EXPECT_EQ(rows[0].reports.size(), 2U);
  EXPECT_EQ(rows[1].error, options[1].status().message());
  EXPECT_EQ(rows[2].error, "initial_guess: previous has no meaning in a comparison");
  for (const size_t r : {1, 2}) EXPECT_TRUE(rows[r].seconds.empty());
  const auto none =
      model->Find()->Compare(samples, std::span(options).subspan(1), {.repetitions = 3}, nullptr);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ((*none)[0].error, rows[1].error);
}

// Options that were resolved for another system are a bug of the caller's, and are not run.
TEST_F(LoadedModelTest, RunsNoOptionsOfAnotherNumberOfSteps) {
  const auto model = Load().value();
  const std::vector<float> inputs = Normal(kWidth);
  std::vector options(2, model->Find()->Resolve({.solver = "newton"}, 1));
  options[1]->num_steps = kSteps / 2;
  ExpectError(model->Find()->Compare({.num_samples = 1, .inputs = inputs}, options,
                                     {.repetitions = 1}, nullptr),
              absl::StatusCode::kInvalidArgument, "run item: steps: expected 64 values, got 32");
}

TEST_F(LoadedModelTest, TheNumberOfStepsOfAStackIsFixed) {
  const auto model = Load().value();
  EXPECT_EQ(model->info().max_inference_steps, 0);
  EXPECT_EQ(model->Find(kSteps), model->Find());
  EXPECT_EQ(model->Find(kSteps / 2), nullptr);
  ExpectError(model->Prepare(kSteps / 2, nullptr), absl::StatusCode::kInvalidArgument,
              "num_inference_steps: expected one of 64, got 32");
  EXPECT_EQ(*model->Prepare(kSteps, nullptr), model->Find());
}

}  // namespace
}  // namespace deeppcr::testing
