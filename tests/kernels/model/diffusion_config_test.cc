// SPDX-License-Identifier: Apache-2.0
// config.json of diffusion models; config_test.cc tests what holds for every family.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/model/config_case.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;

std::string Diffusion(std::string_view key, std::string_view value) {
  return ConfigWith(key, value, "diffusion");
}

TEST(DiffusionConfigTest, TakesWhatStandsForNoCondition) {
  const auto null_of = [](std::string_view key, std::string_view value) {
    return ParseConfig(Diffusion(key, value)).value();
  };
  EXPECT_EQ(null_of("num_classes", "3,\"null_class\":2").null_class, 2);
  EXPECT_EQ(null_of("conditioning_dim", "3,\"null_condition\":0.5").null_condition,
            (std::vector<float>{0.5, 0.5, 0.5}));
  EXPECT_EQ(null_of("conditioning_dim", "2,\"null_condition\":[1,-2]").null_condition,
            (std::vector<float>{1, -2}));
}

TEST(DiffusionConfigTest, TakesTheDefaultsOfDiffusion) {
  const ModelConfig config = ParseConfig(MinimalConfig("diffusion").dump()).value();

  EXPECT_EQ(config.model_type, "diffusion");
  EXPECT_EQ(config.input_dim, 0);
  EXPECT_EQ(config.output_dim, 2);
  EXPECT_EQ(config.state_dim, 4);
  EXPECT_EQ(config.num_layers, 0);
  EXPECT_EQ(config.activation, Activation::kTanh);
  EXPECT_EQ(config.denoiser, DenoiserKind::kAdaLnMlp);
  EXPECT_EQ(config.hidden_dim, 8);
  EXPECT_EQ(config.num_blocks, 3);
  EXPECT_EQ(config.time_embedding_dim, 6);
  EXPECT_EQ(config.num_inference_steps, (std::vector<int64_t>{10}));
  EXPECT_EQ(config.num_classes, 0);
  EXPECT_EQ(config.conditioning_dim, 0);
  EXPECT_TRUE(config.decoder_widths.empty());
  EXPECT_EQ(config.decoder_activation, Activation::kRelu);
  EXPECT_EQ(config.eta, 0.0);
  EXPECT_FALSE(config.use_clipped_model_output);
  EXPECT_EQ(config.mu, std::nullopt);
  EXPECT_FALSE(config.diffusers_compatible);
  EXPECT_TRUE(config.image_shape.empty());
}

TEST(DiffusionConfigTest, TakesEveryKeyOfDiffusion) {
  nlohmann::json object = MinimalConfig("diffusion");
  object.update({{"denoiser", "residual_mlp"},
                 {"output_dim", 60},
                 {"tensor_prefix", "net."},
                 {"num_inference_steps", {100, 20, 1}},
                 {"conditioning_dim", 7},
                 {"decoder_widths", {9, 1}},
                 {"decoder_activation", "silu"},
                 {"eta", 1},
                 {"use_clipped_model_output", true},
                 {"mu", -1.5},
                 {"diffusers_compatible", true},
                 {"image_shape", {5, 4, 3}},
                 {"max_batch_size", 256}});

  const ModelConfig config = ParseConfig(object.dump()).value();

  EXPECT_EQ(config.denoiser, DenoiserKind::kResidualMlp);
  EXPECT_EQ(config.tensor_prefix, "net.");
  EXPECT_EQ(config.num_inference_steps, (std::vector<int64_t>{100, 20, 1}));
  EXPECT_EQ(config.conditioning_dim, 7);
  EXPECT_EQ(config.input_dim, 7);
  EXPECT_EQ(config.decoder_widths, (std::vector<int64_t>{9, 1}));
  EXPECT_EQ(config.decoder_activation, Activation::kSilu);
  EXPECT_EQ(config.eta, 1.0);
  EXPECT_TRUE(config.use_clipped_model_output);
  EXPECT_EQ(config.mu, -1.5);
  EXPECT_TRUE(config.diffusers_compatible);
  EXPECT_EQ(config.image_shape, (std::vector<int64_t>{5, 4, 3}));
  EXPECT_EQ(config.max_batch_size, 256);
}

TEST(DiffusionConfigTest, TakesValuesAtTheEdgesOfDiffusion) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"denoiser", "\"residual_mlp\""},
           {"num_inference_steps", "[1,2,3,4,5,6,7,65536]"},
           {"decoder_widths", "[]"},
           {"decoder_widths", "[1,1,1,1,1,1,1,65536]"},
           {"tensor_prefix", StrCat("\"", std::string(256, 'n'), "\"")},
           {"eta", "0"},
           {"eta", "-0.0"},
           {"image_shape", "[1,2]"},
           {"image_shape", "[2,1,1]"}}) {
    const absl::StatusOr<ModelConfig> config = ParseConfig(Diffusion(key, value));
    EXPECT_TRUE(config.ok()) << key << " " << value << ": " << config.status();
  }
  for (const DenoiserKind kind : {DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp}) {
    EXPECT_EQ(ParseConfig(Diffusion("denoiser", StrCat("\"", NameOf(kind), "\"")))->denoiser, kind);
  }
}

