// SPDX-License-Identifier: Apache-2.0
// `deeppcr train` as a user runs it: what it publishes, and what is left where it is interrupted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/npy.h"
#include "kernels/engine.h"
#include "tests/client/run_binary.h"
#include "tests/testing/training_run.h"

namespace deeppcr {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kConfig[] =
    R"({"model_type":"resnet","input_dim":3,"output_dim":2,"state_dim":8,"num_layers":64,)"
    R"("activation":"tanh","residual_scale":0.125})";

class TrainCliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    Write("config.json", kConfig);
    const training::Dataset data = testing::ProductData(300, true);
    WriteData(data, "");
    WriteData(testing::ProductData(100, true, 9), "held_");
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
  }
  void WriteData(const training::Dataset& data, const std::string& prefix) const {
    Write(prefix + "x.npy", FormatNpy(Array{{data.num_samples, 3}, data.inputs}));
    Write(prefix + "y.npy",
          FormatNpy(std::vector<int64_t>(data.labels.begin(), data.labels.end())));
  }
  // The flags of a run that publishes <folder>/models/<name>; `more` may name one of them anew.
  std::string Flags(const std::string& name, const std::string& more = "") const {
    std::string flags = "train --config " + Path("config.json") + " --inputs " + Path("x.npy") +
                        " --targets " + Path("y.npy") + " --repository " + Path("models") +
                        " --model " + name + " " + more;
    const std::pair<std::string, std::string> defaults[] = {
        {" --checkpoint ", Path(name + ".safetensors")},
        {" --batch_size ", "32"},
        {" --learning_rate ", "1e-2"},
        {" --warmup_steps ", "10"},
        {" --gain ", "0.5"}};
    for (const auto& [flag, value] : defaults)
      if (flags.find(flag) == std::string::npos) flags += flag + value;
    return flags;
  }
  std::string Weights(const std::string& name) const {
    return Slurp(Path("models/" + name + "/1/model.safetensors"));
  }

  pid_t Start(const std::string& arguments) const {
    const pid_t child = ::fork();
    if (child == 0) {
      const std::string command = std::string("exec ") + DEEPPCR_BINARY + " " + arguments + " >" +
                                  Path("out") + " 2>" + Path("err");
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    return child;
  }
  void Await(const std::string& file) const {
    for (int i = 0; i < 6000 && !fs::exists(Path(file)); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  // The wait status.
  static int End(pid_t child, int signal) {
    ::kill(child, signal);
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
  }
  // Runs in the background and ends it by a signal once a checkpoint is there; its wait status.
  int Interrupt(const std::string& arguments, const std::string& name, int signal) const {
    const pid_t child = Start(arguments);
    Await(name + ".safetensors");
    return End(child, signal);
  }

  const std::string folder_ = TempPath("train");
};

// The engine answers with what was trained, as a server would.
TEST_F(TrainCliTest, PublishesAModelThatServesAtOnce) {
  const Outcome outcome =
      RunBinary(Flags("m", "--epochs 40 --validation_inputs " + Path("held_x.npy") +
                               " --validation_targets " + Path("held_y.npy") + " --log " +
                               Path("log.jsonl") + " --curves " + Path("curves.png")));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, Path("models/m/1") + "\n");
  EXPECT_THAT(outcome.err, HasSubstr("400 steps on cpu"));
  EXPECT_FALSE(fs::exists(Path("m.safetensors")));
  EXPECT_TRUE(Slurp(Path("curves.png")).starts_with("\x89PNG"));

  // One object a step, and one an evaluation: every epoch of 10 steps.
  std::ifstream log(Path("log.jsonl"));
  int64_t steps = 0, evaluations = 0;
  double held_out = 0, bypassed = 0;
  for (std::string line; std::getline(log, line);) {
    const json object = json::parse(line);
    if (object.contains("validation_loss")) {
      EXPECT_EQ(object["step"], 10 * ++evaluations);
      held_out = object["validation_accuracy"];
      continue;
    }
    if (object.contains("bypassed_loss")) {
      bypassed = object["bypassed_accuracy"];
      continue;
    }
    EXPECT_EQ(object["step"], ++steps);
    EXPECT_EQ(object["outcome"], "updated");
    EXPECT_TRUE(object["loss"].is_number());
    EXPECT_TRUE(object["seconds"]["backward"].is_number());
  }
  EXPECT_EQ(steps, 400);
  EXPECT_EQ(evaluations, 40);
  EXPECT_GT(held_out, 0.9);
  // No linear map knows a product.
  EXPECT_GT(bypassed, 0);
  EXPECT_LT(bypassed, 0.7);
  EXPECT_THAT(outcome.err, HasSubstr("; layers bypassed: loss "));

  auto engine = Engine::Create({.backend = "cpu", .num_threads = 1}).value();
  const auto model = engine->LoadModel(Path("models/m/1"), nullptr, nullptr);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto system = (*model)->Find();
  const training::Dataset held = testing::ProductData(100, true, 9);
  std::vector<float> outputs(200);
  std::vector<SampleReport> reports(100);
  RunItem item = {.samples = {.num_samples = 100, .inputs = held.inputs},
                  .outputs = outputs,
                  .reports = reports};
  ASSERT_TRUE(system->Run(system->Resolve({}, 100).value(), {&item, 1}, nullptr).ok());
  int correct = 0;
  for (int64_t i = 0; i < 100; ++i)
    correct += (outputs[2 * i + 1] > outputs[2 * i]) == (held.labels[i] == 1) ? 1 : 0;
  EXPECT_EQ(correct, std::lround(100 * held_out));
}

TEST_F(TrainCliTest, SavesOnSigintAndGoesOnToTheSameBits) {
  ASSERT_EQ(RunBinary(Flags("whole", "--steps 3000")).code, 0);
  const int status =
      Interrupt(Flags("m", "--steps 3000 --checkpoint_every 50 --log " + Path("log")), "m", SIGINT);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_EQ(WTERMSIG(status), SIGINT);
  EXPECT_THAT(Slurp(Path("err")), HasSubstr("--resume goes on"));
  EXPECT_FALSE(fs::exists(Path("models/m")));
  const Outcome resumed =
      RunBinary(Flags("m", "--steps 3000 --checkpoint_every 50 --resume --log " + Path("log")));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_TRUE(Weights("m") == Weights("whole"));
  // Nothing was done twice.
  std::ifstream log(Path("log"));
  int64_t steps = 0;
  for (std::string line; std::getline(log, line);) EXPECT_EQ(json::parse(line)["step"], ++steps);
  EXPECT_EQ(steps, 3000);
}

// Most of the time goes into evaluations, and so the run is most likely interrupted in one.
TEST_F(TrainCliTest, MakesUpForAnEvaluationThatWasInterrupted) {
  WriteData(testing::ProductData(20000, true, 9), "held_");
  const std::string flags =
      Flags("m", "--steps 40 --evaluate_every 1 --validation_inputs " + Path("held_x.npy") +
                     " --validation_targets " + Path("held_y.npy") + " --log " + Path("log"));
  const pid_t child = Start(flags);
  Await("log");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  ASSERT_TRUE(WIFSIGNALED(End(child, SIGINT)));
  const Outcome resumed = RunBinary(flags + " --resume");
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  std::ifstream log(Path("log"));
  for (int64_t step = 1; step <= 40; ++step)
    for (const bool evaluated : {false, true}) {
      std::string line;
      ASSERT_TRUE(std::getline(log, line));
      const json object = json::parse(line);
      ASSERT_EQ(object["step"], step);
      ASSERT_EQ(object.contains("validation_loss"), evaluated);
    }
}

// A signal that the parent has blocked does not come, and another one does.
TEST_F(TrainCliTest, EndsByTheSignalThatCame) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGINT);
  ASSERT_EQ(::sigprocmask(SIG_BLOCK, &blocked, &before), 0);
  const int status = Interrupt(Flags("m", "--steps 1000000 --checkpoint_every 50"), "m", SIGTERM);
  ASSERT_EQ(::sigprocmask(SIG_SETMASK, &before, nullptr), 0);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
  EXPECT_TRUE(fs::exists(Path("m.safetensors")));
  EXPECT_FALSE(fs::exists(Path("m.safetensors.lock")));
  EXPECT_FALSE(fs::exists(Path("models")));
}

