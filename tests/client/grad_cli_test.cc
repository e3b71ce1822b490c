// SPDX-License-Identifier: Apache-2.0
// `deeppcr grad` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "client/array.h"
#include "client/array_file.h"
#include "tests/client/run_binary.h"

namespace deeppcr {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class GradCliTest : public CliTest {
 protected:
  // Expects one sentence on standard error, exit code 1, and no request.
  void ExpectRefusal(const std::string& arguments, const std::string& sentence) {
    const Outcome outcome = RunAtServer("grad " + arguments);
    EXPECT_EQ(outcome.code, 1) << arguments;
    EXPECT_THAT(outcome.err, AllOf(StartsWith("deeppcr: "), HasSubstr(sentence))) << arguments;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.out, IsEmpty()) << arguments;
    EXPECT_THAT(service_.gradient_requests(), IsEmpty()) << arguments;
  }

  static std::string WriteRows(const std::string& name, const std::vector<int64_t>& shape) {
    int64_t size = 1;
    for (const int64_t extent : shape) size *= extent;
    const std::string path = TempPath(name);
    const Array array{shape, std::vector<float>(static_cast<size_t>(size), 0.5f)};
    EXPECT_TRUE(WriteArray(array, path, "").ok());
    return path;
  }
};

TEST_F(GradCliTest, WritesGradientsToStandardOutputByDefault) {
  const Outcome outcome =
      RunAtServer("grad fake --in - --cotangent " + WriteRows("v.json", {2}), "1,2,3\n4,5,6\n");

  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "0.5,0.5,0.5\n0.5,0.5,0.5\n");
  EXPECT_EQ(outcome.err,
            "2 samples in 1 requests on fake-device; solved by: newton 2; back sequential in "
            "250 ms, 23 dependent stages\n");
  const v1::GradientRequest request = service_.gradient_requests().back();
  EXPECT_THAT(request.cotangents().shape(), ElementsAre(2, 2));
  EXPECT_THAT(request.gradients(), IsEmpty());
}

TEST_F(GradCliTest, EveryFlagReachesTheServer) {
  const std::string out = TempPath("g.npy"), initial = TempPath("z.npy"),
                    outputs = TempPath("y.npy"), states = TempPath("t.npy"),
                    report = TempPath("r.json");
  const Outcome outcome = RunAtServer(
      "grad fake --in " + WriteRows("x.npy", {3, 3}) + " --cotangent " +
      WriteRows("v.npy", {3, 4, 2}) + " --final_cotangent " + WriteRows("h.npy", {3, 4, 3}) +
      " --way parallel --way_interval 2 --solver picard --rtol 1e-3 --out " + out +
      " --initial_out " + initial + " --outputs " + outputs + " --trajectory " + states +
      " --report " + report + " --quiet");

  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, IsEmpty());
  const v1::GradientRequest request = service_.gradient_requests().back();
  EXPECT_EQ(request.options().solver(), "picard");
  EXPECT_EQ(request.options().rtol(), 1e-3);
  EXPECT_TRUE(request.options().return_trajectory());
  EXPECT_THAT(request.final_state_cotangents().shape(), ElementsAre(3, 4, 3));
  EXPECT_EQ(request.way(), v1::BACKWARD_WAY_PARALLEL);
  EXPECT_EQ(request.shooting_interval(), 2);
  EXPECT_THAT(request.gradients(),
              ElementsAre(v1::GRADIENT_BY_INPUTS, v1::GRADIENT_BY_INITIAL_STATE));
  EXPECT_THAT(ReadArray(out, "")->shape, ElementsAre(3, 4, 3));
  EXPECT_THAT(ReadArray(initial, "")->shape, ElementsAre(3, 4, kFakeWidth));
  EXPECT_THAT(ReadArray(outputs, "")->shape, ElementsAre(3, 2));
  EXPECT_THAT(ReadArray(states, "")->shape, ElementsAre(3, kFakeLayers + 1, kFakeWidth));
  const auto json = nlohmann::json::parse(Slurp(report));
  EXPECT_EQ(json["requests"][0]["backward"]["way"], "parallel");
  EXPECT_EQ(json["requests"][0]["report"]["samples"].size(), 3u);
}

TEST_F(GradCliTest, LossesAreSummedAndReported) {
  const std::string inputs = WriteRows("x.npy", {3, 3});
  Outcome outcome = RunAtServer("grad fake --in " + inputs + " --loss mse --target " +
                                WriteRows("t.npy", {1, 2}) + " --report -");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("; sum of losses 1.5\n"));
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["losses"], nlohmann::json::parse("[0.5, 0.5, 0.5]"));
  EXPECT_THAT(service_.gradient_requests().back().targets().shape(), ElementsAre(3, 2));

  outcome = RunAtServer("grad fake --in " + inputs + " --loss cross_entropy --target_class 1,0");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(service_.gradient_requests().back().target_classes(), ElementsAre(1, 0, 1));
}

