// SPDX-License-Identifier: Apache-2.0
#include "server/codec/v2/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "server/codec/gradient_codec.h"
#include "tests/server/codec/generation_codec_fixture.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using inference::ModelInferRequest;
using ::testing::ElementsAre;

std::string Bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

void AddInput(const std::string& name, const std::string& datatype, std::vector<int64_t> shape,
              ModelInferRequest* request) {
  auto* input = request->add_inputs();
  input->set_name(name);
  input->set_datatype(datatype);
  input->mutable_shape()->Add(shape.begin(), shape.end());
}

// A request to Mlp() with raw contents.
ModelInferRequest Good() {
  ModelInferRequest request;
  request.set_model_name("m");
  request.set_id("a");
  AddInput("inputs", "FP32", {2, 2}, &request);
  request.add_raw_input_contents(Bytes({1, 2, 3, 4}));
  return request;
}

// Good() with typed contents.
ModelInferRequest Typed() {
  ModelInferRequest request = Good();
  request.clear_raw_input_contents();
  for (const float x : {1.0F, 2.0F, 3.0F, 4.0F})
    request.mutable_inputs(0)->mutable_contents()->add_fp32_contents(x);
  return request;
}

v1::ForwardRequest Forward(ModelInferRequest request) {
  const absl::StatusOr<V2Request> decoded = DecodeV2(&request, Mlp());
  EXPECT_TRUE(decoded.ok()) << decoded.status();
  return decoded.ok() ? std::get<v1::ForwardRequest>(decoded->request) : v1::ForwardRequest();
}
v1::GenerateRequest Generate(ModelInferRequest request, const ModelInfo& info) {
  const absl::StatusOr<V2Request> decoded = DecodeV2(&request, info);
  EXPECT_TRUE(decoded.ok()) << decoded.status();
  return decoded.ok() ? std::get<v1::GenerateRequest>(decoded->request) : v1::GenerateRequest();
}

TEST(V2RequestTest, RawAndTypedContentsSayTheSame) {
  const v1::ForwardRequest raw = Forward(Good());
  EXPECT_THAT(raw.inputs().shape(), ElementsAre(2, 2));
  EXPECT_EQ(raw.inputs().data(), Bytes({1, 2, 3, 4}));
  EXPECT_FALSE(raw.options().return_trajectory());
  EXPECT_EQ(Forward(Typed()).SerializeAsString(), raw.SerializeAsString());
  EXPECT_TRUE(DecodeForward(raw, Mlp(), kMessageLimit).ok());
}

TEST(V2RequestTest, ParametersBecomeOptions) {
  ModelInferRequest request = Good();
  auto& parameters = *request.mutable_parameters();
  parameters["solver"].set_string_param("newton");
  parameters["rtol"].set_double_param(1e-3);
  parameters["atol"].set_int64_param(1);
  parameters["max_iterations"].set_int64_param(7);
  parameters["shooting_interval"].set_uint64_param(2);
  parameters["warm_sweeps"].set_int64_param(0);
  parameters["initial_guess"].set_string_param("constant");
  parameters["jacobian_refresh"].set_string_param("while_contracting");
  parameters["on_no_convergence"].set_string_param("return");
  parameters["timeout"].set_int64_param(1500);
  parameters["triton_enable_empty_final_response"].set_bool_param(true);

  const V2Request decoded = DecodeV2(&request, Mlp()).value();

  EXPECT_EQ(decoded.timeout, std::chrono::microseconds(1500));
  const v1::SolverOptions& options = std::get<v1::ForwardRequest>(decoded.request).options();
  EXPECT_EQ(options.solver(), "newton");
  EXPECT_EQ(options.rtol(), 1e-3);
  EXPECT_EQ(options.atol(), 1);
  EXPECT_EQ(options.max_iterations(), 7);
  EXPECT_EQ(options.shooting_interval(), 2);
  EXPECT_TRUE(options.has_warm_sweeps());
  EXPECT_EQ(options.initial_guess(), v1::INITIAL_GUESS_CONSTANT);
  EXPECT_EQ(options.jacobian_refresh(), v1::JACOBIAN_REFRESH_WHILE_CONTRACTING);
  EXPECT_EQ(options.on_no_convergence(), v1::ON_NO_CONVERGENCE_RETURN);
}

