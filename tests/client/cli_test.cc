// SPDX-License-Identifier: Apache-2.0
// The `deeppcr` binary as a user runs it: exit codes, standard output and standard error.
#include "client/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "client/array_file.h"
#include "tests/client/run_binary.h"

namespace deeppcr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(CliUsageTest, HelpIsZeroEverywhereWithExamples) {
  for (const char* command : {"", "forward", "generate", "compare", "grad", "models", "plan",
                              "load", "unload", "health", "bench"}) {
    const Outcome outcome = RunBinary(std::string(command) + " --help");

    EXPECT_EQ(outcome.code, 0) << command;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("Example"), HasSubstr("deeppcr "))) << command;
    EXPECT_THAT(outcome.err, IsEmpty()) << command;
  }
}

TEST(CliUsageTest, Version) {
  const Outcome outcome = RunBinary("--version");

  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("deeppcr 0."));
}

// --version is not --model_version: a command with the wrong flag must not end as a success that
// did nothing.
TEST(CliUsageTest, VersionOfAModelIsNotOurs) {
  for (const char* arguments :
       {"health --version 3", "--version 3 unload m", "health --version", "load m --version x"}) {
    const Outcome outcome = RunBinary(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.out, IsEmpty()) << arguments;
    EXPECT_THAT(outcome.err, HasSubstr("--model_version")) << arguments;
  }
  EXPECT_EQ(RunBinary("unload m --version 3 --server 127.0.0.1:1").code, 1);  // fails at the server
}

TEST(CliUsageTest, UnknownThingsAreTwoWithAHint) {
  EXPECT_THAT(RunBinary("forwrd").err,
              HasSubstr("unknown subcommand 'forwrd'; did you mean forward?"));
  EXPECT_THAT(
      RunBinary("health --sever x").err,
      HasSubstr("unknown flag '--sever'; did you mean --server? see deeppcr health --help"));
  EXPECT_EQ(RunBinary("forwrd").code, 2);
  EXPECT_EQ(RunBinary("health --sever x").code, 2);
  EXPECT_EQ(RunBinary("models --zzzzzz").code, 2);
  EXPECT_EQ(RunBinary("health surplus").code, 2);
  EXPECT_EQ(RunBinary("").code, 2);
}

TEST(CliUsageTest, BadValuesAreTwo) {
  for (const char* arguments :
       {"forward --model m", "forward --in x.npy", "forward --model m --in x.npy --rtol small",
        "forward --model m --in x.npy --initial_guess zero",
        "forward --model m --in x --format xml", "compare --model m --row newton,speed=9",
        "compare --model m --repetitions 0", "bench --model m --clients 0",
        "bench --model m --seconds 1 --requests 5", "bench --model m --rate -5",
        "health --deadline -1", "load --model m --model_version -1"}) {
    const Outcome outcome = RunBinary(arguments);

    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.err, HasSubstr("see deeppcr")) << arguments;
    EXPECT_THAT(outcome.out, IsEmpty()) << arguments;
  }
}

TEST(CliUsageTest, UnreachableServerIsOneWithWhatToDo) {
  // Port 1 is reserved and closed on any test machine.
  const Outcome outcome = RunBinary("health --server 127.0.0.1:1");

  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err,
            "deeppcr: no server can be reached at 127.0.0.1:1: start one with deeppcr-server "
            "--model_repository DIR, or name another with --server or DEEPPCR_SERVER\n");
}

TEST(CliUsageTest, BadServerAddressIsOne) {
  const Outcome outcome = RunBinary("health --server nowhere");

  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("server: expected host:port"));
}

TEST_F(CliTest, ServerComesFromTheEnvironmentToo) {
  ASSERT_EQ(setenv("DEEPPCR_SERVER", service_.address().c_str(), 1), 0);
  const Outcome outcome = RunBinary("health");
  ASSERT_EQ(unsetenv("DEEPPCR_SERVER"), 0);

  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(CliTest, HealthTellsServingFromNot) {
  EXPECT_EQ(RunAtServer("health").code, 0);
  EXPECT_EQ(RunAtServer("health --model fake").out, "model fake: serving\n");
  EXPECT_EQ(RunAtServer("health --model broken").code, 1);
  EXPECT_EQ(RunAtServer("health --model broken").err, "deeppcr: model broken: not serving\n");
  EXPECT_EQ(RunAtServer("health --model other").code, 1);
  EXPECT_EQ(RunAtServer("health --model other").err,
            "deeppcr: model: the server has no 'other' (deeppcr models lists what there is)\n");
}

TEST_F(CliTest, ForwardFromStdinToStdout) {
  const Outcome outcome = RunAtServer("forward --model fake --in - --out -", "1,2,4\n5,6,8\n");

  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "3,4\n11,8\n");
  EXPECT_EQ(outcome.err,
            "2 samples in 1 requests on fake-device; solved by: newton 2; at most 4 iterations\n");
}

