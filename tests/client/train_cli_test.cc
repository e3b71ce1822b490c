// SPDX-License-Identifier: Apache-2.0
// `deeppcr train` as a user runs it: what it publishes, and what is left where it is interrupted.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
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
  // The flags of a run that publishes <folder>/models/<name>.
  std::string Flags(const std::string& name, const std::string& more = "") const {
    return "train --config " + Path("config.json") + " --inputs " + Path("x.npy") + " --targets " +
           Path("y.npy") + " --repository " + Path("models") + " --model " + name +
           " --checkpoint " + Path(name + ".safetensors") +
           " --batch_size 32 --learning_rate 1e-2 --warmup_steps 10 --gain 0.5 " + more;
  }
  std::string Weights(const std::string& name) const {
    return Slurp(Path("models/" + name + "/1/model.safetensors"));
  }

  // Runs in the background and ends it by a signal once a checkpoint is there; its wait status.
  int Interrupt(const std::string& arguments, const std::string& name, int signal) const {
    const pid_t child = ::fork();
    if (child == 0) {
      const std::string command = std::string("exec ") + DEEPPCR_BINARY + " " + arguments + " >" +
                                  Path("out") + " 2>" + Path("err");
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    for (int i = 0; i < 2000 && !fs::exists(Path(name + ".safetensors")); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ::kill(child, signal);
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
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