TEST_F(GradCliTest, TakesADiffusionModelBack) {
  const std::string noise = TempPath("n.npy");
  const Outcome outcome = RunAtServer(
      "grad draw --class all --seed 4 --first_sample 10 --loss mse --target " +
      WriteRows("t.npy", {kDrawPixels}) + " --initial_noise " +
      WriteRows("i.npy", {6, kDrawWidth}) + " --noise_out " + noise + " --initial_out -");

  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("10,4\n11,4\n"));
  EXPECT_THAT(ReadArray(noise, "")->shape, ElementsAre(6, kDrawSteps, kDrawWidth));
  const auto requests = service_.gradient_requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[1].generation().first_sample(), 15u);
  EXPECT_THAT(requests[1].generation().class_labels(), ElementsAre(5));
  EXPECT_THAT(requests[1].generation().initial_noise().shape(), ElementsAre(1, kDrawWidth));
}

TEST_F(GradCliTest, RefusesAProcessWhereThereIsNone) {
  const std::string rows =
      "fake --in " + WriteRows("x.npy", {2, 3}) + " --cotangent " + WriteRows("v.npy", {2, 2});
  for (const char* const flag : {" --guidance_scale 2", " --noise_clip 3", " --known 0=1"})
    ExpectRefusal(rows + flag, "guidance, noise, known elements and first steps are for diffusion");
}

TEST_F(GradCliTest, GoesAlongGivenStates) {
  const Outcome outcome = RunAtServer("grad fake --in " + WriteRows("x.npy", {2, 3}) +
                                      " --cotangent " + WriteRows("v.npy", {2, 2}) + " --states " +
                                      WriteRows("s.npy", {2, kFakeLayers + 1, kFakeWidth}));

  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("on fake-device; along given states; back sequential"));
  EXPECT_TRUE(service_.gradient_requests().back().has_trajectory());
  EXPECT_FALSE(service_.gradient_requests().back().has_options());
}

TEST_F(GradCliTest, WarnsOfFallbacksAndOverflow) {
  service_.report_fallback = true;
  service_.on_gradient = [](v1::GradientResponse* reply) {
    reply->mutable_backward()->mutable_samples(1)->set_termination("non_finite");
    return grpc::Status::OK;
  };
  const Outcome outcome = RunAtServer("grad fake --quiet --in " + WriteRows("x.npy", {2, 3}) +
                                      " --cotangent " + WriteRows("v.npy", {2, 2}));

  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err,
            "warning: 2 of 2 samples fell back to sequential (max_iterations 2)\n"
            "warning: the gradients of 1 of 2 samples overflowed\n");
}

TEST_F(GradCliTest, SaysWhatToDoWhereTheServerHasNone) {
  service_.on_gradient = [](v1::GradientResponse*) {
    return grpc::Status(grpc::StatusCode::UNIMPLEMENTED,
                        "the server was started without gradients; start it with --gradients");
  };
  const Outcome outcome = RunAtServer("grad fake --in " + WriteRows("x.npy", {2, 3}) +
                                      " --cotangent " + WriteRows("v.npy", {2, 2}));

  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err,
            "deeppcr: the server was started without gradients; start it with --gradients\n");
}