TEST_F(CliTest, ForwardBetweenFilesWithLabelsReportAndTrajectory) {
  const std::string in = TempPath("in.npy");
  ASSERT_TRUE(WriteArray({{7, 3}, std::vector<float>(21, 1)}, in, "").ok());
  const std::string out = TempPath("out.json");
  const std::string report = TempPath("report.json");
  const std::string states = TempPath("states.npy");

  const Outcome outcome =
      RunAtServer("forward --model fake --quiet --labels --in " + in + " --out " + out +
                  " --report " + report + " --trajectory " + states);

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, IsEmpty());
  EXPECT_EQ(outcome.out, "low\nlow\nlow\nlow\nlow\nlow\nlow\n");
  EXPECT_EQ(ReadArray(out, "")->shape, (std::vector<int64_t>{7, 2}));
  EXPECT_EQ(ReadArray(states, "")->shape, (std::vector<int64_t>{7, kFakeLayers + 1, kFakeWidth}));
  const auto json = nlohmann::json::parse(Slurp(report));
  ASSERT_EQ(json["requests"].size(), 2u);
  EXPECT_EQ(json["requests"][1]["samples"].size(), 2u);
  EXPECT_EQ(json["requests"][0]["samples"][0]["dependent_stages"], 23);

  const Outcome again = RunAtServer("forward --model fake --in " + in + " --previous " + states);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(service_.forward_requests().back().options().initial_guess(),
            v1::INITIAL_GUESS_PREVIOUS);
}

TEST_F(CliTest, ForwardSendsTheSolverFlags) {
  const Outcome outcome = RunAtServer(
      "forward --model fake --in - --solver newton --rtol 1e-5 --atol 0 --max_iterations 9 "
      "--shooting_interval 2 --warm_sweeps 0 --initial_guess constant --jacobian_refresh "
      "while_contracting --on_no_convergence error",
      "1,2,3\n");

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const v1::SolverOptions options = service_.forward_requests().back().options();
  EXPECT_EQ(options.solver(), "newton");
  EXPECT_EQ(options.rtol(), 1e-5);
  EXPECT_TRUE(options.has_atol());
  EXPECT_EQ(options.max_iterations(), 9);
  EXPECT_EQ(options.shooting_interval(), 2);
  EXPECT_TRUE(options.has_warm_sweeps());
  EXPECT_EQ(options.initial_guess(), v1::INITIAL_GUESS_CONSTANT);
  EXPECT_EQ(options.jacobian_refresh(), v1::JACOBIAN_REFRESH_WHILE_CONTRACTING);
  EXPECT_EQ(options.on_no_convergence(), v1::ON_NO_CONVERGENCE_ERROR);
}

TEST_F(CliTest, ForwardWarnsOfFallbacks) {
  service_.report_fallback = true;

  const Outcome outcome = RunAtServer("forward --model fake --in -", "1,2,3\n");

  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err,
              HasSubstr("warning: 1 of 1 samples fell back to sequential (max_iterations 1)"));
}

TEST_F(CliTest, ForwardSaysWhySamplesDidNotConverge) {
  service_.on_forward = [](auto*, const v1::ForwardRequest&, v1::ForwardResponse* reply) {
    reply->mutable_outputs()->add_shape(2);
    reply->mutable_outputs()->add_shape(kFakeOutputs);
    reply->mutable_outputs()->set_data(std::string(2 * kFakeOutputs * sizeof(float), '\0'));
    for (const char* reason : {"precision_limited", "max_iterations"})
      reply->mutable_report()->add_samples()->set_termination(reason);
    return grpc::Status::OK;
  };

  const Outcome outcome = RunAtServer(
      "forward --model fake --in - --out /dev/null --format csv --report -", "1,2,3\n4,5,6\n");

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("warning: 2 of 2 samples did not converge (max_iterations 1, "
                                     "precision_limited 1)\n"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("estimate")));
}

