// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_split.h"
#include "kernels/base/strings.h"
#include "kernels/model/registry.h"
#include "tests/kernels/model/config_case.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;

TEST(ConfigTest, TakesDefaults) {
  const ModelConfig config = ParseConfig(MinimalConfig().dump()).value();

  EXPECT_EQ(config.model_type, "mlp");
  EXPECT_EQ(config.input_dim, 3);
  EXPECT_EQ(config.output_dim, 2);
  EXPECT_EQ(config.state_dim, 4);
  EXPECT_EQ(config.num_layers, 16);
  EXPECT_EQ(config.activation, Activation::kTanh);
  EXPECT_EQ(config.input_activation, Activation::kIdentity);
  EXPECT_EQ(config.residual_scale, 1.0);
  EXPECT_EQ(config.max_batch_size, 64);
  EXPECT_TRUE(config.labels.empty());
}

TEST(ConfigTest, TakesEveryKey) {
  nlohmann::json object = MinimalConfig("resnet");
  object["residual_scale"] = -0.125;
  object["max_batch_size"] = 7;
  object["input_activation"] = "relu";
  object["labels"] = {"cat", "\xC3\xA9t\xC3\xA9"};

  const ModelConfig config = ParseConfig(object.dump()).value();

  EXPECT_EQ(config.residual_scale, -0.125);
  EXPECT_EQ(config.max_batch_size, 7);
  EXPECT_EQ(config.input_activation, Activation::kRelu);
  EXPECT_EQ(config.labels, (std::vector<std::string>{"cat", "\xC3\xA9t\xC3\xA9"}));
}

TEST(ConfigTest, DefaultsTheResidualScaleToTheDepth) {
  EXPECT_EQ(ParseConfig(MinimalConfig("resnet").dump())->residual_scale, 0.25);
}

TEST(ConfigTest, TakesAnIntegerAsResidualScale) {
  EXPECT_EQ(ParseConfig(ConfigWith("residual_scale", "2", "resnet"))->residual_scale, 2.0);
}

TEST(ConfigTest, TakesEveryActivation) {
  for (const ActivationName& row : kActivationNames) {
    const ModelConfig config =
        ParseConfig(ConfigWith("activation", StrCat("\"", row.name, "\""))).value();
    EXPECT_EQ(config.activation, row.activation);
    EXPECT_EQ(NameOf(row.activation), row.name);
  }
}

TEST(ConfigTest, TakesEveryModelType) {
  for (const ModelFamily& family : ModelFamilies()) {
    EXPECT_TRUE(ParseConfig(MinimalConfig(family.name).dump()).ok()) << family.name;
  }
}

TEST(ConfigTest, TakesBothEndsOfEveryIntegerRange) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.type != "integer") continue;
    EXPECT_TRUE(ParseConfig(ConfigWith(key.name, StrCat(key.min), TypeFor(key))).ok()) << key.name;
    EXPECT_TRUE(ParseConfig(ConfigWith(key.name, StrCat(key.max), TypeFor(key))).ok()) << key.name;
  }
}

TEST(ConfigTest, RefusesEveryIntegerOutsideItsRangeOrType) {
  int integers = 0;
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.type != "integer") continue;
    ++integers;
    const std::string expected =
        StrCat(key.name, ": expected an integer in [", key.min, ", ", key.max, "], got ");
    for (const std::string& value :
         {StrCat(key.min - 1), StrCat(key.max + 1), std::string("-1"), std::string("1.0"),
          std::string("1e0"), std::string("\"1\""), std::string("null"), std::string("true"),
          std::string("[1]"), std::string("{}"), std::string("9223372036854775808"),
          std::string("4294967297000000000000")}) {
      ExpectError(ParseConfig(ConfigWith(key.name, value, TypeFor(key))),
                  StatusCode::kInvalidArgument, expected);
    }
  }
  EXPECT_EQ(integers, 10);
}

TEST(ConfigTest, RefusesAMissingRequiredKeyByName) {
  std::map<std::string_view, int> required;
  for (const ModelFamily& family : ModelFamilies()) {
    for (const ConfigKey& key : ConfigKeys()) {
      nlohmann::json object = MinimalConfig(family.name);
      if (object.erase(std::string(key.name)) == 0) continue;
      EXPECT_EQ(key.default_value, "required") << key.name;
      ++required[family.name];
      ExpectError(ParseConfig(object.dump()), StatusCode::kInvalidArgument,
                  StrCat(key.name, ": missing; expected ", key.type));
    }
  }
  EXPECT_EQ(required, (std::map<std::string_view, int>{
                          {"mlp", 6}, {"resnet", 6}, {"stack", 5}, {"diffusion", 9}}));
}

