// SPDX-License-Identifier: Apache-2.0
#include "server/codec/v2/description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/codec/v2/reply.h"
#include "tests/server/codec/generation_codec_fixture.h"

namespace deeppcr {
namespace {

using ::testing::ElementsAre;

class V2DescriptionTest : public ::testing::Test {
 protected:
  std::shared_ptr<ServedModel> Serve(const std::string& name, int64_t version,
                                     const ModelInfo& info) {
    auto model = std::make_shared<testing::FakeModel>();
    model->info_ = info;
    return std::make_shared<ServedModel>(name, version, model, metrics_.ForModel(name, version));
  }

  Metrics metrics_{{"sequential", "newton"}, "1", "fake-device", "cpu"};
};

TEST_F(V2DescriptionTest, ShapesOfMetadataHaveTheBatchAndThoseOfTheConfigurationDoNot) {
  const auto served = Serve("m", 2, Mlp());
  const ModelStatus statuses[] = {{"m", 1, ModelState::kReady, "", Serve("m", 1, Mlp())},
                                  {"m", 2, ModelState::kReady, "", served},
                                  {"m", 3, ModelState::kFailed, "broken", nullptr},
                                  {"n", 4, ModelState::kReady, "", Serve("n", 4, Mlp())}};
  inference::ModelMetadataResponse metadata;
  FillMetadata(*served, statuses, &metadata);
  EXPECT_THAT(metadata.versions(), ElementsAre("1", "2"));
  EXPECT_EQ(metadata.platform(), "deeppcr_mlp");
  ASSERT_EQ(metadata.inputs_size(), 1);
  EXPECT_THAT(metadata.inputs(0).shape(), ElementsAre(-1, 2));
  EXPECT_EQ(metadata.inputs(0).datatype(), "FP32");
  EXPECT_THAT(metadata.outputs(0).shape(), ElementsAre(-1, 3));

  inference::ModelConfig config;
  FillConfig(*served, {.workers = 3, .max_delay = std::chrono::milliseconds(2)},
             VersionPolicy{.latest = 2}, &config);
  EXPECT_EQ(config.max_batch_size(), 16);
  EXPECT_THAT(config.input(0).dims(), ElementsAre(2));
  EXPECT_THAT(config.output(0).dims(), ElementsAre(3));
  EXPECT_EQ(config.instance_group(0).count(), 3);
  EXPECT_EQ(config.dynamic_batching().max_queue_delay_microseconds(), 2000u);
  EXPECT_EQ(config.version_policy().latest().num_versions(), 2u);
  EXPECT_EQ(config.instance_group(0).kind(), inference::ModelInstanceGroup::KIND_CPU);
  EXPECT_TRUE(config.has_model_transaction_policy());
  EXPECT_FALSE(config.model_transaction_policy().decoupled());
}

TEST_F(V2DescriptionTest, AModelOnAGpuIsSaidToBeThere) {
  ModelInfo info = Mlp();
  info.on_gpu = true;
  const auto served = Serve("m", 1, info);
  inference::ModelConfig config;
  FillConfig(*served, {.workers = 1}, {}, &config);
  EXPECT_EQ(config.instance_group(0).kind(), inference::ModelInstanceGroup::KIND_GPU);
  inference::ModelStatistics statistics;
  FillStatistics(*served, &statistics);
  EXPECT_EQ(statistics.memory_usage(0).type(), "GPU");
}

TEST_F(V2DescriptionTest, InstancesAndVersionsAsTheServerWasTold) {
  const auto served = Serve("m", 2, Mlp());
  inference::ModelConfig specific, all;
  FillConfig(*served, {.workers = 3, .max_instances = 2}, VersionPolicy{.specific = {1, 3}},
             &specific);
  FillConfig(*served, {.workers = 3, .max_instances = 4},
             VersionPolicy{.latest = VersionPolicy::kAll}, &all);
  EXPECT_EQ(specific.instance_group(0).count(), 2);
  EXPECT_THAT(specific.version_policy().specific().versions(), ElementsAre(1, 3));
  EXPECT_EQ(all.instance_group(0).count(), 3);
  EXPECT_TRUE(all.version_policy().has_all());
}

// perf_analyzer looks every name of the configuration up in the metadata.
TEST_F(V2DescriptionTest, EveryNameOfTheConfigurationIsInTheMetadata) {
  for (const ModelInfo& info : {Mlp(), Plain(), WithClasses(), WithConditioning()}) {
    const auto served = Serve("m", 1, info);
    inference::ModelMetadataResponse metadata;
    FillMetadata(*served, {}, &metadata);
    inference::ModelConfig config;
    FillConfig(*served, {.workers = 1}, {}, &config);
    ASSERT_EQ(metadata.inputs_size(), config.input_size());
    for (int i = 0; i < config.input_size(); ++i)
      EXPECT_EQ(metadata.inputs(i).name(), config.input(i).name());
    ASSERT_EQ(metadata.outputs_size(), config.output_size());
    for (int i = 0; i < config.output_size(); ++i)
      EXPECT_EQ(metadata.outputs(i).name(), config.output(i).name());
  }
}

TEST_F(V2DescriptionTest, OnlyWhatADiffusionModelNeedsIsRequired) {
  inference::ModelConfig config;
  FillConfig(*Serve("m", 1, WithConditioning()), {.workers = 1}, {}, &config);
  EXPECT_EQ(config.input(0).name(), "conditioning");
  EXPECT_FALSE(config.input(0).optional());
  EXPECT_TRUE(config.input(1).optional());
  EXPECT_EQ(config.output(1).name(), "latents");
  inference::ModelConfig classes;
  FillConfig(*Serve("m", 1, WithClasses()), {.workers = 1}, {}, &classes);
  EXPECT_EQ(classes.input(0).name(), "class_labels");
  EXPECT_EQ(classes.input(0).data_type(), inference::TYPE_INT32);
}

TEST_F(V2DescriptionTest, Statistics) {
  const auto served = Serve("m", 1, Mlp());
  served->metrics->statistics.AddBatch(4, {1e-3, 2e-3, 0, 3e-3});
  served->metrics->statistics.AddSuccess(4, 1, 0.5, {1e-3, 2e-3, 0, 3e-3});
  inference::ModelStatistics statistics;
  FillStatistics(*served, &statistics);
  EXPECT_EQ(statistics.inference_count(), 4u);
  EXPECT_EQ(statistics.execution_count(), 1u);
  EXPECT_EQ(statistics.inference_stats().success().ns(), 1'000'000'000u);
  EXPECT_EQ(statistics.inference_stats().queue().ns(), 500'000'000u);
  EXPECT_EQ(statistics.inference_stats().compute_infer().ns(), 2'000'000u);
  ASSERT_EQ(statistics.batch_stats_size(), 1);
  EXPECT_EQ(statistics.batch_stats(0).batch_size(), 4u);
  EXPECT_EQ(statistics.memory_usage(0).byte_size(), 1000u);
  EXPECT_EQ(statistics.memory_usage(0).type(), "CPU");
}

TEST_F(V2DescriptionTest, IndexOfTheRepository) {
  const ModelStatus statuses[] = {{"a", 1, ModelState::kReady, "", Serve("a", 1, Mlp())},
                                  {"b", 0, ModelState::kFailed, "no version", nullptr},
                                  {"c", 2, ModelState::kLoading, "", nullptr}};
  inference::RepositoryIndexResponse all, ready;
  FillIndex(statuses, false, &all);
  FillIndex(statuses, true, &ready);
  ASSERT_EQ(all.models_size(), 3);
  EXPECT_EQ(all.models(0).state(), "READY");
  EXPECT_EQ(all.models(1).state(), "UNAVAILABLE");
  EXPECT_EQ(all.models(1).version(), "");
  EXPECT_EQ(all.models(1).reason(), "no version");
  EXPECT_EQ(all.models(2).state(), "LOADING");
  EXPECT_EQ(ready.models_size(), 1);
}

TEST_F(V2DescriptionTest, AReplyHasRawContentsInOrderAndSumsOfItsReport) {
  const auto served = Serve("m", 7, Plain());
  V2Tensors tensors;
  SetTensor({2, 3}, &tensors.values);
  SetTensor({2, kState}, &tensors.latents);
  const std::string latents = tensors.latents.data();
  v1::SolveReport report;
  for (const int iterations : {3, 5}) {
    v1::SampleReport* sample = report.add_samples();
    sample->set_solver(iterations == 3 ? "newton" : "sequential");
    sample->set_termination(iterations == 3 ? "converged" : "non_finite");
    sample->set_converged(iterations == 3);
    sample->set_iterations(iterations);
    sample->set_dependent_stages(10 * iterations);
    sample->set_error_estimate(1e-5 * iterations);
  }
  report.mutable_samples(1)->set_fallback(true);
  report.mutable_samples(1)->mutable_attempt()->set_solver("newton");
  report.mutable_samples(1)->mutable_attempt()->set_termination("slow");
  report.set_plan_id("p");

  inference::ModelInferResponse reply;
  FillV2Reply(*served, "id", std::array{V2Output::kLatents, V2Output::kValues}, report, &tensors,
              &reply);

  EXPECT_EQ(reply.id(), "id");
  EXPECT_EQ(reply.model_version(), "7");
  ASSERT_EQ(reply.outputs_size(), 2);
  ASSERT_EQ(reply.raw_output_contents_size(), 2);
  EXPECT_EQ(reply.outputs(0).name(), "latents");
  EXPECT_EQ(reply.raw_output_contents(0), latents);
  EXPECT_THAT(reply.outputs(1).shape(), ElementsAre(2, 3));
  const auto& parameters = reply.parameters();
  EXPECT_EQ(parameters.at("solver").string_param(), "several");
  EXPECT_EQ(parameters.at("termination").string_param(), "non_finite");
  EXPECT_EQ(parameters.at("attempt_solver").string_param(), "newton");
  EXPECT_EQ(parameters.at("attempt_termination").string_param(), "slow");
  EXPECT_FALSE(parameters.at("converged").bool_param());
  EXPECT_EQ(parameters.at("fallbacks").int64_param(), 1);
  EXPECT_EQ(parameters.at("iterations").int64_param(), 5);
  EXPECT_EQ(parameters.at("dependent_stages").int64_param(), 50);
  EXPECT_DOUBLE_EQ(parameters.at("error_estimate").double_param(), 5e-5);
  EXPECT_EQ(parameters.at("plan_id").string_param(), "p");
}

TEST_F(V2DescriptionTest, AReplyLeavesOutWhatNotEverySampleHas) {
  const auto served = Serve("m", 7, Mlp());
  for (const bool first : {false, true}) {
    v1::SolveReport report;
    for (int i = 0; i < 2; ++i) report.add_samples()->set_converged(true);
    report.mutable_samples(first ? 0 : 1)->set_error_estimate(1e-5);
    V2Tensors tensors;
    inference::ModelInferResponse reply;

    FillV2Reply(*served, "id", {}, report, &tensors, &reply);

    EXPECT_FALSE(reply.parameters().contains("error_estimate"));
    EXPECT_FALSE(reply.parameters().contains("attempt_solver"));
    EXPECT_FALSE(reply.parameters().contains("attempt_termination"));
    EXPECT_TRUE(reply.parameters().contains("iterations"));
  }
}

}  // namespace
}  // namespace deeppcr