TEST_F(CliTest, ForwardFailuresAreOneSentence) {
  EXPECT_EQ(RunAtServer("forward --model other --in -", "1,2,3\n").err,
            "deeppcr: model: 'other' is unknown (deeppcr models lists what there is)\n");
  EXPECT_EQ(RunAtServer("forward --model fake --in -", "1,2\n").err,
            "deeppcr: -: expected shape [n, 3] with n at least 1 for this model, got [1, 2]\n");
  EXPECT_EQ(RunAtServer("forward --model fake --in -", "1,2\n").code, 1);
  EXPECT_EQ(RunAtServer("forward --model fake --in /no/such.npy").code, 1);
  EXPECT_EQ(RunAtServer("forward --model fake --in - --out y.dat", "1,2,3\n").code, 1);
}

TEST_F(CliTest, CompareTable) {
  const Outcome outcome = RunAtServer(
      "compare --model fake --samples 2 --repetitions 3 --rtol 1e-3 --row sequential "
      "--row newton,shooting_interval=1 --row auto --row quasi_newton --row picard");

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(HasSubstr("sequential            -           0              1024  40.0 us"),
            HasSubstr("newton                -   3 +2 warm                69  20.0 us"),
            HasSubstr("auto -> sequential"), HasSubstr("2.0e-05  yes\n"), HasSubstr("  -  yes\n"),
            HasSubstr("  -  no: non_finite 1  2 fell back (max_iterations 1, slow 1)\n"),
            HasSubstr("cannot run: needs shooting_interval 1"), Not(HasSubstr("\x1b"))));
  const v1::CompareRequest request = service_.last_compare();
  EXPECT_EQ(request.repetitions(), 3);
  EXPECT_EQ(request.inputs().shape(0), 2);
  ASSERT_EQ(request.options_size(), 5);
  EXPECT_EQ(request.options(1).shooting_interval(), 1);
  EXPECT_EQ(request.options(2).rtol(), 1e-3);
}

TEST_F(CliTest, CompareAsksADiffusionModelForSamples) {
  const Outcome outcome =
      RunAtServer("compare --model draw --num 3 --seed 9 --steps 2 --class 4,7 --row newton");

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("newton"));
  const v1::CompareRequest request = service_.last_compare();
  EXPECT_FALSE(request.has_inputs());
  EXPECT_EQ(request.generation().num_samples(), 3);
  EXPECT_EQ(request.generation().seed(), 9u);
  EXPECT_EQ(request.generation().num_inference_steps(), 2);
  EXPECT_THAT(request.generation().class_labels(), ::testing::ElementsAre(4, 7, 4));
}

TEST_F(CliTest, CompareLimitsSamplesOfADiffusionModel) {
  const Outcome outcome = RunAtServer("compare --model draw --num 8 --class all");

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "comparing the first 5 of 8 samples, which one request takes\n");
  EXPECT_EQ(service_.last_compare().generation().class_labels_size(), 5);
}

TEST_F(CliTest, CompareRefusesWhatTheModelDoesNotTake) {
  EXPECT_EQ(RunAtServer("compare --model draw --in - --class 1", "1,2\n").err,
            "deeppcr: in: a diffusion model takes no inputs: give --num, --seed, --steps and "
            "--class instead\n");
  EXPECT_EQ(RunAtServer("compare --model fake --class 1").err,
            "deeppcr: model: --steps, --class and --conditioning are for diffusion models, and "
            "this is none\n");
  for (const char* const flag : {"--guidance_scale 2", "--temperature 0.5", "--known 0=1",
                                 "--first_step 1", "--initial_noise_clip 3"})
    EXPECT_EQ(RunAtServer(std::string("compare --model fake ") + flag).err,
              "deeppcr: model: guidance, noise, known elements and first steps are for diffusion "
              "models only\n")
        << flag;
  EXPECT_THAT(RunAtServer("compare --model draw --steps 3 --class 1").err,
              HasSubstr("steps: expected a number that the model was loaded for (4, 2), got 3"));
}