TEST(V2RequestTest, ParametersOfAGeneration) {
  ModelInferRequest request;
  auto& parameters = *request.mutable_parameters();
  parameters["num_samples"].set_int64_param(3);
  parameters["seed"].set_uint64_param(~uint64_t{0});
  parameters["first_sample"].set_int64_param(5);
  parameters["num_inference_steps"].set_int64_param(3);
  parameters["class_label"].set_int64_param(2);

  const v1::GenerateRequest generate = Generate(request, WithClasses());

  EXPECT_EQ(generate.input().num_samples(), 3);
  EXPECT_EQ(generate.input().seed(), ~uint64_t{0});
  EXPECT_EQ(generate.input().first_sample(), 5u);
  EXPECT_EQ(generate.input().num_inference_steps(), 3);
  EXPECT_THAT(generate.input().class_labels(), ElementsAre(2));
  EXPECT_TRUE(Decode(generate, WithClasses()).ok());
}

TEST(V2RequestTest, ThatNamesNothingGeneratesOneSample) {
  const v1::GenerateRequest generate = Generate({}, Plain());
  const SolveInput input = Decode(generate).value();
  EXPECT_EQ(input.num_samples, 1);
}

TEST(V2RequestTest, ATensorSaysHowManySamples) {
  ModelInferRequest request;
  AddInput("initial_noise", "FP32", {2, kState}, &request);
  request.add_raw_input_contents(Bytes(std::vector<float>(2 * kState, 0.5F)));
  const SolveInput input = Decode(Generate(request, Plain())).value();
  EXPECT_EQ(input.num_samples, 2);
  EXPECT_EQ(input.initial_noise.values.size(), 2u * kState);
}

TEST(V2RequestTest, LabelsOfEitherWidthAndShape) {
  for (const std::string datatype : {"INT32", "INT64"}) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3}, {3, 1}}) {
      ModelInferRequest typed, raw;
      AddInput("class_labels", datatype, shape, &typed);
      AddInput("class_labels", datatype, shape, &raw);
      std::string& bytes = *raw.add_raw_input_contents();
      for (const int64_t label : {4, 0, 2}) {
        auto* contents = typed.mutable_inputs(0)->mutable_contents();
        datatype == "INT32" ? contents->add_int_contents(static_cast<int32_t>(label))
                            : contents->add_int64_contents(label);
        bytes.append(reinterpret_cast<const char*>(&label), datatype == "INT32" ? 4 : 8);
      }
      for (const ModelInferRequest& request : {typed, raw})
        EXPECT_THAT(Generate(request, WithClasses()).input().class_labels(), ElementsAre(4, 0, 2));
    }
  }
}

TEST(V2RequestTest, OutputsInTheOrderAsked) {
  ModelInferRequest request;
  for (const char* name : {"trajectory", "samples"}) request.add_outputs()->set_name(name);
  const V2Request decoded = DecodeV2(&request, Plain()).value();
  EXPECT_THAT(decoded.outputs, ElementsAre(V2Output::kTrajectory, V2Output::kValues));
  EXPECT_TRUE(std::get<v1::GenerateRequest>(decoded.request).options().return_trajectory());
  ModelInferRequest all;
  EXPECT_THAT(DecodeV2(&all, Plain())->outputs, ElementsAre(V2Output::kValues, V2Output::kLatents));
}

// A request for gradients of Mlp() by its inputs, with two cotangents of each of two samples.
ModelInferRequest GoodGradients() {
  ModelInferRequest request = Good();
  AddInput("cotangent_outputs", "FP32", {2, 2, 3}, &request);
  request.add_raw_input_contents(Bytes(std::vector<float>(12, 0.5F)));
  request.add_outputs()->set_name("grad_inputs");
  return request;
}

