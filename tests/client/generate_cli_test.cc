// SPDX-License-Identifier: Apache-2.0
// `deeppcr generate` as a user runs it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
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

class GenerateCliTest : public CliTest {
 protected:
  // Expects one sentence on standard error, exit code 1, and no request.
  void ExpectRefusal(const std::string& arguments, const std::string& sentence) {
    const size_t before = service_.generate_requests().size();
    const Outcome outcome = RunAtServer("generate " + arguments);
    EXPECT_EQ(outcome.code, 1) << arguments;
    EXPECT_THAT(outcome.err, AllOf(StartsWith("deeppcr: "), HasSubstr(sentence))) << arguments;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.out, IsEmpty()) << arguments;
    EXPECT_EQ(service_.generate_requests().size(), before) << arguments;
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

// A terminal that a program can write to.
class Terminal {
 public:
  Terminal() : master_(posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_GE(master_, 0);
    EXPECT_EQ(grantpt(master_), 0);
    EXPECT_EQ(unlockpt(master_), 0);
    name_ = ptsname(master_);
    slave_ = ::open(name_.c_str(), O_RDWR | O_NOCTTY);
    EXPECT_GE(slave_, 0);
    EXPECT_EQ(fcntl(master_, F_SETFL, O_NONBLOCK), 0);
  }
  ~Terminal() {
    ::close(slave_);
    ::close(master_);
  }
  const std::string& name() const { return name_; }
  std::string Read() const {
    std::string text;
    char block[4096];
    ssize_t got = 0;
    while ((got = ::read(master_, block, sizeof(block))) > 0) {
      text.append(block, static_cast<size_t>(got));
    }
    return text;
  }

 private:
  int master_;
  int slave_ = -1;
  std::string name_;
};

TEST_F(GenerateCliTest, WritesSamplesLatentsLabelsPictureAndFigures) {
  const std::string out = TempPath("samples.npy");
  const std::string latents = TempPath("latents.json");
  const std::string labels = TempPath("labels.csv");
  const std::string states = TempPath("states.npy");
  const std::string png = TempPath("grid.png");
  const std::string json = TempPath("figures.json");

  const Outcome outcome =
      RunAtServer("generate draw --num 7 --seed 3 --first_sample 2 --steps 2 --class 4,8 --out " +
                  out + " --latents_out " + latents + " --labels_out " + labels + " --trajectory " +
                  states + " --png " + png + " --scale 2 --json " + json);

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, IsEmpty());
  EXPECT_THAT(ReadArray(out, "")->shape, ElementsAre(7, kDrawPixels));
  EXPECT_EQ(ReadArray(latents, "")->values[2], 3);  // the second sample is number 3
  EXPECT_EQ(Slurp(labels), "4\n8\n4\n8\n4\n8\n4\n");
  EXPECT_THAT(ReadArray(states, "")->shape, ElementsAre(7, 3, kDrawWidth));
  EXPECT_THAT(Slurp(png), StartsWith("\x89PNG\r\n"));
  const auto figures = nlohmann::json::parse(Slurp(json));
  EXPECT_EQ(figures["num_inference_steps"], 2);
  EXPECT_EQ(figures["class_labels"][1], 8);
  EXPECT_EQ(figures["solvers"][0]["samples"], 7);
  ASSERT_EQ(figures["requests"].size(), 2u);
  EXPECT_EQ(figures["requests"][1]["samples"].size(), 2u);
  EXPECT_EQ(service_.streams(), 0);
}

TEST_F(GenerateCliTest, TableOfWhatAnswered) {
  const Outcome outcome = RunAtServer("generate draw --num 6 --class 1");

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, IsEmpty());
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("newton        6           4     5                23  4             "
                              "99         2.0e-05  all        none                  250 ms\n"),
                    HasSubstr("6 samples in 2 requests on fake-device, plan plan-of-4")));
}