// The first process of a container, which no signal of its own ends.
TEST_F(TrainCliTest, PublishesNothingWhereItOutlivesItsSignal) {
  constexpr int kNoNamespace = 77, kOther = 78;
  const pid_t outer = ::fork();
  ASSERT_GE(outer, 0);
  if (outer == 0) {
    if (::unshare(CLONE_NEWPID) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0)
      ::_exit(kNoNamespace);
    const int status = Interrupt(Flags("m", "--steps 1000000 --checkpoint_every 50"), "m", SIGTERM);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : kOther);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(outer, &status, 0), outer);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoNamespace) GTEST_SKIP() << "no namespace of processes here";
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM) << Slurp(Path("err"));
  EXPECT_THAT(Slurp(Path("err")), HasSubstr("--resume goes on"));
  EXPECT_TRUE(fs::exists(Path("m.safetensors")));
  EXPECT_FALSE(fs::exists(Path("models")));
}

// The only step is one of many seconds, and is not waited for.
TEST_F(TrainCliTest, ObeysASignalWithinAStep) {
  std::string deep = kConfig;
  deep.replace(deep.find("64"), 2, "16384");
  Write("config.json", deep);
  WriteData(testing::ProductData(6000, true), "");
  const pid_t child = Start(
      Flags("m", "--threads 1 --steps 1 --warmup_steps 1 --batch_size 6000 --log " + Path("log")));
  Await("log");
  const int status = End(child, SIGINT);
  ASSERT_TRUE(WIFSIGNALED(status)) << status << Slurp(Path("err"));
  EXPECT_THAT(Slurp(Path("err")), HasSubstr("interrupted after step 0 of 1, saved in"));
  EXPECT_TRUE(fs::exists(Path("m.safetensors")));
  EXPECT_FALSE(fs::exists(Path("models")));
}