TEST(V2RequestTest, AnOutputThatIsAGradientMakesARequestForGradients) {
  ModelInferRequest request = GoodGradients();
  request.add_outputs()->set_name("trajectory");
  (*request.mutable_parameters())["way"].set_string_param("parallel");
  (*request.mutable_parameters())["way_interval"].set_int64_param(3);
  (*request.mutable_parameters())["solver"].set_string_param("newton");

  const V2Request decoded = DecodeV2(&request, Mlp()).value();

  EXPECT_THAT(decoded.outputs, ElementsAre(V2Output::kByInputs, V2Output::kTrajectory));
  const auto& gradient = std::get<v1::GradientRequest>(decoded.request);
  EXPECT_EQ(gradient.inputs().data(), Bytes({1, 2, 3, 4}));
  EXPECT_THAT(gradient.cotangents().shape(), ElementsAre(2, 2, 3));
  EXPECT_THAT(gradient.gradients(), ElementsAre(v1::GRADIENT_BY_INPUTS));
  EXPECT_EQ(gradient.way(), v1::BACKWARD_WAY_PARALLEL);
  EXPECT_EQ(gradient.shooting_interval(), 3);
  EXPECT_EQ(gradient.options().solver(), "newton");
  EXPECT_TRUE(gradient.options().return_trajectory());
  SolveInput solve;
  EXPECT_TRUE(DecodeGradient(gradient, Mlp(), kMessageLimit, &solve, kV2Fields).ok());
}

TEST(V2RequestTest, GradientsOfAGeneration) {
  ModelInferRequest request;
  AddInput("cotangent_samples", "FP32", {3, 3}, &request);
  request.add_raw_input_contents(Bytes(std::vector<float>(9, 0.5F)));
  AddInput("cotangent_latents", "FP32", {3, kState}, &request);
  request.add_raw_input_contents(Bytes(std::vector<float>(3 * kState, 0.25F)));
  AddInput("conditioning", "FP32", {3, 2}, &request);
  request.add_raw_input_contents(Bytes(std::vector<float>(6, 1)));
  for (const char* name : {"grad_step_noise", "grad_conditioning", "samples", "grad_initial_noise"})
    request.add_outputs()->set_name(name);
  (*request.mutable_parameters())["seed"].set_int64_param(9);

  const V2Request decoded = DecodeV2(&request, WithConditioning()).value();

  const auto& gradient = std::get<v1::GradientRequest>(decoded.request);
  EXPECT_EQ(gradient.generation().num_samples(), 3);
  EXPECT_EQ(gradient.generation().seed(), 9u);
  EXPECT_TRUE(gradient.generation().has_conditioning());
  EXPECT_THAT(gradient.final_state_cotangents().shape(), ElementsAre(3, kState));
  EXPECT_THAT(gradient.gradients(), ElementsAre(v1::GRADIENT_BY_STEP_NOISE, v1::GRADIENT_BY_INPUTS,
                                                v1::GRADIENT_BY_INITIAL_STATE));
  SolveInput solve;
  const auto input =
      DecodeGradient(gradient, WithConditioning(), kMessageLimit, &solve, kV2SampleFields);
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_TRUE(CheckFinite(*input).ok());
}

TEST(V2RequestTest, ErrorsOfGradientsAreInWordsOfV2) {
  const auto error = [](const ModelInferRequest& from) {
    ModelInferRequest request = from;
    const absl::StatusOr<V2Request> decoded = DecodeV2(&request, Mlp());
    EXPECT_TRUE(decoded.ok()) << decoded.status();
    SolveInput solve;
    const auto input = DecodeGradient(std::get<v1::GradientRequest>(decoded->request), Mlp(),
                                      kMessageLimit, &solve, kV2Fields);
    return input.ok() ? CheckFinite(*input) : input.status();
  };
  EXPECT_TRUE(error(GoodGradients()).ok());
  ModelInferRequest request = GoodGradients();
  request.mutable_inputs()->RemoveLast();
  request.mutable_raw_input_contents()->RemoveLast();
  ExpectError(error(request), absl::StatusCode::kInvalidArgument,
              "cotangent_outputs: expected a tensor [n, 3] or [n, m, 3]");

  request = GoodGradients();
  request.mutable_inputs(1)->set_shape(2, 4);
  ExpectError(error(request), absl::StatusCode::kInvalidArgument,
              "cotangent_outputs.shape: expected [n, 2, 3] with n = 2, got [2, 2, 4]");

  request = GoodGradients();
  *request.mutable_raw_input_contents(1) = Bytes(std::vector<float>(12, NAN));
  ExpectError(error(request), absl::StatusCode::kInvalidArgument,
              "cotangent_outputs.data: expected finite values");

  request = GoodGradients();
  (*request.mutable_parameters())["on_no_convergence"].set_string_param("return");
  ExpectError(error(request), absl::StatusCode::kInvalidArgument,
              "parameters.on_no_convergence: expected FALLBACK or ERROR");

  request = GoodGradients();
  (*request.mutable_parameters())["way_interval"].set_int64_param(9);
  ExpectError(error(request), absl::StatusCode::kInvalidArgument,
              "parameters.way_interval: expected a number in [0, 8], got 9");
}

