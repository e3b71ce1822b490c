// SPDX-License-Identifier: Apache-2.0
#include "kernels/training/checkpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "kernels/base/file.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"
#include "tests/testing/training_run.h"

namespace deeppcr::training {
namespace {

using deeppcr::testing::ExpectError;
using deeppcr::testing::NamedTensor;
using deeppcr::testing::ProductData;
using deeppcr::testing::SmallModel;
using deeppcr::testing::TemporaryDirectory;

Checkpoint Example(int64_t step = 2, size_t parameters = 3) {
  Checkpoint checkpoint;
  checkpoint.run = {{"batch_size", 64}, {"learning_rate", 0.1}, {"optimizer", "adamw"}};
  checkpoint.state = {.optimizer = {.parameters = std::vector<float>(parameters, 0.1F),
                                    .first = std::vector<float>(parameters, -1e-38F),
                                    .second = std::vector<float>(parameters, 2),
                                    .updates = step - 1},
                      .step = step,
                      .skips_in_a_row = 1,
                      .losses = std::vector<float>(step, 0.25F)};
  checkpoint.state.losses.back() = std::numeric_limits<float>::quiet_NaN();
  checkpoint.evaluations = {{1, {.loss = 0.3, .accuracy = 0.5}},
                            {2, {.loss = std::numeric_limits<double>::infinity()}}};
  return checkpoint;
}

// Without the time that a file takes to be safe on a disk.
void Write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

TEST(CheckpointTest, ComesBackAsItWas) {
  const TemporaryDirectory folder;
  const std::string path = folder.File("c.safetensors");
  const Checkpoint written = Example();
  ASSERT_TRUE(WriteCheckpoint(path, written).ok());
  const Checkpoint read = ReadCheckpoint(path).value();
  EXPECT_EQ(read.run, written.run);
  EXPECT_EQ(read.state.optimizer.parameters, written.state.optimizer.parameters);
  EXPECT_EQ(read.state.optimizer.first, written.state.optimizer.first);
  EXPECT_EQ(read.state.optimizer.second, written.state.optimizer.second);
  EXPECT_EQ(read.state.optimizer.updates, 1);
  EXPECT_EQ(read.state.step, 2);
  EXPECT_EQ(read.state.skips_in_a_row, 1);
  ASSERT_EQ(read.state.losses.size(), 2);
  EXPECT_EQ(read.state.losses[0], 0.25F);
  EXPECT_TRUE(std::isnan(read.state.losses[1]));
  ASSERT_EQ(read.evaluations.size(), 2);
  EXPECT_EQ(read.evaluations[0].step, 1);
  EXPECT_EQ(read.evaluations[0].evaluation.loss, 0.3);
  EXPECT_EQ(read.evaluations[0].evaluation.accuracy, 0.5);
  EXPECT_FALSE(std::isfinite(read.evaluations[1].evaluation.loss));
  EXPECT_FALSE(read.evaluations[1].evaluation.accuracy.has_value());
}

// Through the file, at every step of three epochs.
void ResumeEverywhere(const ModelConfig& model, const TrainerOptions& options) {
  const TemporaryDirectory folder;
  const std::string path = folder.File("c.safetensors");
  const Dataset data = ProductData(40, true);
  const auto whole = Trainer::Create(model, options, data).value();
  while (!whole->finished()) {
    ASSERT_TRUE(WriteCheckpoint(path, {.state = whole->state()}).ok());
    const auto resumed = Trainer::Create(model, options, data).value();
    ASSERT_TRUE(resumed->Restore(ReadCheckpoint(path)->state).ok());
    ASSERT_TRUE(whole->Step().ok());
    ASSERT_TRUE(resumed->Step().ok());
    EXPECT_EQ(resumed->state().optimizer.parameters, whole->state().optimizer.parameters);
    EXPECT_EQ(resumed->state().optimizer.second, whole->state().optimizer.second);
    EXPECT_EQ(resumed->state().losses, whole->state().losses);
  }
}

TEST(CheckpointTest, ResumesToTheSameBits) {
  ResumeEverywhere(SmallModel(), {.batch_size = 16, .num_steps = 9});
}

TEST(CheckpointTest, ResumesToTheSameBitsWithWarmStarts) {
  ResumeEverywhere(SmallModel("resnet", 64),
                   {.schedule = {.peak = 1e-2},
                    .batch_size = 16,
                    .num_steps = 9,
                    .warm_start_bytes = int64_t{1} << 20,
                    .system = {.way = BackwardWay::kParallel, .shooting_interval = 8}});
}

TEST(CheckpointTest, RefusesTrajectoriesThatAreNone) {
  Checkpoint checkpoint = Example();
  checkpoint.state.trajectories = {.states = {1, 2}, .kept = {1, 0}};
  EXPECT_EQ(ParseCheckpoint(FormatCheckpoint(checkpoint).value())->state.trajectories.states,
            checkpoint.state.trajectories.states);
  EXPECT_EQ(ParseCheckpoint(FormatCheckpoint(checkpoint).value())->state.trajectories.kept,
            checkpoint.state.trajectories.kept);
  checkpoint.state.trajectories.states[1] = NAN;
  ExpectError(ParseCheckpoint(FormatCheckpoint(checkpoint).value()),
              absl::StatusCode::kInvalidArgument,
              "tensor \"trajectories\": expected finite values");
  checkpoint.state.trajectories = {.states = {1, 2}, .kept = {1, 2}};
  ExpectError(ParseCheckpoint(FormatCheckpoint(checkpoint).value()),
              absl::StatusCode::kInvalidArgument, "tensor \"kept\": expected 0 or 1");
}

// A child writes checkpoints one after another, says when each is done, and is killed somewhere.
TEST(CheckpointTest, AKilledWriterLeavesTheLastOrTheOneBefore) {
  const TemporaryDirectory folder;
  const std::string path = folder.File("c.safetensors");
  constexpr int kAttempts = 40;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int64_t step = 2;; ++step) {
        if (!WriteCheckpoint(path, Example(step, 100'000)).ok()) ::_exit(1);
        if (::write(pipe_ends[1], &step, sizeof(step)) != sizeof(step)) ::_exit(1);
      }
    }
    ::close(pipe_ends[1]);
    // The time that one takes, of which each attempt waits for another part.
    int64_t done = 0, last = 0;
    ASSERT_EQ(::read(pipe_ends[0], &done, sizeof(done)), ssize_t{sizeof(done)});
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(::read(pipe_ends[0], &done, sizeof(done)), ssize_t{sizeof(done)});
    const auto duration = std::chrono::steady_clock::now() - begin;
    std::this_thread::sleep_for(duration * attempt / kAttempts);
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    while (::read(pipe_ends[0], &last, sizeof(last)) == sizeof(last)) done = last;
    ::close(pipe_ends[0]);
    const absl::StatusOr<Checkpoint> read = ReadCheckpoint(path);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->state.optimizer.parameters.size(), 100'000);
    EXPECT_EQ(std::ssize(read->state.losses), read->state.step);
    EXPECT_GE(read->state.step, done);
    EXPECT_LE(read->state.step, done + 1);
  }
}

// The kernel kills a child at a byte of its file, so that each of them is killed while it writes.
TEST(CheckpointTest, AWriterKilledWithinAFileLeavesTheOneBefore) {
  const TemporaryDirectory folder;
  const std::string path = folder.File("c.safetensors");
  ASSERT_TRUE(WriteCheckpoint(path, Example(2)).ok());
  const Checkpoint larger = Example(3, 100'000);
  const rlim_t size = FormatCheckpoint(larger)->size();
  int64_t files = 1;
  for (const rlim_t limit : {rlim_t{0}, rlim_t{1}, size / 3, size - 1}) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const rlimit no_core{.rlim_cur = 0, .rlim_max = 0};
      const rlimit largest{.rlim_cur = limit, .rlim_max = limit};
      if (::setrlimit(RLIMIT_CORE, &no_core) != 0) ::_exit(1);
      if (::setrlimit(RLIMIT_FSIZE, &largest) != 0) ::_exit(1);
      ::_exit(WriteCheckpoint(path, larger).ok() ? 2 : 3);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "ended with " << WEXITSTATUS(status);
    EXPECT_EQ(WTERMSIG(status), SIGXFSZ);
    const absl::StatusOr<Checkpoint> read = ReadCheckpoint(path);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->state.step, 2);
    // What the killed one had written lies beside it.
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), ++files);
  }
  ASSERT_TRUE(WriteCheckpoint(path, larger).ok());
  EXPECT_EQ(ReadCheckpoint(path)->state.step, 3);
}