TEST_F(GenerateCliTest, DefaultsToOneSample) {
  ASSERT_EQ(RunAtServer("generate --model draw --class 1").code, 0);

  const v1::GenerationInput input = service_.generate_requests().back().input();
  EXPECT_EQ(input.num_samples(), 1);
  EXPECT_EQ(input.seed(), 1u);
  EXPECT_EQ(input.first_sample(), 0u);
  EXPECT_EQ(input.num_inference_steps(), kDrawSteps);
}

TEST_F(GenerateCliTest, SendsTheSolverFlags) {
  const Outcome outcome = RunAtServer(
      "generate draw --class all --num 3 --solver newton --rtol 1e-5 --shooting_interval 2 "
      "--initial_guess coarse --jacobian-refresh while_contracting --on_no_convergence return");

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const v1::GenerateRequest request = service_.generate_requests().back();
  EXPECT_THAT(request.input().class_labels(), ElementsAre(0, 1, 2));
  EXPECT_EQ(request.options().solver(), "newton");
  EXPECT_EQ(request.options().rtol(), 1e-5);
  EXPECT_EQ(request.options().shooting_interval(), 2);
  EXPECT_EQ(request.options().initial_guess(), v1::INITIAL_GUESS_COARSE);
  EXPECT_EQ(request.options().jacobian_refresh(), v1::JACOBIAN_REFRESH_WHILE_CONTRACTING);
  EXPECT_EQ(request.options().on_no_convergence(), v1::ON_NO_CONVERGENCE_RETURN);
}

TEST_F(GenerateCliTest, TwoRunsMakeTheSamplesOfOne) {
  const auto samples = [&](const std::string& flags) {
    const Outcome outcome = RunAtServer("generate draw --class 3,1 --out - --quiet " + flags);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };

  EXPECT_EQ(samples("--num 9"), samples("--num 4") + samples("--num 5 --first_sample 4"));
  EXPECT_EQ(samples("--num 9"), samples("--num 9 --batch_size 2"));
}

TEST_F(GenerateCliTest, NoiseFromFilesDecidesHowManySamples) {
  const std::string initial = WriteRows("initial.npy", {3, kDrawWidth});
  const std::string step = WriteRows("step.npy", {3, kDrawSteps, kDrawWidth});

  const Outcome outcome =
      RunAtServer("generate draw --class 1 --initial_noise " + initial + " --step_noise " + step);

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const v1::GenerationInput input = service_.generate_requests().back().input();
  EXPECT_EQ(input.num_samples(), 3);
  EXPECT_THAT(input.initial_noise().shape(), ElementsAre(3, kDrawWidth));
  EXPECT_THAT(input.step_noise().shape(), ElementsAre(3, kDrawSteps, kDrawWidth));
}

TEST_F(GenerateCliTest, OneConditioningVectorServesEverySample) {
  service_.describe = [](v1::GetModelResponse* model) {
    model->set_num_classes(0);
    model->set_input_dim(3);
  };
  const std::string one = WriteRows("one.npy", {3});

  const Outcome outcome = RunAtServer("generate draw --num 4 --conditioning " + one);

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(service_.generate_requests().back().input().conditioning().shape(),
              ElementsAre(4, 3));
  const std::string two = WriteRows("two.npy", {2, 3});
  EXPECT_EQ(RunAtServer("generate draw --conditioning " + two).code, 0);
  ExpectRefusal("draw --num 4 --conditioning " + two,
                "conditioning: expected 1 or 4 rows for 4 samples, got 2");
  ExpectRefusal("draw --num 4", "give them with --conditioning FILE");
  ExpectRefusal("draw --class 1 --conditioning " + one, "this model has no classes");
}

TEST_F(GenerateCliTest, PreviousStatesAreAGuess) {
  const std::string states = TempPath("previous.npy");
  ASSERT_EQ(RunAtServer("generate draw --num 2 --class 1 --trajectory " + states).code, 0);

  ASSERT_EQ(RunAtServer("generate draw --class 1 --previous " + states).code, 0);

  const v1::GenerateRequest request = service_.generate_requests().back();
  EXPECT_EQ(request.options().initial_guess(), v1::INITIAL_GUESS_PREVIOUS);
  EXPECT_THAT(request.initial_states().shape(), ElementsAre(2, kDrawSteps + 1, kDrawWidth));
}