class RefusedDiffusionConfigTest : public ::testing::TestWithParam<RefusedCase> {};

TEST_P(RefusedDiffusionConfigTest, IsRefusedWithItsReason) {
  ExpectError(ParseConfig(GetParam().input), GetParam().code, GetParam().message_part);
}

// 8 hidden layers of 65536, each of 2^32 weights.
constexpr char kWideDecoder[] = "[65536,65536,65536,65536,65536,65536,65536,65536]";

INSTANTIATE_TEST_SUITE_P(
    All, RefusedDiffusionConfigTest,
    ::testing::Values(
        RefusedCase{"Denoiser", Diffusion("denoiser", "\"unet\""),
                    "denoiser: expected one of residual_mlp, adaln_mlp, onnx, got string \"unet\""},
        RefusedCase{"OddTimeEmbedding", Diffusion("time_embedding_dim", "7"),
                    "time_embedding_dim: expected an even integer, got 7"},
        RefusedCase{"PrefixEmpty", Diffusion("tensor_prefix", "\"\""),
                    "tensor_prefix: expected 1 to 256 bytes, got 0"},
        RefusedCase{"PrefixLong",
                    Diffusion("tensor_prefix", StrCat("\"", std::string(257, 'n'), "\"")),
                    "tensor_prefix: expected 1 to 256 bytes, got 257"},
        RefusedCase{"PrefixControl", Diffusion("tensor_prefix", "\"net\\n\""),
                    "tensor_prefix: expected no control characters, got \"net"},
        RefusedCase{"StepsZero", Diffusion("num_inference_steps", "0"),
                    "num_inference_steps: expected an integer in [1, 65536], got 0"},
        RefusedCase{"StepsAbove", Diffusion("num_inference_steps", "65537"),
                    "num_inference_steps: expected an integer in [1, 65536], got 65537"},
        RefusedCase{"StepsNone", Diffusion("num_inference_steps", "[]"),
                    "num_inference_steps: expected an integer in [1, 65536] or an array of 1 to 8 "
                    "of them, got an array of 0 values"},
        RefusedCase{"StepsMany", Diffusion("num_inference_steps", "[1,2,3,4,5,6,7,8,9]"),
                    "got an array of 9 values"},
        RefusedCase{"StepsOneAbove", Diffusion("num_inference_steps", "[5,65537]"),
                    "num_inference_steps[1]: expected an integer in [1, 65536], got 65537"},
        RefusedCase{"StepsString", Diffusion("num_inference_steps", "\"10\""),
                    "or an array of 1 to 8 of them, got string \"10\""},
        RefusedCase{"StepsFloat", Diffusion("num_inference_steps", "[1.0]"),
                    "num_inference_steps[0]: expected an integer"},
        RefusedCase{"StepsTwice", Diffusion("num_inference_steps", "[20,10,20]"),
                    "num_inference_steps: expected distinct integers, got 20 twice"},
        RefusedCase{"TwoConditions", Diffusion("num_classes", "3,\"conditioning_dim\":2"),
                    "conditioning_dim: expected 0 beside num_classes = 3"},
        RefusedCase{"NullClassAlone", Diffusion("null_class", "0"),
                    "null_class: expected none without num_classes, got 0"},
        RefusedCase{"NullClassBeyond", Diffusion("num_classes", "3,\"null_class\":3"),
                    "null_class: expected an integer in [0, 2], got 3"},
        RefusedCase{"NullClassNumber", Diffusion("num_classes", "3,\"null_class\":1.0"),
                    "null_class: expected an integer in [0, 2], got 1.0"},
        RefusedCase{"NullConditionAlone", Diffusion("null_condition", "0"),
                    "null_condition: expected none without conditioning_dim, got 0"},
        RefusedCase{"NullConditionSize",
                    Diffusion("conditioning_dim", "2,\"null_condition\":[1,2,3]"),
                    "null_condition: expected conditioning_dim = 2 numbers, or one, got 3"},
        RefusedCase{"NullConditionHuge", Diffusion("conditioning_dim", "2,\"null_condition\":1e39"),
                    "null_condition: expected numbers that are finite as float32, got 1e+39"},
        RefusedCase{"NullConditionText",
                    Diffusion("conditioning_dim", "2,\"null_condition\":\"zero\""),
                    "null_condition: expected a number"},
        RefusedCase{"DecoderMany", Diffusion("decoder_widths", "[1,2,3,4,5,6,7,8,9]"),
                    "decoder_widths: expected an array of at most 8 integers, got an array of 9"},
        RefusedCase{"DecoderNumber", Diffusion("decoder_widths", "128"),
                    "decoder_widths: expected an array of at most 8 integers, got 128"},
        RefusedCase{"DecoderZero", Diffusion("decoder_widths", "[4,0]"),
                    "decoder_widths[1]: expected an integer in [1, 65536], got 0"},
        RefusedCase{"DecoderActivation", Diffusion("decoder_activation", "\"ReLU\""),
                    "decoder_activation: expected one of identity"},
        RefusedCase{"DecoderActivationAlone", Diffusion("decoder_activation", "\"silu\""),
                    "decoder_activation: needs decoder_widths, which are not given"},
        RefusedCase{"EtaNegative", Diffusion("eta", "-0.1"),
                    "eta: expected a number in [0, 1], got -0.1"},
        RefusedCase{"EtaAbove", Diffusion("eta", "1.5"), "eta: expected a number in [0, 1]"},
        RefusedCase{"EtaNaN", Diffusion("eta", "NaN"), "not JSON"},
        RefusedCase{"ClippedOutputNumber", Diffusion("use_clipped_model_output", "1"),
                    "use_clipped_model_output: expected true or false, got 1"},
        RefusedCase{"MuNull", Diffusion("mu", "null"), "mu: expected a number, got null"},
        RefusedCase{"CompatibleNumber", Diffusion("diffusers_compatible", "1"),
                    "diffusers_compatible: expected true or false, got 1"},
        RefusedCase{"ImageOneExtent", Diffusion("image_shape", "[2]"),
                    "image_shape: expected an array of 2 or 3 integers (height, width, channels), "
                    "got an array of 1 values"},
        RefusedCase{"ImageFourExtents", Diffusion("image_shape", "[1,1,1,2]"),
                    "got an array of 4 values"},
        RefusedCase{"ImageProduct", Diffusion("image_shape", "[2,2]"),
                    "image_shape: expected output_dim = 2 values in all, got [2, 2] = 4"},
        RefusedCase{"ImageHuge", Diffusion("image_shape", "[65536,65536,3]"),
                    "got [65536, 65536, 3] = 12884901888"},
        RefusedCase{"ImageChannels", Diffusion("image_shape", "[1,1,2]"),
                    "image_shape[2]: expected 1 or 3 channels, got 2"},
        RefusedCase{"ImageZero", Diffusion("image_shape", "[0,2]"),
                    "image_shape[0]: expected an integer in [1, 65536], got 0"},
        RefusedCase{"DecoderParameters", Diffusion("decoder_widths", kWideDecoder),
                    "hidden_dim, num_blocks, num_classes, decoder_widths: expected at most "
                    "8589934592 parameters, got 30"},
        RefusedCase{"ModulationTables",
                    R"({"model_type":"diffusion","output_dim":2,"state_dim":2,"activation":"relu",)"
                    R"("denoiser":"residual_mlp","hidden_dim":256,"num_blocks":8,)"
                    R"("time_embedding_dim":2,"num_inference_steps":[65535,1,2]})",
                    "num_inference_steps: expected at most 134217728 modulation values, got "
                    "134221824: 65538 steps in all x 2048 values of num_blocks 8 and hidden_dim "
                    "256"},
        RefusedCase{"TimeProducts",
                    R"({"model_type":"diffusion","output_dim":2,"state_dim":2,"activation":"relu",)"
                    R"("denoiser":"residual_mlp","hidden_dim":4096,"num_blocks":1,)"
                    R"("time_embedding_dim":2,"num_inference_steps":7000})",
                    "num_inference_steps: expected at most 34359738368 products for the time "
                    "embedding, got 117497856000: 7000 steps in all x hidden_dim 4096"}),
    CaseName);

TEST(DiffusionConfigTest, TakesAsManyModulationValuesAsAreAllowed) {
  EXPECT_TRUE(
      ParseConfig(R"({"model_type":"diffusion","output_dim":2,"state_dim":2,"activation":"relu",)"
                  R"("denoiser":"residual_mlp","hidden_dim":256,"num_blocks":8,)"
                  R"("time_embedding_dim":2,"num_inference_steps":[65535,1]})")
          .ok());
}

// adaLN has three parts per block and two at the end.
TEST(DiffusionConfigTest, CountsTheModulationOfTheKind) {
  nlohmann::json object = MinimalConfig("diffusion");
  object.update({{"hidden_dim", 256}, {"num_blocks", 2}, {"num_inference_steps", 65536}});
  EXPECT_TRUE(ParseConfig(object.dump()).ok());
  object["num_blocks"] = 3;
  ExpectError(ParseConfig(object.dump()), StatusCode::kInvalidArgument,
              "x 2816 values of num_blocks 3 and hidden_dim 256");
}

}  // namespace
}  // namespace deeppcr::testing