TEST(CheckpointTest, RefusesEveryFileThatIsCutShort) {
  const TemporaryDirectory folder;
  const std::string path = folder.File("c.safetensors"), cut = folder.File("cut.safetensors");
  ASSERT_TRUE(WriteCheckpoint(path, Example()).ok());
  const std::string bytes = ReadFile(path, 1 << 20).value();
  for (size_t size = 0; size < bytes.size(); ++size) {
    Write(cut, bytes.substr(0, size));
    ExpectError(ReadCheckpoint(cut), absl::StatusCode::kInvalidArgument, cut);
  }
}

TEST(CheckpointTest, RefusesEveryChangedByte) {
  const TemporaryDirectory folder;
  const std::string path = folder.File("c.safetensors"), changed = folder.File("d.safetensors");
  ASSERT_TRUE(WriteCheckpoint(path, Example()).ok());
  const std::string bytes = ReadFile(path, 1 << 20).value();
  int by_checksum = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int flip : {0x01, 0x20, 0x80}) {
      std::string other = bytes;
      other[at] = static_cast<char>(other[at] ^ flip);
      Write(changed, other);
      const absl::StatusOr<Checkpoint> read = ReadCheckpoint(changed);
      ASSERT_FALSE(read.ok()) << at << " by " << flip;
      by_checksum += absl::StrContains(read.status().message(), "the file is damaged") ? 1 : 0;
    }
  }
  // The numbers of the vectors, three of each but of the losses, which are two.
  EXPECT_GE(by_checksum, 3 * 4 * 6);
}