TEST_F(GenerateCliTest, FallbacksAreNamedWithTheirReasonsEvenWhenQuiet) {
  service_.fallbacks = {{0, "slow"}, {4, "max_iterations"}, {6, "slow"}};
  for (const char* flags : {"", " --quiet"}) {
    const Outcome outcome =
        RunAtServer(std::string("generate draw --num 8 --class 1 --solver newton") + flags);

    ASSERT_EQ(outcome.code, 0);
    EXPECT_EQ(outcome.err,
              "warning: 3 of 8 samples fell back to sequential (max_iterations 1, slow 2)\n");
    EXPECT_EQ(outcome.out.empty(), *flags != '\0');
  }
}

TEST_F(GenerateCliTest, TheTableGivesWayOnStandardOutput) {
  const Outcome outcome = RunAtServer("generate draw --num 2 --class 1 --json -");

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["num_samples"], 2);
  EXPECT_THAT(outcome.err, HasSubstr("2 samples in 1 requests"));
}

TEST_F(GenerateCliTest, PointsAreDrawnWhereSamplesAreNoImages) {
  service_.describe = [](v1::GetModelResponse* model) {
    model->clear_image_shape();
    model->set_output_dim(2);
  };
  service_.on_generate = [](auto*, const v1::GenerateRequest&, v1::GenerateResponse* reply) {
    reply->mutable_report()->add_samples();
    RowsToTensor({{1, 2}, {1, 2}}, 0, 1, reply->mutable_samples());
    return grpc::Status::OK;
  };
  const std::string png = TempPath("points.png");

  const Outcome outcome = RunAtServer("generate draw --class 1 --png " + png);

  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(Slurp(png), StartsWith("\x89PNG\r\n"));
}

TEST_F(GenerateCliTest, RefusesWhatCouldNotBeWritten) {
  const std::string states = TempPath("states.csv");
  ExpectRefusal("draw --class 1 --trajectory " + states, "csv holds rows of numbers");
  const std::string out = TempPath("twice.npy");
  const std::filesystem::path path(out);
  const std::string same = path.parent_path().string() + "/./" + path.filename().string();
  ExpectRefusal("draw --class 1 --out " + out + " --latents_out " + same,
                "expected one output there, got two");
  ExpectRefusal("draw --class 1 --num 100001 --json " + TempPath("many.json"),
                "json: expected at most 100000 samples with it, got 100001");
}

TEST_F(GenerateCliTest, RefusesAnotherGuessBesidePreviousStates) {
  const std::string states = WriteRows("guess.npy", {2, kDrawSteps + 1, kDrawWidth});
  ExpectRefusal("draw --class 1 --initial_guess coarse --previous " + states,
                "initial_guess: expected previous, or nothing");
}

TEST_F(GenerateCliTest, RefusesWhatTheModelDoesNotHave) {
  ExpectRefusal("fake", "model: 'fake' is no diffusion model and draws no samples");
  ExpectRefusal("other", "model: 'other' is unknown");
  ExpectRefusal("draw", "choose from 0 to 9 with --class 0");
  ExpectRefusal("draw --class 10", "class: expected 0 to 9 for this model, got 10");
  ExpectRefusal("draw --class 1 --steps 3", "loaded for (4, 2), got 3");
  ExpectRefusal("draw --class 1 --batch_size 9", "batch_size: expected 0 to 5");
  ExpectRefusal("draw --class 1 --num 2 --first_sample 18446744073709551615", "first_sample");
  service_.describe = [](v1::GetModelResponse* model) {
    model->set_num_classes(0);
    model->clear_image_shape();
  };
  ExpectRefusal("draw --class all", "class: this model has no classes");
  ExpectRefusal("draw --png " + TempPath("x.png"), "png: this model's samples are no images");
}