TEST_F(TrainCliTest, GoesOnToTheSameBitsAfterAKill) {
  ASSERT_EQ(RunBinary(Flags("whole", "--steps 3000 --threads 1")).code, 0);
  const int status = Interrupt(Flags("m", "--steps 3000 --checkpoint_every 1"), "m", SIGKILL);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  const Outcome resumed = RunBinary(Flags("m", "--steps 3000 --resume --threads 3"));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_TRUE(Weights("m") == Weights("whole"));
}

TEST_F(TrainCliTest, NeverWritesOverACheckpointOrGoesOnWithAnotherRun) {
  ASSERT_TRUE(
      WIFSIGNALED(Interrupt(Flags("m", "--steps 100000 --checkpoint_every 50"), "m", SIGINT)));
  const std::string saved = Slurp(Path("m.safetensors"));
  const auto refused = [&](const std::string& flags, const std::string& part) {
    const Outcome outcome = RunBinary(flags);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr(part));
    EXPECT_TRUE(Slurp(Path("m.safetensors")) == saved);
  };
  refused(Flags("m", "--steps 100000"), "is there already: --resume goes on");
  refused(Flags("m", "--steps 99999 --resume"), "steps: it has 100000, this run has 99999");
  refused(Flags("m", "--steps 100000 --resume --beta1 0.8"), "beta1: it has 0.9");
  Write("y.npy", FormatNpy(std::vector<int64_t>(300, 1)));
  refused(Flags("m", "--steps 100000 --resume"), "data_sha256");
  Write("m.safetensors", saved.substr(0, saved.size() / 2));
  const Outcome outcome = RunBinary(Flags("m", "--steps 100000 --resume"));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("m.safetensors: "));
}

TEST_F(TrainCliTest, GoesOnOnlyWithTheSameHeldOutSamples) {
  const std::string held =
      " --validation_inputs " + Path("held_x.npy") + " --validation_targets " + Path("held_y.npy");
  const std::string flags = "--steps 100000 --checkpoint_every 50";
  ASSERT_TRUE(WIFSIGNALED(Interrupt(Flags("m", flags + held), "m", SIGINT)));
  const auto refused = [&](const std::string& more) {
    const Outcome outcome = RunBinary(Flags("m", flags + " --resume" + more));
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("validation_sha256: it has "));
  };
  refused("");
  WriteData(testing::ProductData(100, true, 10), "held_");
  refused(held);
}