TEST_F(GradCliTest, GoesBackAlongWhatForwardOrGenerateLeftOnTheServer) {
  const std::string in = "fake --in " + WriteRows("x.npy", {7, 3});
  const std::string v = " --cotangent " + WriteRows("v.npy", {7, 2});
  const std::string kept = TempPath("kept");
  EXPECT_EQ(RunAtServer("forward " + in + " --out " + TempPath("y.npy") + " --keep " + kept).code,
            0);
  EXPECT_TRUE(service_.forward_requests().back().options().keep_trajectory());
  EXPECT_EQ(Slurp(kept), "kept-1 5\nkept-2 2\n");

  Outcome outcome =
      RunAtServer("grad " + in + v + " --kept " + kept + " --out " + TempPath("g.npy"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("7 samples in 2 requests on fake-device; along given states"));
  EXPECT_EQ(service_.gradient_requests().back().trajectory_handle(), "kept-2");

  service_.gone = {"kept-1"};
  outcome = RunAtServer("grad " + in + v + " --kept " + kept + " --out " + TempPath("g.npy"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("warning: the server keeps the states of 5 of 7 samples no "
                                     "more; they were solved again\n"));

  const std::string draw = TempPath("kept_draw");
  EXPECT_EQ(RunAtServer("generate draw --class 1 --num 2 --quiet --keep " + draw).code, 0);
  EXPECT_EQ(Slurp(draw), "kept-3 2\n");
  outcome = RunAtServer("grad draw --class 1 --num 2 --kept " + draw + " --cotangent " +
                        WriteRows("p.npy", {kDrawPixels}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(service_.gradient_requests().back().trajectory_handle(), "kept-3");
}

TEST_F(GradCliTest, WritesGradientsByParameters) {
  const std::string in = "fake --in " + WriteRows("x.npy", {7, 3});
  const std::string file = TempPath("g.safetensors");
  const Outcome outcome = RunAtServer("grad " + in + " --loss cross_entropy --target_class 1" +
                                      " --parameters " + file);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, HasSubstr("7 samples in 2 requests"));
  const std::string bytes = Slurp(file);
  EXPECT_THAT(bytes, HasSubstr("\"output.weight\":{\"dtype\":\"F32\",\"shape\":[2,3]"));
  EXPECT_THAT(service_.gradient_requests().back().gradients(), IsEmpty());
}

TEST_F(GradCliTest, ModelsSaysWhereThereAreGradients) {
  EXPECT_THAT(RunAtServer("models draw").out, Not(HasSubstr("gradients")));
  service_.describe = [](v1::GetModelResponse* model) { model->set_gradients(true); };
  EXPECT_THAT(RunAtServer("models draw").out, HasSubstr("\ngradients: deeppcr grad\n"));
}

TEST_F(GradCliTest, RefusesBeforeAnythingIsComputed) {
  const std::string in = "fake --in " + WriteRows("x.npy", {2, 3});
  const std::string v = " --cotangent " + WriteRows("v.npy", {2, 2});
  const std::string t = " --target " + WriteRows("t.npy", {2, 2});
  const std::string s = " --states " + WriteRows("s.npy", {2, kFakeLayers + 1, kFakeWidth});
  ExpectRefusal(in, "cotangent: expected --cotangent FILE, --final_cotangent FILE or --loss NAME");
  ExpectRefusal(in + v + " --loss mse" + t, "loss: expected no --cotangent");
  ExpectRefusal(in + " --loss mse", "target: expected with --loss mse, and only there");
  ExpectRefusal(in + v + t, "target: expected with --loss mse, and only there");
  ExpectRefusal(in + " --loss cross_entropy", "target_class: expected with --loss cross_entropy");
  ExpectRefusal(in + " --loss cross_entropy --target_class 2",
                "target_class: class: expected 0 to 1");
  ExpectRefusal(in + s + " --loss mse" + t, "states: expected no --loss beside it");
  ExpectRefusal(in + s + v + " --outputs y.npy", "states: expected no --outputs");
  ExpectRefusal(in + v + " --parameters g.npy", "a name that ends in .safetensors, got g.npy");
  ExpectRefusal(in + v + " --estimate_error --parameters g.safetensors",
                "parameters: expected no --estimate_error beside it");
  ExpectRefusal(in + s + v + " --kept k", "kept: expected no --states");
  ExpectRefusal(in + v + " --kept /nowhere/k", "/nowhere/k");
  ExpectRefusal(in + v + " --kept " + WriteRows("k.csv", {2, 2}),
                "line 1: expected a handle and a number of samples, got");
  ExpectRefusal(in + v + " --out g.xyz", "expected a name that ends in .npy, .csv or .json");
  ExpectRefusal(in + v + " --trajectory t.csv", "csv");
  ExpectRefusal(in + v + " --out g.npy --initial_out ./g.npy", "expected one output there");
  ExpectRefusal(in + v + " --out /nowhere/g.npy", "/nowhere/g.npy");
  ExpectRefusal(in + " --cotangent " + WriteRows("w.npy", {2, 3}),
                "expected shape [n, 2] or [n, m, 2] for this model, got [2, 3]");
  ExpectRefusal(in + " --cotangent " + WriteRows("u.npy", {3, 2}),
                "cotangent: expected 1 or 2 rows for 2 samples, got 3");
  ExpectRefusal(in + " --cotangent " + WriteRows("u.npy", {3, 1, 2}),
                "cotangents: expected a row for each of 2 samples, got shape [3, 1, 2]");
  ExpectRefusal(in + v + " --noise_out n.npy", "are for diffusion models, and this is none");
  ExpectRefusal(in + v + " --num 2", "num: expected none beside --in, whose rows are the samples");
  ExpectRefusal(in + v + " --steps 3", "are for diffusion models, and this is none");
  ExpectRefusal("draw --class 1 --in x.npy" + v, "in: a diffusion model takes no inputs");
  ExpectRefusal("draw --class 1 --out g.npy --cotangent " + WriteRows("p.npy", {kDrawPixels}),
                "out: this model takes no inputs: --initial_out has its gradients");
}

TEST_F(GradCliTest, BadValuesAreTwo) {
  for (const char* arguments : {"--loss sum", "--way both", "--way_interval -1", "--target_class x",
                                "--first_sample -1", "--num 0", "--rtol small"}) {
    const Outcome outcome = RunAtServer(std::string("grad fake ") + arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.err, HasSubstr("see deeppcr grad --help")) << arguments;
  }
}

}  // namespace
}  // namespace deeppcr