TEST_F(CliTest, ForwardAndBenchSayWhatADiffusionModelIsFor) {
  for (const char* arguments : {"forward --model draw --in -", "bench draw --seconds 1"}) {
    const Outcome outcome = RunAtServer(arguments, "1,2\n");

    EXPECT_EQ(outcome.code, 1);
    EXPECT_EQ(outcome.err,
              "deeppcr: model: 'draw' is a diffusion model: it takes no inputs; deeppcr generate "
              "draws samples\n");
  }
}

TEST_F(CliTest, CompareTakesWhatOneRequestHoldsAndSaysSo) {
  std::string rows;
  for (int i = 0; i < 8; ++i) rows += "1,2,3\n";

  const Outcome outcome = RunAtServer("compare --model fake --in - --json -", rows);

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "comparing the first 5 of 8 samples, which one request takes\n");
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["rows"][1]["dependent_stages"], 69);
  EXPECT_EQ(service_.last_compare().inputs().shape(0), 5);

  EXPECT_EQ(RunAtServer("compare --model fake --in - --samples 2", rows).err, "");
  EXPECT_EQ(RunAtServer("compare --model fake --in - --samples 9", rows).code, 1);
}

TEST_F(CliTest, ModelsTableAndPlan) {
  const Outcome list = RunAtServer("models");
  const Outcome plan = RunAtServer("models --model fake --plan");

  ASSERT_EQ(list.code, 0) << list.err;
  EXPECT_EQ(
      list.out,
      "model   version  state   type       layers  width\n"
      "------  -------  ------  ---------  ------  -----\n"
      "broken        7  failed  resnet          4      3  config.json: activation is missing\n"
      "draw          7  ready   diffusion       4      2\n"
      "fake          7  ready   resnet          4      3\n");
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(
      plan.out,
      AllOf(HasSubstr("plan 0123456789abcdef on fake-device l1d=1K for rtol 0.0001"),
            HasSubstr("    2-5  sequential  40.0 us     40.0 us        80.0 us"),
            HasSubstr("auto is sequential below rtol 2e-05\n"), HasSubstr("labels: low, high"),
            HasSubstr("picard  8  constant            0  every_iteration         "
                      "     32  by default\n"),
            HasSubstr("  newton C=16 calibrated: 80 us\n")));
  EXPECT_EQ(RunAtServer("models --model other").code, 1);
}

TEST_F(CliTest, ModelsShowsWhatADiffusionModelMayBeAskedForAndEveryPlan) {
  const Outcome outcome = RunAtServer("models draw --plan");

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("inference steps: 4 (default), 2; classes: 10; images: 2 x 3\n"),
                    HasSubstr("plan plan-of-4 on fake-device l1d=1K for 4 steps, rtol 0"),
                    HasSubstr("plan plan-of-2 on fake-device l1d=1K for 2 steps, rtol 0")));
}

// A server's text must not move the operator's cursor or retitle the window.
TEST_F(CliTest, NoTextOfAServerReachesTheTerminalRaw) {
  service_.suffix = "\x1b]0;evil\x07";
  service_.report_fallback = true;
  for (const char* arguments :
       {"models --model fake --plan", "forward --model fake --in - --labels",
        "bench --model fake --requests 3 --warmup 0"}) {
    const Outcome outcome = RunAtServer(arguments, "1,2,4\n");

    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("\\x1b]0;evil\\x07"), Not(HasSubstr("\x1b"))));
    EXPECT_THAT(outcome.err, Not(HasSubstr("\x1b"))) << arguments;
  }
}

TEST_F(CliTest, NoMessageOfAServerReachesTheTerminalRaw) {
  std::atomic<int> count{0};
  service_.on_forward = [&](auto*, const auto&, auto*) {
    return ++count % 2 == 0 ? grpc::Status(grpc::StatusCode::INTERNAL, "bad\x1b[2J")
                            : grpc::Status::OK;
  };

  const Outcome outcome = RunAtServer("bench --model fake --requests 4 --warmup 0");

  EXPECT_THAT(outcome.out, HasSubstr("INTERNAL: bad\\x1b[2J\n"));
}

TEST_F(CliTest, ModelsAsJson) {
  const Outcome outcome = RunAtServer("models --json -");

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["models"][0]["state"], "MODEL_STATE_FAILED");
  EXPECT_EQ(json["models"][1]["plans"].size(), 2u);
  EXPECT_EQ(json["models"][2]["plan"]["entries"][1]["max_samples"], 5);
}