// Even before the first checkpoint is there.
TEST_F(TrainCliTest, LeavesTheCheckpointToTheRunThatHasIt) {
  const pid_t child =
      Start(Flags("m", "--steps 1000000 --checkpoint_every 1000000 --log " + Path("log")));
  Await("log");
  for (const char* more : {"--steps 10", "--steps 10 --resume", "--steps 10 --seed 2"}) {
    const Outcome other = RunBinary(Flags("m", more));
    EXPECT_EQ(other.code, 1);
    EXPECT_THAT(other.err, HasSubstr("m.safetensors is the checkpoint of a run that goes on now"));
  }
  EXPECT_FALSE(fs::exists(Path("m.safetensors")));
  ASSERT_TRUE(WIFSIGNALED(End(child, SIGKILL)));
  // What a killed run leaves is no obstacle.
  EXPECT_TRUE(fs::exists(Path("m.safetensors.lock")));
  const Outcome outcome = RunBinary(Flags("m", "--steps 10"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_FALSE(fs::exists(Path("m.safetensors.lock")));
}

TEST_F(TrainCliTest, PublishesWhereALogCannotBeWritten) {
  const Outcome outcome = RunBinary(Flags("m", "--steps 20 --log /dev/full"));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("warning: cannot write /dev/full"));
  EXPECT_EQ(outcome.out, Path("models/m/1") + "\n");
  EXPECT_FALSE(Weights("m").empty());
}

// 64 KiB, far less than the log of the steps and far more than the model.
TEST_F(TrainCliTest, PublishesWhereALogIsAtItsSizeLimit) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit = {.rlim_cur = 1 << 16, .rlim_max = 1 << 16};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(99);
    ::_exit(RunBinary(Flags("m", "--steps 400 --log " + Path("log"))).code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_EQ(fs::file_size(Path("log")), 1 << 16);
  EXPECT_FALSE(Weights("m").empty());
}

TEST_F(TrainCliTest, SavesWhereCurvesCannotBeWritten) {
  fs::create_directory(Path("curves"));
  const pid_t child = Start(Flags("m", "--steps 1000000 --checkpoint_every 1000000 --log " +
                                           Path("log") + " --curves " + Path("curves/c.png")));
  Await("log");
  fs::remove(Path("curves"));
  const int status = End(child, SIGINT);
  EXPECT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_THAT(Slurp(Path("err")), HasSubstr("curves/c.png"));
  EXPECT_THAT(Slurp(Path("err")), HasSubstr("--resume goes on"));
  EXPECT_TRUE(fs::exists(Path("m.safetensors")));
}

TEST_F(TrainCliTest, PublishesWhereNoCheckpointCanBeWritten) {
  fs::create_directory(Path("c"));
  const std::string flags = " --checkpoint_every 50 --checkpoint " + Path("c/m.safetensors");
  pid_t child = Start(Flags("m", "--steps 10000" + flags));
  Await("c/m.safetensors");
  fs::rename(Path("c"), Path("gone"));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_THAT(Slurp(Path("err")), HasSubstr("beside " + Path("c/m.safetensors")));
  EXPECT_EQ(Slurp(Path("out")), Path("models/m/1") + "\n");

  // One that is interrupted has nothing to show for it, and says so.
  fs::create_directory(Path("c"));
  child = Start(Flags("n", "--steps 1000000" + flags));
  Await("c/m.safetensors");
  fs::rename(Path("c"), Path("gone too"));
  for (int i = 0; i < 6000 && Slurp(Path("err")).empty(); ++i)  // the next one
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  status = End(child, SIGINT);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_THAT(Slurp(Path("err")), HasSubstr(", and not saved: "));
  EXPECT_FALSE(fs::exists(Path("models/n")));
}

TEST_F(TrainCliTest, SaysHowManyStepsWereSkipped) {
  Write("config.json",
        R"({"model_type":"mlp","input_dim":3,"output_dim":2,"state_dim":8,"num_layers":4,)"
        R"("activation":"relu"})");
  training::Dataset data = testing::ProductData(300, false);
  data.inputs[0] = 3e38F;
  Write("x.npy", FormatNpy(Array{{300, 3}, data.inputs}));
  Write("y.npy", FormatNpy(Array{{300, 2}, data.targets}));
  const Outcome some = RunBinary(Flags("m", "--loss mse --steps 20"));
  EXPECT_EQ(some.code, 0) << some.err;
  EXPECT_THAT(some.err, HasSubstr("; 2 of the run's 20 steps were skipped"));

  for (float& x : data.inputs) x = 3e38F;
  Write("x.npy", FormatNpy(Array{{300, 3}, data.inputs}));
  const Outcome all = RunBinary(Flags("n", "--loss mse --steps 3 --warmup_steps 0"));
  EXPECT_EQ(all.code, 1);
  EXPECT_THAT(all.err, HasSubstr("every step was skipped"));
  EXPECT_FALSE(fs::exists(Path("models/n")));
}

TEST_F(TrainCliTest, KeepsInputsToItselfWhereItIsAskedTo) {
  ASSERT_EQ(RunBinary(Flags("m", "--steps 20 --calibration 0")).code, 0);
  EXPECT_TRUE(fs::exists(Path("models/m/1/model.safetensors")));
  EXPECT_FALSE(fs::exists(Path("models/m/1/calibration.safetensors")));
}

TEST_F(TrainCliTest, RefusesDataAndFlagsNamingThem) {
  const auto refused = [&](const std::string& flags, const std::string& part) {
    const Outcome outcome = RunBinary(flags);
    EXPECT_NE(outcome.code, 0) << flags;
    EXPECT_THAT(outcome.err, HasSubstr(part)) << flags;
    EXPECT_FALSE(fs::exists(Path("models"))) << flags;
  };
  refused(Flags("m", "--data " + Path("x.npy")), "expected either --data FILE.npz or both");
  refused(Flags("m", "--loss mse"), "expected 2 values a sample (output_dim), got 1");
  refused(Flags("m", "--loss mae"), "loss: expected cross_entropy or mse");
  refused(Flags("m", "--optimizer lion"), "optimizer: expected sgd, adam or adamw");
  refused(Flags("m", "--steps 2000000"), "steps: expected 1 .. 1000000, got 2000000");
  refused(Flags("m", "--epochs 9000000000000000000"), "steps: expected 1 .. 1000000");
  refused(Flags("m", "--validation 1.5"), "validation: expected a share");
  refused(Flags("a/b"), "model: expected 1 to 128");
  refused(Flags("m", "--learning_rate 1e39"), "learning_rate: expected a finite number");
  refused(Flags("m", "--calibration -1"), "calibration: expected a number of inputs from 0");
  refused(Flags("m", "--log " + folder_ + "/./m.safetensors"),
          "expected a file of its own, got that of checkpoint");
  refused(Flags("m", "--log " + Path("m.safetensors.lock")), "got that of checkpoint (its lock)");
  refused(Flags("m", "--log " + Path("a") + " --curves " + Path("a")),
          "curves: " + Path("a") + ": expected a file of its own, got that of log");
  refused(Flags("m", "--log " + Path("x.npy")), "got that of inputs");
  Write("config.json", "{}");
  refused(Flags("m"), "config.json: ");
  Write("config.json", kConfig);
  Write("y.npy", FormatNpy(Array{{300}, std::vector<float>(300, 0.5F)}));
  refused(Flags("m"), "labels: sample 0: expected a whole number from 0, got 0.5");
  Write("y.npy", FormatNpy(std::vector<int64_t>(299, 1)));
  refused(Flags("m"), "expected labels of 300 samples");
  Write("y.npy", FormatNpy(std::vector<int64_t>(300, 2)));
  refused(Flags("m"), "labels: sample 0: expected 0 .. 1 (output_dim - 1), got 2");
  Write("y.npy", "garbage");
  refused(Flags("m"), "y.npy: npy: not a .npy file");
}

TEST_F(TrainCliTest, LearnsTargets) {
  const training::Dataset data = testing::ProductData(300, false);
  Write("y.npy", FormatNpy(Array{{300, 2}, data.targets}));
  const Outcome outcome =
      RunBinary(Flags("m", "--loss mse --epochs 200 --validation 0.1 --log " + Path("log")));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::ifstream log(Path("log"));
  double last = 1;
  for (std::string line; std::getline(log, line);) {
    const json object = json::parse(line);
    if (object.contains("validation_loss")) last = object["validation_loss"];
    EXPECT_FALSE(object.contains("accuracy"));
  }
  // The mean of all targets would be 0.7 off.
  EXPECT_LT(last, 0.25);
}

}  // namespace
}  // namespace deeppcr