TEST(ConfigTest, RefusesEveryKeyOfAnotherFamily) {
  int refused = 0;
  for (const ModelFamily& family : ModelFamilies()) {
    for (const ConfigKey& key : ConfigKeys()) {
      if (key.families == "all" || key.families.find(family.name) != std::string_view::npos) {
        continue;
      }
      ++refused;
      ExpectError(
          ParseConfig(ConfigWith(key.name, "1", family.name)), StatusCode::kInvalidArgument,
          StrCat(key.name, ": only for model_type ", key.families, ", this is ", family.name));
    }
  }
  EXPECT_EQ(refused, 20 + 19 + 20 + 6);
}

TEST(ConfigTest, RefusesEveryKeyGivenTwice) {
  for (const ConfigKey& key : ConfigKeys()) {
    std::string text = ConfigWith(key.name, "1", TypeFor(key));
    text.pop_back();
    ExpectError(ParseConfig(StrCat(text, ",\"", key.name, "\":1}")), StatusCode::kInvalidArgument,
                StrCat("key \"", key.name, "\" appears twice"));
  }
}

TEST(ConfigTest, RefusesTheWrongTypeOfEveryKey) {
  for (const ConfigKey& key : ConfigKeys()) {
    const bool of_program = key.denoiser == ConfigKey::Denoiser::kProgram;
    for (const char* value : {"{}", "null"}) {
      const std::string text = of_program ? ProgramConfigWith(key.name, value)
                                          : ConfigWith(key.name, value, TypeFor(key));
      ExpectError(ParseConfig(text), StatusCode::kInvalidArgument, StrCat(key.name, ": expected "));
    }
  }
}

TEST(ConfigTest, TakesADenoiserFromAFile) {
  const ModelConfig plain = *ParseConfig(ProgramConfigWith("max_batch_size", "7"));
  EXPECT_TRUE(plain.denoiser_program);
  EXPECT_EQ(plain.denoiser_inputs, DenoiserInputs());
  const ModelConfig named = *ParseConfig(
      ProgramConfigWith("denoiser_inputs", R"({"state": "x", "time": "t", "condition": "c"})"));
  EXPECT_EQ(named.denoiser_inputs, (DenoiserInputs{"x", "t", "c"}));
}

TEST(ConfigTest, RefusesKeysOfTheOtherDenoiser) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.denoiser == ConfigKey::Denoiser::kNamed)
      ExpectError(ParseConfig(ProgramConfigWith(key.name, "1")), StatusCode::kInvalidArgument,
                  StrCat(key.name, ": not with denoiser \"onnx\""));
    if (key.denoiser == ConfigKey::Denoiser::kProgram)
      ExpectError(ParseConfig(ConfigWith(key.name, "1", "diffusion")), StatusCode::kInvalidArgument,
                  StrCat(key.name, ": only with denoiser \"onnx\""));
  }
}

TEST(ConfigTest, RefusesInputsOfNoMeaning) {
  const auto with = [](const char* value) { return ProgramConfigWith("denoiser_inputs", value); };
  for (const auto& [value, message] :
       {std::pair{R"({"time": "t"})", "expected the key state"},
        std::pair{R"({"state": ""})", "expected the name of an input"},
        std::pair{R"({"state": 1})", "expected a string"},
        std::pair{R"({"state": "x", "noise": "n"})",
                  "expected the keys state, time and condition"}})
    ExpectError(ParseConfig(with(value)), StatusCode::kInvalidArgument, message);
}

TEST(ConfigTest, FindsAllProblemsAtOnce) {
  nlohmann::json object = MinimalConfig("diffusion");
  object["eta"] = 2;
  object["max_batch_size"] = 0;
  object.erase("hidden_dim");
  Problems all(true);
  EXPECT_FALSE(ParseConfig(object.dump(), ConfigKeys(), &all).ok());
  ASSERT_EQ(all.all().size(), 3u);
  EXPECT_NE(all.all()[1].message().find("hidden_dim: missing"), std::string::npos);
}

class RefusedConfigTest : public ::testing::TestWithParam<RefusedCase> {};