TEST(CheckpointTest, RefusesOtherFilesNamingWhatIsWrong) {
  const TemporaryDirectory folder;
  const std::string path = folder.File("c.safetensors");
  ExpectError(ReadCheckpoint(path), absl::StatusCode::kNotFound, path);
  ASSERT_TRUE(testing::WriteSafetensors(path, {NamedTensor{"layers.weight", {1}, {0}}}).ok());
  ExpectError(ReadCheckpoint(path), absl::StatusCode::kInvalidArgument,
              "tensor \"state\" is missing");
  ASSERT_TRUE(testing::WriteSafetensors(path, {NamedTensor{"state", {1}, {0}}}).ok());
  ExpectError(ReadCheckpoint(path), absl::StatusCode::kInvalidArgument,
              "tensor \"state\": expected a vector of U8, got F32 of shape [1]");
  Checkpoint negative = Example();
  negative.state.optimizer.second[1] = -1;
  ASSERT_TRUE(WriteCheckpoint(path, negative).ok());
  ExpectError(ReadCheckpoint(path), absl::StatusCode::kInvalidArgument, "tensor \"second\"");
  Checkpoint infinite = Example();
  infinite.state.optimizer.parameters[1] = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(WriteCheckpoint(path, infinite).ok());
  ExpectError(ReadCheckpoint(path), absl::StatusCode::kInvalidArgument,
              "tensor \"parameters\": expected finite values");
}

TEST(CheckpointTest, RefusesAStateOfOtherMembers) {
  const TemporaryDirectory folder;
  const std::string path = folder.File("c.safetensors");
  const auto refused = [&](const std::string& text, const std::string& part) {
    const std::string header = R"({"state":{"dtype":"U8","shape":[)" + std::to_string(text.size()) +
                               R"(],"data_offsets":[0,)" + std::to_string(text.size()) + "]}}";
    ASSERT_TRUE(WriteFileAtomically(path, testing::SafetensorsBytes(header, text)).ok());
    ExpectError(ReadCheckpoint(path), absl::StatusCode::kInvalidArgument, part);
  };
  const std::string begin = R"({"format":"deeppcr checkpoint 1","run":{},"step":1,)";
  refused("{", "");
  refused("[]", "object");
  refused(R"({"format":"deeppcr checkpoint 2"})",
          "state: format: expected \"deeppcr checkpoint 1\"");
  refused(R"({"format":"deeppcr checkpoint 1","run":[]})", "state: run: expected an object");
  refused(R"({"format":"deeppcr checkpoint 1","run":{"a":[]}})", "expected a scalar");
  refused(R"({"format":"deeppcr checkpoint 1","run":{},"step":-1})", "state: step");
  refused(begin + R"("updates":1e9})", "state: updates");
  refused(begin + R"("updates":0,"skips_in_a_row":0,"evaluations":[[1,2]]})", "evaluations");
  refused(begin + R"("updates":0,"skips_in_a_row":0,"evaluations":[[9,2,null]]})", "evaluations");
  refused(begin + R"("updates":0,"skips_in_a_row":0,"evaluations":[]})",
          "tensor \"losses\" is missing");
  refused(begin + R"("more":0})", "more");
}

TEST(CheckpointTest, TellsRunsApartByTheFirstDifferentKey) {
  const nlohmann::json run = Example().run;
  EXPECT_TRUE(CheckSameRun(run, run).ok());
  nlohmann::json other = run;
  other["batch_size"] = 32;
  ExpectError(CheckSameRun(run, other), absl::StatusCode::kFailedPrecondition,
              "batch_size: it has 64, this run has 32");
  other = run;
  other.erase("optimizer");
  ExpectError(CheckSameRun(other, run), absl::StatusCode::kFailedPrecondition,
              "optimizer: it has none");
  ExpectError(CheckSameRun(run, other), absl::StatusCode::kFailedPrecondition, "more options");
}

}  // namespace
}  // namespace deeppcr::training
