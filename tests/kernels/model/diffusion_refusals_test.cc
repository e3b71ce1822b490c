// SPDX-License-Identifier: Apache-2.0
// Files that the loader of diffusion models must refuse, and sizes for which it must not allocate.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "kernels/base/shape.h"
#include "kernels/base/strings.h"
#include "tests/kernels/model/diffusion_case.h"

namespace deeppcr::testing {
namespace {

std::vector<ModelConfig> EveryVariant() {
  std::vector<ModelConfig> all;
  for (const DenoiserKind denoiser : {DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp}) {
    all.push_back(Config(denoiser));
    all.push_back(Full(denoiser, /*classes=*/true));
    all.push_back(Full(denoiser, /*classes=*/false));
  }
  return all;
}

TEST(DiffusionRefusalsTest, NamesEveryTensorThatIsMissing) {
  for (const ModelConfig& config : EveryVariant()) {
    const std::vector<NamedTensor> tensors = DiffusionTensors(config);
    ASSERT_TRUE(Load(tensors, config).ok());
    for (size_t i = 0; i < tensors.size(); ++i) {
      std::vector<NamedTensor> others = tensors;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      ExpectRefused(others, config,
                    StrCat("tensor \"", tensors[i].name, "\" of shape ",
                           ShapeString(tensors[i].shape), " is missing"));
    }
  }
}

TEST(DiffusionRefusalsTest, NamesEveryTensorOfAnotherShape) {
  for (const ModelConfig& config : EveryVariant()) {
    const std::vector<NamedTensor> tensors = DiffusionTensors(config);
    for (size_t i = 0; i < tensors.size(); ++i) {
      std::vector<int64_t> longer = tensors[i].shape;
      ++longer.back();
      std::vector<int64_t> deeper = tensors[i].shape;
      deeper.insert(deeper.begin(), 1);
      std::vector<int64_t> empty = tensors[i].shape;
      empty.front() = 0;
      for (const std::vector<int64_t>& shape : {longer, deeper, empty, {}}) {
        std::vector<NamedTensor> others = tensors;
        others[i] = WavyTensor(tensors[i].name, shape, 0);
        ExpectRefused(
            others, config,
            StrCat("tensor \"", tensors[i].name, "\": expected shape ",
                   ShapeString(tensors[i].shape), ", got ", ShapeString(others[i].shape)));
      }
    }
  }
}

TEST(DiffusionRefusalsTest, NamesEveryTensorThatIsNotFinite) {
  const ModelConfig config = Full(DenoiserKind::kAdaLnMlp, /*classes=*/true);
  const std::vector<NamedTensor> tensors = DiffusionTensors(config);
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<NamedTensor> others = tensors;
    others[i].values.back() = std::numeric_limits<float>::quiet_NaN();
    ExpectRefused(others, config, StrCat("tensor \"", tensors[i].name, "\": element ["));
  }
}

TEST(DiffusionRefusalsTest, NamesUnexpectedTensors) {
  for (const ModelConfig& config : EveryVariant()) {
    const bool ada_ln = config.denoiser == DenoiserKind::kAdaLnMlp;
    std::vector<std::string> names = {
        "extra",
        "input_proj.scale",
        "time_embed.mlp.1.weight",
        "res_blocks.2.mlp.0.weight",
        "res_blocks.00.mlp.0.weight",
        "res_blocks.-1.linear.bias",
        "module.input_proj.weight",
        "class_embed.bias",
        config.num_classes > 0 ? "cond_embed.bias" : "class_embed.weight",
        ada_ln ? "res_blocks.0.linear.weight" : "res_blocks.0.in_ln.weight",
        ada_ln ? "res_blocks.0.modulation.bias" : "final_layer.adaLN_modulation.1.weight",
        "decoder.3.weight"};
    for (const std::string& name : names) {
      std::vector<NamedTensor> tensors = DiffusionTensors(config);
      tensors.push_back(WavyTensor(name, {1}, 0));
      ExpectRefused(tensors, config,
                    StrCat("tensor \"", name, "\" of shape [1] is unexpected; expected input_proj.",
                           "{weight,bias}"));
    }
  }
}

TEST(DiffusionRefusalsTest, NamesWhatIsMissingOrUnexpectedAfterThePrefix) {
  for (const ModelConfig& plain : EveryVariant()) {
    ModelConfig config = plain;
    config.tensor_prefix = "net.";
    const std::vector<NamedTensor> tensors = WithPrefix("net.", DiffusionTensors(config));
    ASSERT_TRUE(Load(tensors, config).ok());
    for (size_t i = 0; i < tensors.size(); ++i) {
      std::vector<NamedTensor> others = tensors;
      others[i].name.erase(0, 4);  // outside the prefix, it is not there
      ExpectRefused(others, config,
                    StrCat("tensor \"", tensors[i].name, "\" of shape ",
                           ShapeString(tensors[i].shape), " is missing"));
    }
    std::vector<NamedTensor> more = tensors;
    more.push_back(WavyTensor("net.extra", {1}, 0));
    ExpectRefused(more, config,
                  "tensor \"net.extra\" of shape [1] is unexpected; expected after \"net.\" "
                  "input_proj.{weight,bias}");
  }
}

TEST(DiffusionRefusalsTest, NamesTheDecoderThatIsMissingAfterThePrefix) {
  ModelConfig config = Config();
  config.output_dim = kState + 1;
  config.tensor_prefix = "net.";
  std::vector<NamedTensor> tensors = WithPrefix("net.", DiffusionTensors(config));
  ASSERT_TRUE(Load(tensors, config).ok());
  std::erase_if(tensors, [](const NamedTensor& t) { return t.name.starts_with("net.decoder"); });
  ExpectRefused(tensors, config, "tensor \"net.decoder.0.weight\" of shape [3, 2] is missing");
}

TEST(DiffusionRefusalsTest, LimitsTheBytesAfterConversion) {
  const ModelConfig config = Full(DenoiserKind::kAdaLnMlp, /*classes=*/false);
  const std::vector<NamedTensor> tensors = DiffusionTensors(config);
  int64_t bytes = 0;
  for (const NamedTensor& tensor : tensors) {
    bytes += static_cast<int64_t>(tensor.values.size() * sizeof(float));
  }
  EXPECT_TRUE(Load(tensors, config, {.max_weights_bytes = bytes}).ok());
  ExpectError(Load(tensors, config, {.max_weights_bytes = bytes - 1}),
              absl::StatusCode::kResourceExhausted, StrCat(bytes - 1, " are allowed"));
}

// The config claims the largest sizes allowed; the file is small.
TEST(DiffusionRefusalsTest, AllocatesNothingForWhatIsOnlyClaimed) {
  ModelConfig config = Config(DenoiserKind::kAdaLnMlp);
  config.state_dim = config.output_dim = 4096;
  config.hidden_dim = 4096;
  config.num_blocks = 64;
  config.time_embedding_dim = 4096;
  config.num_classes = 65536;
  const std::vector<NamedTensor> small = DiffusionTensors(Config(DenoiserKind::kAdaLnMlp));
  for (const std::vector<NamedTensor>& tensors : {small, std::vector<NamedTensor>{}}) {
    Model model;
    model.config = config;
    model.scheduler = Scheduler();
    ExpectError(LoadInto(tensors, {}, model), absl::StatusCode::kInvalidArgument,
                "tensor \"input_proj.weight\"");
    const DiffusionStorage& storage = model.diffusion;
    for (const auto* values :
         {&storage.input.weight, &storage.output.weight, &storage.first.weight,
          &storage.second.weight, &storage.modulation.weight, &storage.class_embedding.weight}) {
      EXPECT_EQ(values->capacity(), 0U);
    }
    for (const StepTables& tables : storage.tables) EXPECT_TRUE(tables.time_embedding.empty());
    EXPECT_TRUE(model.systems.empty());
  }
}

TEST(DiffusionRefusalsTest, AllocatesNoMoreForAStackThanTheFileHolds) {
  const std::vector<NamedTensor> tensors = DiffusionTensors(Config(DenoiserKind::kAdaLnMlp));
  size_t elements = 0;
  for (const NamedTensor& tensor : tensors) elements += tensor.values.size();
  ModelConfig config = Config(DenoiserKind::kAdaLnMlp);
  config.num_blocks = 64;
  Model model;
  model.config = config;
  model.scheduler = Scheduler();

  ExpectError(LoadInto(tensors, {}, model), absl::StatusCode::kInvalidArgument,
              "tensor \"res_blocks.2.in_ln.weight\" of shape [3] is missing");

  EXPECT_LE(model.diffusion.first.weight.capacity(), elements);
  EXPECT_LE(model.diffusion.second.weight.capacity(), elements);
  EXPECT_LE(model.diffusion.modulation.weight.capacity(), elements);
  for (const StepTables& tables : model.diffusion.tables)
    EXPECT_TRUE(tables.time_embedding.empty());
}

TEST(DiffusionRefusalsTest, LimitsTheTimeEmbeddings) {
  ModelConfig config = Config();
  const auto bytes = static_cast<int64_t>((9 + 4) * kHidden * sizeof(double));
  Model model;
  model.config = config;
  model.scheduler = Scheduler();
  EXPECT_TRUE(LoadDiffusionScheduler({.max_weights_bytes = bytes}, model).ok());
  model.diffusion = {};
  ExpectError(LoadDiffusionScheduler({.max_weights_bytes = bytes - 1}, model),
              absl::StatusCode::kResourceExhausted,
              StrCat("num_inference_steps: the time embeddings of 13 steps take ", bytes));
}

TEST(DiffusionRefusalsTest, RefusesATimeEmbeddingThatIsNotFinite) {
  const ModelConfig config = Config();
  std::vector<NamedTensor> tensors = DiffusionTensors(config);
  for (NamedTensor& tensor : tensors) {
    if (!tensor.name.starts_with("time_embed.")) continue;
    std::fill(tensor.values.begin(), tensor.values.end(), std::numeric_limits<float>::max());
  }
  ExpectRefused(tensors, config, "expected an embedding that is finite as float32");
}

TEST(DiffusionRefusalsTest, NeedsItsSchedulerFirst) {
  const std::string bytes = SerializeSafetensors(DiffusionTensors(Config()));
  Model model;
  model.config = Config();

  ExpectError(LoadDiffusion(*ParseSafetensors(bytes), {}, model), absl::StatusCode::kInternal,
              "before its scheduler");
}

}  // namespace
}  // namespace deeppcr::testing