TEST_P(RefusedConfigTest, IsRefusedWithItsReason) {
  ExpectError(ParseConfig(GetParam().input), GetParam().code, GetParam().message_part);
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedConfigTest,
    ::testing::Values(
        RefusedCase{"Empty", "", "not JSON"},
        RefusedCase{"Array", "[]", "expected an object, got an array"},
        RefusedCase{
            "UnknownKey", ConfigWith("layers", "3"),
            "unknown key \"layers\"; the keys are model_type, input_dim, output_dim, "
            "state_dim, num_layers, denoiser, activation, residual_scale, max_batch_size, "
            "input_activation, labels, shared_weights, hidden_dim, num_blocks, time_embedding_dim, "
            "tensor_prefix, denoiser_inputs, num_inference_steps, num_classes, conditioning_dim, "
            "null_class, null_condition, decoder_widths, decoder_activation, eta, "
            "use_clipped_model_output, mu, "
            "diffusers_compatible, image_shape"},
        RefusedCase{"KeyOfOtherCase", ConfigWith("State_Dim", "3"), "unknown key \"State_Dim\""},
        RefusedCase{
            "ModelType", ConfigWith("model_type", "\"cnn\""),
            "model_type: expected one of mlp, resnet, stack, diffusion, got string \"cnn\""},
        RefusedCase{"ModelTypeNumber", ConfigWith("model_type", "1"),
                    "model_type: expected a string"},
        RefusedCase{"Activation", ConfigWith("activation", "\"ReLU\""),
                    "activation: expected one of identity, relu, leaky_relu, tanh, sigmoid, silu, "
                    "gelu, gelu_tanh, elu, softplus, mish, got \"ReLU\""},
        RefusedCase{"InputActivation", ConfigWith("input_activation", "\"\""),
                    "input_activation: expected one of"},
        RefusedCase{"ResidualScaleOfMlp", ConfigWith("residual_scale", "0.5"),
                    "residual_scale: only for model_type resnet, this is mlp"},
        RefusedCase{"ResidualScaleZero", ConfigWith("residual_scale", "0", "resnet"),
                    "residual_scale: expected a number that is finite and not 0"},
        RefusedCase{"ResidualScaleNegativeZero", ConfigWith("residual_scale", "-0.0", "resnet"),
                    "not 0 as float32"},
        RefusedCase{"ResidualScaleTiny", ConfigWith("residual_scale", "1e-60", "resnet"),
                    "not 0 as float32"},
        RefusedCase{"ResidualScaleHuge", ConfigWith("residual_scale", "1e39", "resnet"),
                    "finite and not 0 as float32, got 1e+39"},
        RefusedCase{"ResidualScaleOverflow", ConfigWith("residual_scale", "1e999", "resnet"),
                    "number overflow"},
        RefusedCase{"ResidualScaleNaN", ConfigWith("residual_scale", "NaN", "resnet"), "not JSON"},
        RefusedCase{"ResidualScaleString", ConfigWith("residual_scale", "\"0.5\"", "resnet"),
                    "residual_scale: expected a number, got string \"0.5\""},
        RefusedCase{
            "LabelsTooFew", ConfigWith("labels", R"(["a"])"),
            "labels: expected an array of output_dim = 2 strings, got an array of 1 values"},
        RefusedCase{"LabelsTooMany", ConfigWith("labels", R"(["a","b","c"])"),
                    "strings, got an array of 3 values"},
        RefusedCase{"LabelsEmpty", ConfigWith("labels", "[]"), "strings, got an array of 0 values"},
        RefusedCase{"LabelsNumber", ConfigWith("labels", R"(["a",1])"),
                    "labels[1]: expected a string, got 1"},
        RefusedCase{"LabelsString", ConfigWith("labels", "\"ab\""),
                    "labels: expected an array of output_dim = 2 strings, got string \"ab\""},
        RefusedCase{"LabelEmpty", ConfigWith("labels", R"(["a",""])"),
                    "labels[1]: expected 1 to 256 bytes, got 0"},
        RefusedCase{"LabelLong",
                    ConfigWith("labels", StrCat("[\"a\",\"", std::string(257, 'x'), "\"]")),
                    "labels[1]: expected 1 to 256 bytes, got 257"},
        RefusedCase{"LabelEscape", ConfigWith("labels", R"(["a","b\u001b[2J"])"),
                    "labels[1]: expected no control characters, got \"b\\x1b[2J\""},
        RefusedCase{"LabelNewline", ConfigWith("labels", R"(["a\nb","b"])"),
                    "labels[0]: expected no control characters"},
        RefusedCase{"LabelDelete", ConfigWith("labels", R"(["a","\u007f"])"),
                    "labels[1]: expected no control characters"},
        RefusedCase{"LabelNotUtf8", ConfigWith("labels", "[\"a\",\"\xFF\"]"), "UTF-8"},
        RefusedCase{"DeepNesting", ConfigWith("labels", std::string(100'000, '[')),
                    "nested deeper than 16"},
        RefusedCase{"TrailingGarbage", MinimalConfig().dump() + "x", "not JSON"},
        RefusedCase{"TrailingNul", MinimalConfig().dump() + std::string(1, '\0'), "NUL byte"},
        RefusedCase{"TooManyParameters",
                    R"({"model_type":"mlp","input_dim":1,"output_dim":1,"state_dim":4096,)"
                    R"("num_layers":1048576,"activation":"relu"})",
                    "num_layers 1048576 x state_dim 4096: expected at most 8589934592 parameters"}),
    CaseName);

TEST(ConfigTest, RefusesEveryTruncation) {
  const std::string text = MinimalConfig().dump();
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(ParseConfig(std::string_view(text).substr(0, size)).ok()) << size;
  }
}

// The documentation prints defaults from the table; the parser must use the same.
TEST(ConfigKeysTest, DescribesTheDefaultsThatAreTaken) {
  const ModelConfig config = *ParseConfig(MinimalConfig("diffusion").dump());
  const ModelConfig dense = *ParseConfig(MinimalConfig().dump());
  const auto count = [](const auto& values) { return values.empty() ? "none" : "some"; };
  const std::map<std::string_view, std::string> taken = {
      {"max_batch_size", StrCat(config.max_batch_size)},
      {"input_activation", std::string(NameOf(dense.input_activation))},
      {"residual_scale", "1/sqrt(num_layers)"},
      {"labels", count(dense.labels)},
      {"shared_weights", count(dense.shared_weights)},
      {"denoiser_inputs", config.denoiser_inputs == DenoiserInputs() ? "none" : "some"},
      {"tensor_prefix", config.tensor_prefix.empty() ? "none" : "some"},
      {"num_classes", StrCat(config.num_classes)},
      {"conditioning_dim", StrCat(config.conditioning_dim)},
      {"null_class", config.null_class.has_value() ? "some" : "none"},
      {"null_condition", count(config.null_condition)},
      {"decoder_widths", count(config.decoder_widths)},
      {"decoder_activation", std::string(NameOf(config.decoder_activation))},
      {"eta", StrCat(config.eta)},
      {"use_clipped_model_output", config.use_clipped_model_output ? "true" : "false"},
      {"mu", config.mu.has_value() ? StrCat(*config.mu) : "none"},
      {"diffusers_compatible", config.diffusers_compatible ? "true" : "false"},
      {"image_shape", count(config.image_shape)},
  };
  for (const ConfigKey& key : ConfigKeys()) {
    const auto found = taken.find(key.name);
    EXPECT_EQ(key.default_value, found != taken.end() ? found->second : "required") << key.name;
  }
}

TEST(ConfigKeysTest, IsCompleteAndWithoutRepetition) {
  std::set<std::string_view> names;
  for (const ConfigKey& key : ConfigKeys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_FALSE(key.meaning.empty()) << key.name;
    EXPECT_EQ(key.type.find("integer") != std::string_view::npos, key.max > 0) << key.name;
    EXPECT_NE(key.read, nullptr) << key.name;
  }
  EXPECT_EQ(ConfigKeys().front().name, "model_type");
}

TEST(ConfigKeysTest, NamesFamiliesOfTheRegistryOnly) {
  std::string types;
  for (const ConfigKey& key : ConfigKeys()) {
    const std::vector<std::string> names = absl::StrSplit(ToAbsl(key.families), ", ");
    for (const std::string& name : names) {
      EXPECT_TRUE(name == "all" || FindModelFamily(name) != nullptr) << key.name;
    }
    if (key.name == "model_type") types = key.meaning;
  }
  for (const ModelFamily& family : ModelFamilies()) {
    EXPECT_THAT(types, ::testing::HasSubstr(StrCat("`", family.name, "`")));
  }
}

}  // namespace
}  // namespace deeppcr::testing