TEST(V2RequestTest, Versions) {
  EXPECT_EQ(*DecodeVersion(""), 0);
  EXPECT_EQ(*DecodeVersion("12"), 12);
  for (const char* wrong : {"0", "-1", "01", "x", "1 ", "99999999999999999999"})
    ExpectError(DecodeVersion(wrong).status(), absl::StatusCode::kInvalidArgument,
                "model_version: expected a positive decimal integer");
}

// Errors that the checks of deeppcr.v1 find in requests of v2 name fields of v2.
TEST(V2RequestTest, ErrorsAreInWordsOfV2) {
  ModelInferRequest tolerance = Good();
  (*tolerance.mutable_parameters())["rtol"].set_double_param(1);
  const v1::ForwardRequest forward = Forward(tolerance);
  ExpectError(DecodeForward(forward, Mlp(), kMessageLimit, kV2Fields),
              absl::StatusCode::kInvalidArgument, "parameters.rtol: expected a number in");

  ModelInferRequest steps;
  (*steps.mutable_parameters())["num_inference_steps"].set_int64_param(5);
  ExpectError(DecodeGenerate(Generate(steps, Plain()), Plain(), kMessageLimit, kV2Fields),
              absl::StatusCode::kInvalidArgument,
              "parameters.num_inference_steps: expected one of");

  ModelInferRequest noise;
  AddInput("initial_noise", "FP32", {2, kState + 1}, &noise);
  noise.add_raw_input_contents(Bytes(std::vector<float>(2 * (kState + 1), 0.5F)));
  const absl::Status status =
      DecodeGenerate(Generate(noise, Plain()), Plain(), kMessageLimit, kV2Fields).status();
  EXPECT_TRUE(std::string(status.message()).starts_with("initial_noise.shape: ")) << status;

  ModelInferRequest samples;
  (*samples.mutable_parameters())["num_samples"].set_int64_param(17);
  ExpectError(DecodeGenerate(Generate(samples, Plain()), Plain(), kMessageLimit, kV2Fields),
              absl::StatusCode::kInvalidArgument, "parameters.num_samples: expected a number in");

  const ModelInfo classes = WithClasses();
  const absl::Status labels =
      DecodeGenerate(Generate({}, classes), classes, kMessageLimit, kV2Fields).status();
  EXPECT_TRUE(std::string(labels.message()).starts_with("class_labels: ")) << labels;

  ModelInferRequest condition;
  AddInput("conditioning", "FP32", {1, 2}, &condition);
  condition.add_raw_input_contents(Bytes({1, NAN}));
  const v1::GenerateRequest conditioned = Generate(condition, WithConditioning());
  const auto input = DecodeGenerate(conditioned, WithConditioning(), kMessageLimit, kV2Fields);
  ASSERT_TRUE(input.ok()) << input.status();
  const absl::Status finite = CheckFinite(*input);
  EXPECT_TRUE(std::string(finite.message()).starts_with("conditioning")) << finite;
}

struct Refusal {
  const char* name;
  const char* message;
  std::function<void(ModelInferRequest*)> spoil;
  bool diffusion = false;
};

class V2RefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(V2RefusalTest, SaysWhatWasExpected) {
  ModelInferRequest request = GetParam().diffusion ? ModelInferRequest() : Good();
  GetParam().spoil(&request);
  const ModelInfo info = GetParam().diffusion ? WithClasses() : Mlp();
  ExpectError(DecodeV2(&request, info).status(), absl::StatusCode::kInvalidArgument,
              GetParam().message);
}

void SetParameter(const std::string& name, const char* value, ModelInferRequest* request) {
  (*request->mutable_parameters())[name].set_string_param(value);
}