TEST_F(CliTest, PlanMergesIntoAFile) {
  const std::string path = TempPath("plan.json");
  std::filesystem::remove(path);
  const auto devices_in_file = [&] { return nlohmann::json::parse(Slurp(path))["devices"]; };

  const Outcome first = RunAtServer("plan fake --export " + path);
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.out, "wrote the plans for dev l1d=1K to " + path + "\n");
  EXPECT_EQ(devices_in_file()["dev l1d=1K"][0]["plan"], 1);

  // The next plans are for another device class, named by its bits; then come new ones for the
  // first class.
  service_.plan_file =
      R"({"format":"f","devices":{"other l1d=2K":[{"key":{"device":"other"},"plan":2}],
                                   "other":[{"key":{"device":"other"},"plan":4}]}})";
  EXPECT_EQ(RunAtServer("plan fake --any_caches --export " + path).code, 0);
  service_.plan_file =
      R"({"format":"f","devices":{"dev l1d=1K":[{"key":{"device":"dev"},"plan":3}]}})";
  EXPECT_EQ(RunAtServer("plan fake --export " + path).code, 0);
  EXPECT_EQ(devices_in_file().size(), 2u);
  // These two plans, for two numbers of steps, came under two names.
  EXPECT_EQ(devices_in_file()["other"][0]["plan"], 4);
  EXPECT_EQ(devices_in_file()["other"][1]["plan"], 2);
  EXPECT_EQ(devices_in_file()["dev l1d=1K"][0]["plan"], 3);

  EXPECT_EQ(nlohmann::json::parse(RunAtServer("plan fake").out)["devices"].size(), 1u);
  EXPECT_EQ(RunAtServer("plan other").code, 1);
}

TEST_F(CliTest, PlanLeavesAFileThatIsNoneAlone) {
  const std::string path = TempPath("none.json");
  std::string many;
  for (int i = 0; i < 64; ++i)
    many += (i > 0 ? ",\"" : "\"") + std::to_string(i) + R"(":[{"key":{"device":"d"},"plan":1}])";
  const std::pair<std::string, std::string> cases[] = {
      {R"({"format":"f","devices":3})", "devices: expected an object"},
      {R"({"devices":{}})", "format: missing"},
      {R"({"format":"g","devices":{}})", "format: expected \"f\""},
      {R"({"format":"f","devices":{},"x":1})", "\"x\": unknown field"},
      {R"({"format":"f","devices":{"a":5}})", "devices: expected arrays of plans"},
      {R"({"format":"f","devices":{"a":[]}})", "devices: expected arrays of plans"},
      {R"({"format":"f","devices":{"a":[1]}})", "expected an object"},
      {R"({"format":"f","devices":{"a":[{"plan":1}]}})", "key: missing"},
      {R"({"format":"f","devices":{"a":[{"key":{"device":1},"plan":1}]}})", "device: expected"},
      {R"({"format":"f","devices":{)" + many + "}}", "at most 64 device classes"}};
  for (const auto& [text, why] : cases) {
    ASSERT_TRUE(WriteFile(path, text).ok());
    const Outcome outcome = RunAtServer("plan fake --export " + path);
    EXPECT_EQ(outcome.code, 1) << text;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(path + ": "), HasSubstr(why)));
    EXPECT_EQ(Slurp(path), text);
  }
}

TEST_F(CliTest, AModelThatIsNotReadyIsNamedWithTheReason) {
  for (const char* command :
       {"forward broken --in -", "compare broken", "bench broken", "generate broken"}) {
    const Outcome outcome = RunAtServer(command, "1,2\n");
    EXPECT_EQ(outcome.code, 1) << command;
    EXPECT_THAT(outcome.err, HasSubstr("model 'broken' version 7 is failed: config.json: "
                                       "activation is missing"));
  }
}

