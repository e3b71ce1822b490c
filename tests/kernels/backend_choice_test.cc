// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/loaded_model.h"
#include "tests/kernels/loaded_model_rig.h"
#include "tests/testing/diffusion_tensors.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/faulty_backend.h"

namespace deeppcr::testing {
namespace {

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

class BackendChoiceTest : public LoadedModelRig {
 protected:
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
    return PrepareModel(
        *std::move(model),
        {.backends = backends_, .pool = &pool_, .options = &options_, .progress = NotesProblems()});
  }

  std::vector<SelectedBackend> backends_;  // outlive their models
  ThreadPool pool_{1};
  EngineOptions options_;
};

TEST_F(BackendChoiceTest, GoesToTheNextBackendWhereOneHasNoCodeForItAndSaysSo) {
  const auto model = PrepareAfterRefusal(absl::UnimplementedError("no code for it")).value();
  EXPECT_EQ(model->info().backend, "cpu");
  EXPECT_FALSE(model->info().on_gpu);
  EXPECT_EQ(model->Find()->plan().device, backends_.back().backend->device());
  EXPECT_EQ(problems_, "the refusing backend cannot run this model: no code for it\n");
  EXPECT_EQ(model->info().backend_choice, BackendChoice::kNoCode);
  EXPECT_EQ(model->info().backend_reason + "\n", problems_);
}

TEST_F(BackendChoiceTest, ABackendThatFailsItsSelfCheckIsPassedOverAndTheModelSaysWhy) {
  const LoadedPtr model = PrepareAfterFault(Fault::kForgottenBias).value();

  EXPECT_EQ(model->info().backend, "cpu");
  EXPECT_EQ(model->info().backend_choice, BackendChoice::kSelfCheck);
  EXPECT_THAT(model->info().backend_reason,
              ::testing::StartsWith("self-check of the faulty backend failed: a step of sample 0"));
  EXPECT_EQ(model->info().backend_reason + "\n", problems_);
}

TEST_F(BackendChoiceTest, ABackendThatPassesItsSelfCheckServes) {
  const LoadedPtr model = PrepareAfterFault(Fault::kNone).value();

  EXPECT_EQ(model->info().backend, "faulty");
  EXPECT_EQ(model->info().backend_choice, BackendChoice::kFirst);
  EXPECT_EQ(model->info().backend_reason, "");
  EXPECT_EQ(problems_, "");
}

// Both backends measure their plans, and a request goes where its number of samples is answered
// sooner.
TEST_F(BackendChoiceTest, ACheckedBackendServesWhereItsPlanIsFaster) {
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
TEST_F(BackendChoiceTest, GradientsComeFromTheBackendThatHasThem) {
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
TEST_F(BackendChoiceTest, GradientsOfStepsOnDemandComeFromTheBackendThatHasThem) {
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

TEST_F(BackendChoiceTest, ABackendThatIsNotCheckedServesAlone) {
  const LoadedPtr model = PrepareAfterRefusal(absl::UnimplementedError("no code for it")).value();

  EXPECT_EQ(model->info().other_backend, "");
  EXPECT_EQ(model->Find(0, 1), model->Find(0, 2));
}

// A plan that is there already spares the measurement, and not the check.
TEST_F(BackendChoiceTest, AStoredPlanIsCheckedToo) {
  options_.plan_cache_dir = plans_.path();
  ASSERT_EQ(PrepareAfterFault(Fault::kNone)->get()->info().backend, "faulty");

  const LoadedPtr model = PrepareAfterFault(Fault::kRare).value();

  EXPECT_EQ(model->info().backend, "cpu");
  EXPECT_THAT(problems_, ::testing::HasSubstr("other bits"));
}

TEST_F(BackendChoiceTest, TheOnlyBackendsFailedSelfCheckIsTheLoadsError) {
  ASSERT_TRUE(PrepareAfterFault(Fault::kForgottenBias).ok());
  backends_.pop_back();
  Model model = ReadModel(model_.path(), {}).value();

  ExpectError(
      PrepareModel(std::move(model), {.backends = backends_, .pool = &pool_, .options = &options_}),
      absl::StatusCode::kDataLoss, "self-check of the faulty backend failed");
}

TEST_F(BackendChoiceTest, ABackendWhoseDeviceFailsIsPassedOverUnlessItIsTheOnlyOne) {
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
TEST_F(BackendChoiceTest, OtherErrorsOfABackendAreTheLoads) {
  ExpectError(PrepareAfterRefusal(absl::ResourceExhaustedError("too large")),
              absl::StatusCode::kResourceExhausted, "too large");
  EXPECT_EQ(problems_, "");
}

TEST_F(BackendChoiceTest, WhereNoBackendHasTheCodeTheErrorSaysWhich) {
  std::vector<SelectedBackend> backends;
  backends.push_back({std::make_unique<RefusingBackend>(absl::UnimplementedError("not yet")), {}});
  Model model = ReadModel(model_.path(), {}).value();
  ExpectError(
      PrepareModel(std::move(model), {.backends = backends, .pool = &pool_, .options = &options_}),
      absl::StatusCode::kUnimplemented, "the refusing backend cannot run this model: not yet");
}

}  // namespace
}  // namespace deeppcr::testing