TEST_F(GenerateCliTest, RefusesFilesOfOtherShapes) {
  const std::string wrong = WriteRows("wrong.npy", {2, 7});
  const std::string tail = wrong + ": expected shape [n, ";

  ExpectRefusal("draw --class 1 --initial_noise " + wrong, tail + "2] with n at least 1");
  ExpectRefusal("draw --class 1 --step_noise " + wrong, tail + "4, 2] with n at least 1");
  ExpectRefusal("draw --class 1 --previous " + wrong, tail + "5, 2] with n at least 1");
  ExpectRefusal("draw --class 1 --conditioning " + wrong, "is not conditioned on vectors");
  ExpectRefusal("draw --class 1 --num 3 --initial_noise " + WriteRows("two.npy", {2, 2}),
                "initial_noise: expected shape [3, 2], got [2, 2]");
  ExpectRefusal("draw --class 1 --initial_noise /no/such.npy", "cannot open /no/such.npy");
}

TEST_F(GenerateCliTest, RefusesOutputsBeforeTheWork) {
  ExpectRefusal("draw --class 1 --png /no/such/grid.png", "cannot write /no/such/grid.png");
  ExpectRefusal("draw --class 1 --png /tmp", "cannot write /tmp: Is a directory");
  ExpectRefusal("draw --class 1 --out /no/such/samples.npy", "cannot write /no/such/samples.npy");
  ExpectRefusal("draw --class 1 --out samples.dat", "expected a name that ends in .npy");
  ExpectRefusal("draw --class 1 --out - --json -", "-: expected one output there, got two");
  ExpectRefusal("draw --labels_out " + TempPath("labels.npy"), "labels_out: expected --class");
  EXPECT_EQ(service_.calls(), 0);
  ExpectRefusal("draw --class 1 --num 10000000 --png " + TempPath("x.png"),
                "more than the 67108864 allowed");
  EXPECT_FALSE(std::filesystem::exists(TempPath("x.png")));
}

TEST(GenerateCliUsageTest, BadValuesAreTwo) {
  for (const char* arguments :
       {"", "m --num 0", "m --num 10000001", "m --num -3", "m --num many", "m --seed -1",
        "m --seed 99999999999999999999", "m --seed 010", "m --first_sample -1", "m --steps 0",
        "m --class x", "m --class 1,,2", "m --class -1", "m --scale 0", "m --scale 65",
        "m --format xml", "m --rtol small", "m --batch_size -1", "m surplus"}) {
    const Outcome outcome = RunBinary(std::string("generate ") + arguments);

    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.err, HasSubstr("see deeppcr generate --help")) << arguments;
    EXPECT_THAT(outcome.out, IsEmpty()) << arguments;
  }
  EXPECT_THAT(RunBinary("generate m --class x").err,
              HasSubstr("--class: expected numbers of at least 0 such as 3 or 0,3,7, or all"));
}

TEST_F(GenerateCliTest, ATerminalSeesProgressWhichIsGoneInTheEnd) {
  const Terminal terminal;

  const int code = RunShell("generate draw --num 7 --class 1 --server " + service_.address(),
                            "/dev/null", TempPath("stdout"), terminal.name());

  const std::string text = terminal.Read();
  ASSERT_EQ(code, 0) << text;
  EXPECT_THAT(text, StartsWith("\r[........................] 0 of 7 samples"));
  EXPECT_THAT(text, ::testing::EndsWith("          \r"));
  EXPECT_EQ(service_.streams(), 2);
}

TEST_F(GenerateCliTest, QuietMeansNoProgressOnATerminalEither) {
  const Terminal terminal;

  const int code =
      RunShell("generate draw --num 7 --class 1 --quiet --server " + service_.address(),
               "/dev/null", TempPath("stdout"), terminal.name());

  EXPECT_EQ(code, 0);
  EXPECT_THAT(terminal.Read(), IsEmpty());
  EXPECT_EQ(service_.streams(), 0);
}

TEST_F(GenerateCliTest, NoTextOfAServerReachesTheTerminalRaw) {
  service_.suffix = "\x1b]0;evil\x07";
  service_.fallbacks = {{0, "slow\x1b"}};

  const Outcome outcome = RunAtServer("generate draw --num 2 --class 1");

  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("\\x1b]0;evil\\x07"), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("slow\\x1b"), Not(HasSubstr("\x1b"))));
}

}  // namespace
}  // namespace deeppcr