// The first output's label would be wrong, but a comparison with NaN would leave it in front.
TEST_F(CliTest, OutputsThatAreNoNumbersHaveNoLabelAndAreWarnedOf) {
  service_.on_forward = [&](auto*, const v1::ForwardRequest& request, v1::ForwardResponse* reply) {
    const float outputs[] = {NAN, 1, 1, 2};
    reply->mutable_outputs()->add_shape(2);
    reply->mutable_outputs()->add_shape(2);
    reply->mutable_outputs()->set_data(outputs, sizeof(outputs));
    for (const bool converged : {false, true}) {
      v1::SampleReport* sample = reply->mutable_report()->add_samples();
      sample->set_converged(converged);
      sample->set_termination(converged ? "converged" : "non_finite");
    }
    EXPECT_EQ(request.inputs().shape(0), 2);
    return grpc::Status::OK;
  };
  for (const char* quiet : {"", " --quiet"}) {
    const Outcome outcome =
        RunAtServer(std::string("forward fake --labels --in -") + quiet, "1,2,3\n1,2,3\n");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "nan\nhigh\n");
    EXPECT_THAT(outcome.err, HasSubstr("non_finite"));
  }
}

TEST_F(CliTest, LoadAndUnload) {
  EXPECT_EQ(RunAtServer("load --model fake").out,
            "loaded fake version 7 (resnet, 4 layers, width 3) in 250 ms\n");
  EXPECT_EQ(RunAtServer("unload --model fake").out, "unloaded fake, every version\n");
  EXPECT_EQ(RunAtServer("load --model other").code, 1);
  EXPECT_EQ(RunAtServer("unload --model other").code, 1);
}

TEST_F(CliTest, BenchClosedLoop) {
  const Outcome outcome = RunAtServer(
      "bench --model fake --clients 8 --requests 100 --warmup 0 --samples 2 --solver newton --json "
      "-");

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["mode"], "closed_loop");
  EXPECT_EQ(json["requests"], 100);
  EXPECT_EQ(json["ok"], 100);
  EXPECT_EQ(json["solvers"]["newton"], 100);
  EXPECT_GT(json["latency_seconds"]["p99_9"], 0.0);
  EXPECT_NEAR(json["samples_per_second"].get<double>(),
              2 * json["requests_per_second"].get<double>(), 1e-6);
  EXPECT_EQ(service_.forward_requests().front().inputs().shape(0), 2);
}

TEST_F(CliTest, BenchFixedRateAndErrors) {
  std::atomic<int> count{0};
  service_.on_forward = [&](auto*, const auto&, auto*) {
    return ++count % 2 == 0 ? grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue full")
                            : grpc::Status::OK;
  };

  const Outcome outcome = RunAtServer(
      "bench --model fake --rate 200 --seconds 0.2 --warmup 0 --json " + TempPath("bench.json"));

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("40 requests in"), HasSubstr("64 clients at 200 requests/s"),
                    HasSubstr("RESOURCE_EXHAUSTED 20\n"),
                    HasSubstr("RESOURCE_EXHAUSTED: queue full"), HasSubstr("sent late")));
  const auto json = nlohmann::json::parse(Slurp(TempPath("bench.json")));
  EXPECT_EQ(json["mode"], "fixed_rate");
  EXPECT_EQ(json["errors"]["RESOURCE_EXHAUSTED"], 20);
}

TEST_F(CliTest, BenchWhereNothingSucceedsIsOne) {
  service_.on_forward = [](auto*, const auto&, auto*) {
    return grpc::Status(grpc::StatusCode::INTERNAL, "broken");
  };

  const Outcome outcome = RunAtServer("bench --model fake --requests 3 --warmup 0");

  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("no request succeeded: broken"));
}

TEST_F(CliTest, ProgressAppearsAfterTwoSeconds) {
  service_.on_forward = [](auto*, const auto&, auto*) { return grpc::Status::OK; };

  const Outcome outcome = RunAtServer("bench --model fake --rate 20 --seconds 2.5 --warmup 0");

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("requests answered ("));
}

TEST(ExplainFailureTest, SaysWhatToDoWhereItIsKnown) {
  EXPECT_THAT(ExplainFailure(absl::DeadlineExceededError("late"), "h:1"), HasSubstr("--deadline"));
  EXPECT_THAT(ExplainFailure(absl::ResourceExhaustedError("full"), "h:1"), HasSubstr("try later"));
  EXPECT_THAT(ExplainFailure(absl::UnimplementedError(""), "h:1"), HasSubstr("is it a DeepPCR"));
  EXPECT_EQ(ExplainFailure(absl::UnavailableError("model m is loading"), "h:1"),
            "model m is loading");
  EXPECT_EQ(ExplainFailure(absl::InternalError(""), "h:1"), "INTERNAL");
}

}  // namespace
}  // namespace deeppcr