const Refusal kRefusals[] = {
    {"CotangentWithoutGradient",
     "inputs: expected names among inputs, initial_states, got \"cotangent_outputs\"",
     [](ModelInferRequest* r) {
       *r = GoodGradients();
       r->clear_outputs();
     }},
    {"CotangentOfAnotherModel",
     "inputs: expected names among inputs, initial_states, cotangent_outputs, targets, "
     "target_classes, got "
     "\"cotangent_samples\"",
     [](ModelInferRequest* r) {
       *r = GoodGradients();
       r->mutable_inputs(1)->set_name("cotangent_samples");
     }},
    {"UnknownGradient",
     "outputs[0].name: expected one of outputs, trajectory, grad_inputs, losses, got ",
     [](ModelInferRequest* r) { r->add_outputs()->set_name("grad_initial_noise"); }},
    {"WayWithoutGradient", "got \"way\"",
     [](ModelInferRequest* r) { SetParameter("way", "parallel", r); }},
    {"Way", "parameters.way: expected one of sequential, parallel, auto, got \"both\"",
     [](ModelInferRequest* r) {
       *r = GoodGradients();
       SetParameter("way", "both", r);
     }},
    {"MisspeltParameter", "parameters: expected names among solver, rtol",
     [](ModelInferRequest* r) { SetParameter("sovler", "newton", r); }},
    {"OtherTritonParameter", "got \"triton_final_response\"",
     [](ModelInferRequest* r) { SetParameter("triton_final_response", "", r); }},
    {"ParameterOfAGeneration", "got \"seed\"",
     [](ModelInferRequest* r) { (*r->mutable_parameters())["seed"].set_int64_param(1); }},
    {"TextForANumber", "parameters.rtol: expected a number, got \"small\"",
     [](ModelInferRequest* r) { SetParameter("rtol", "small", r); }},
    {"NumberForText", "parameters.solver: expected a string, got 3",
     [](ModelInferRequest* r) { (*r->mutable_parameters())["solver"].set_int64_param(3); }},
    {"UnknownEnumerator", "initial_guess: expected one of constant, coarse, calibrated, previous",
     [](ModelInferRequest* r) { SetParameter("initial_guess", "unspecified", r); }},
    {"FractionOfAnInteger", "parameters.warm_sweeps: expected an integer of 32 bits, got 0.5",
     [](ModelInferRequest* r) { (*r->mutable_parameters())["warm_sweeps"].set_double_param(.5); }},
    {"LargeInteger", "expected an integer of 32 bits, got 4294967296",
     [](ModelInferRequest* r) {
       (*r->mutable_parameters())["max_iterations"].set_int64_param(int64_t{1} << 32);
     }},
    {"LargeUnsigned", "expected an integer of 32 bits",
     [](ModelInferRequest* r) {
       (*r->mutable_parameters())["max_iterations"].set_uint64_param(~uint64_t{0});
     }},
    {"EmptyParameter", "parameters.solver: expected a string, got no value",
     [](ModelInferRequest* r) { (*r->mutable_parameters())["solver"]; }},
    {"NegativeTimeout", "parameters.timeout: expected an integer that is not negative, got -1",
     [](ModelInferRequest* r) { (*r->mutable_parameters())["timeout"].set_int64_param(-1); }},
    {"NegativeSeed", "parameters.seed: expected an integer that is not negative, got -3",
     [](ModelInferRequest* r) { (*r->mutable_parameters())["seed"].set_int64_param(-3); }, true},
    {"UnknownInput", "inputs: expected names among inputs, initial_states, got \"x\"",
     [](ModelInferRequest* r) { r->mutable_inputs(0)->set_name("x"); }},
    {"UnknownInputOfAGeneration", "inputs: expected names among class_labels",
     [](ModelInferRequest* r) {
       AddInput("inputs", "FP32", {1, 2}, r);
       r->add_raw_input_contents(Bytes({1, 2}));
     },
     true},
    {"WrongDatatype", "inputs.datatype: expected FP32, got \"FP64\"",
     [](ModelInferRequest* r) { r->mutable_inputs(0)->set_datatype("FP64"); }},
    {"SurplusRaw", "raw_input_contents: expected 1, one per input, got 2",
     [](ModelInferRequest* r) { r->add_raw_input_contents("x"); }},
    {"InputTwice", "inputs[1].name: expected every input once",
     [](ModelInferRequest* r) {
       AddInput("inputs", "FP32", {2, 2}, r);
       r->add_raw_input_contents(Bytes({1, 2, 3, 4}));
     }},
    {"RawAndTyped", "inputs[0].contents: expected none beside raw_input_contents",
     [](ModelInferRequest* r) { r->mutable_inputs(0)->mutable_contents()->add_fp32_contents(1); }},
    {"NoData", "inputs.contents: expected fp32_contents and nothing else, got none",
     [](ModelInferRequest* r) { r->clear_raw_input_contents(); }},
    {"OtherContents", "inputs.contents: expected fp32_contents and nothing else, got other",
     [](ModelInferRequest* r) {
       *r = Typed();
       r->mutable_inputs(0)->mutable_contents()->add_int_contents(1);
     }},
    {"SharedMemory", "inputs[0].parameters: expected none (no shared memory)",
     [](ModelInferRequest* r) {
       (*r->mutable_inputs(0)->mutable_parameters())["shared_memory_region"].set_string_param("a");
     }},
    {"UnknownOutput",
     "outputs[0].name: expected one of outputs, trajectory, grad_inputs, losses, got \"latents\"",
     [](ModelInferRequest* r) { r->add_outputs()->set_name("latents"); }},
    {"OutputTwice", "outputs[1].name: expected every output once",
     [](ModelInferRequest* r) {
       r->add_outputs()->set_name("outputs");
       r->add_outputs()->set_name("outputs");
     }},
    {"Classification", "outputs[0].parameters: expected none (no classification",
     [](ModelInferRequest* r) {
       auto* output = r->add_outputs();
       output->set_name("outputs");
       (*output->mutable_parameters())["classification"].set_int64_param(3);
     }},
    {"HugeBatch", "initial_noise.shape[0]: expected a number in [1, 16], got 4294967297",
     [](ModelInferRequest* r) {
       AddInput("initial_noise", "FP32", {(int64_t{1} << 32) + 1, kState}, r);
       r->add_raw_input_contents("");
     },
     true},
    {"NegativeLabel", "class_labels: expected a number in [0, 4], got -1",
     [](ModelInferRequest* r) {
       AddInput("class_labels", "INT64", {1}, r);
       r->mutable_inputs(0)->mutable_contents()->add_int64_contents(-1);
     },
     true},
    {"LargeLabel", "class_labels: expected a number in [0, 4], got 17",
     [](ModelInferRequest* r) {
       AddInput("class_labels", "INT32", {1}, r);
       r->mutable_inputs(0)->mutable_contents()->add_int_contents(17);
     },
     true},
    {"WideLabel", "class_labels: expected a number in [0, 4], got 4294967296",
     [](ModelInferRequest* r) {
       AddInput("class_labels", "INT64", {1}, r);
       r->mutable_inputs(0)->mutable_contents()->add_int64_contents(int64_t{1} << 32);
     },
     true},
    {"LabelsCut", "class_labels: expected at most 16 values of 4 bytes, got 5 bytes",
     [](ModelInferRequest* r) {
       AddInput("class_labels", "INT32", {1}, r);
       r->add_raw_input_contents("12345");
     },
     true},
    {"FewLabels", "class_labels.shape: expected [n, 1] with n = 1, got [3, 1]",
     [](ModelInferRequest* r) {
       AddInput("class_labels", "INT32", {3, 1}, r);
       r->add_raw_input_contents(std::string("\0\0\0\0", 4));
     },
     true},
    {"LabelTwice", "class_labels: expected none beside the parameter class_label",
     [](ModelInferRequest* r) {
       (*r->mutable_parameters())["class_label"].set_int64_param(1);
       AddInput("class_labels", "INT32", {1, 1}, r);
       r->add_raw_input_contents(std::string("\0\0\0\0", 4));
     },
     true},
};

INSTANTIATE_TEST_SUITE_P(Requests, V2RefusalTest, ::testing::ValuesIn(kRefusals),
                         [](const auto& refusal) { return std::string(refusal.param.name); });

}  // namespace
}  // namespace deeppcr::testing
