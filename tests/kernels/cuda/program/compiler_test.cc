// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/program/compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/tuning.h"
#include "tests/testing/simt/simt_device.h"

namespace deeppcr::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Code final : public DeviceCode {
 public:
  const ProgramKernels& kernels() const override { return kernels_; }

 private:
  ProgramKernels kernels_ = {};
};

// Counts what it is asked for.
class Compiler final : public DeviceCompiler {
 public:
  std::string_view name() const override { return name_; }
  absl::StatusOr<std::string> Compile(const std::string& source,
                                      const CancelToken* token) override {
    ++compiled;
    return compile ? compile(source, token) : absl::StatusOr<std::string>("code of " + source);
  }
  absl::StatusOr<std::shared_ptr<const DeviceCode>> Load(const std::string& code) override {
    ++loaded;
    EXPECT_THAT(code, HasSubstr("code of "));
    return std::make_shared<Code>();
  }

  std::string name_ = "fake 1.0";
  std::function<absl::StatusOr<std::string>(const std::string&, const CancelToken*)> compile;
  int compiled = 0, loaded = 0;
};

class ProgramCompilerTest : public ::testing::Test {
 protected:
  ProgramCompilerTest() {
    limits_.progress = &progress_;
    limits_.code_cache_dir = folder_;
    std::filesystem::create_directory(folder_);
  }
  ~ProgramCompilerTest() override { std::filesystem::remove_all(folder_); }
  // Asks for the kernels of so many instructions.
  absl::StatusOr<std::shared_ptr<const DeviceCode>> Ask(ProgramCompiler& compiler, int count = 2) {
    std::vector<ProgramInstruction> instructions(static_cast<size_t>(count));
    for (ProgramInstruction& made : instructions)
      made = {.op = program::Op::kTanh, .kind = program::OpKind::kElementwise, .num_operands = 1};
    news_.clear();
    problems_.clear();
    return compiler.KernelsOf(instructions, {.rows = 13}, limits_);
  }
  std::string OnlyFile() const {
    std::string path;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      EXPECT_EQ(path, "");
      path = entry.path();
    }
    return path;
  }

  const std::string folder_ = ::testing::TempDir() + "compiler_test_" + std::to_string(getpid()) +
                              "_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
  Compiler fake_;
  std::unique_ptr<Device> device_ = testing::simt::NewSimtDevice({.compiler = &fake_});
  std::string news_, problems_;
  const LoadProgress progress_ = [this](LoadNews news, std::string_view text) {
    (news == LoadNews::kStep ? news_ : problems_).append(text).append("\n");
  };
  PackingLimits limits_;
};

TEST_F(ProgramCompilerTest, SaysHowLongItTookAndSharesWhatLives) {
  ProgramCompiler compiler(*device_);
  const auto first = Ask(compiler);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_NE(*first, nullptr);
  EXPECT_THAT(news_, HasSubstr("compiled the step in 0.0 s (fake 1.0)"));
  EXPECT_EQ(*Ask(compiler), *first);
  EXPECT_NE(*Ask(compiler, 3), *first);
  EXPECT_EQ(fake_.compiled, 2);
  EXPECT_EQ(fake_.loaded, 2);
}

TEST_F(ProgramCompilerTest, TakesCodeFromTheCache) {
  ASSERT_NE(*Ask(*std::make_unique<ProgramCompiler>(*device_)), nullptr);
  ProgramCompiler later(*device_);
  ASSERT_NE(*Ask(later), nullptr);
  EXPECT_EQ(fake_.compiled, 1);
  EXPECT_EQ(fake_.loaded, 2);
  EXPECT_THAT(news_, HasSubstr("from the cache"));
  // Another compiler, or another device, has code of its own.
  fake_.name_ = "fake 2.0";
  ASSERT_NE(*Ask(later), nullptr);
  EXPECT_EQ(fake_.compiled, 2);
}

TEST_F(ProgramCompilerTest, WithoutAFolderKeepsNothing) {
  limits_.code_cache_dir = "";
  ASSERT_NE(*Ask(*std::make_unique<ProgramCompiler>(*device_)), nullptr);
  ASSERT_NE(*Ask(*std::make_unique<ProgramCompiler>(*device_)), nullptr);
  EXPECT_EQ(fake_.compiled, 2);
  EXPECT_THAT(problems_, IsEmpty());
}

TEST_F(ProgramCompilerTest, CompilesAnewWhatIsDamaged) {
  ASSERT_NE(*Ask(*std::make_unique<ProgramCompiler>(*device_)), nullptr);
  const std::string path = OnlyFile();
  const auto size = std::filesystem::file_size(path);
  for (const std::function<void()>& damage : std::vector<std::function<void()>>{
           [&] { std::filesystem::resize_file(path, size - 1); },
           [&] { std::filesystem::resize_file(path, 10); },
           [&] { std::filesystem::resize_file(path, 0); },
           [&] { std::ofstream(path, std::ios::in | std::ios::out) << "0"; },
       }) {
    damage();
    const int before = fake_.compiled;
    ASSERT_NE(*Ask(*std::make_unique<ProgramCompiler>(*device_)), nullptr);
    EXPECT_EQ(fake_.compiled, before + 1);
    EXPECT_THAT(problems_, HasSubstr("damaged"));
    EXPECT_EQ(std::filesystem::file_size(path), size);
  }
}

TEST_F(ProgramCompilerTest, InterpretsWhatDoesNotCompileAndSaysWhy) {
  ProgramCompiler compiler(*device_);
  fake_.compile = [](const std::string&, const CancelToken*) {
    return absl::InternalError("no such register");
  };
  const auto none = Ask(compiler);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(*none, nullptr);
  EXPECT_THAT(problems_, HasSubstr("the step is interpreted"));
  EXPECT_THAT(problems_, HasSubstr("no such register"));
  EXPECT_EQ(OnlyFile(), "");
  // It is not tried again, and said again.
  EXPECT_EQ(*Ask(compiler), nullptr);
  EXPECT_THAT(news_, HasSubstr("no such register"));
  EXPECT_EQ(fake_.compiled, 1);
}

TEST_F(ProgramCompilerTest, CompilesNothingForARequest) {
  ProgramCompiler compiler(*device_);
  limits_.compiles = false;
  EXPECT_EQ(*Ask(compiler), nullptr);
  EXPECT_THAT(news_, HasSubstr("the step is interpreted"));
  EXPECT_THAT(problems_, IsEmpty());
  EXPECT_EQ(fake_.compiled, 0);
  limits_.compiles = true;
  const auto code = *Ask(compiler);
  ASSERT_NE(code, nullptr);
  // What is there is used, whether it lives or not.
  limits_.compiles = false;
  EXPECT_EQ(*Ask(compiler), code);
  EXPECT_NE(*Ask(*std::make_unique<ProgramCompiler>(*device_)), nullptr);
  EXPECT_EQ(fake_.compiled, 1);
}

// A file under another's name is not that program's code.
TEST_F(ProgramCompilerTest, KnowsTheFileOfAnotherProgram) {
  ASSERT_NE(*Ask(*std::make_unique<ProgramCompiler>(*device_)), nullptr);
  const std::string first = OnlyFile(), saved = first + ".saved";
  std::filesystem::rename(first, saved);
  ASSERT_NE(*Ask(*std::make_unique<ProgramCompiler>(*device_), 3), nullptr);
  std::filesystem::rename(saved, first + ".gone");
  std::string second;
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    if (entry.path().extension() == ".cubin") second = entry.path();
  std::filesystem::rename(first + ".gone", second);
  const int before = fake_.compiled;
  ASSERT_NE(*Ask(*std::make_unique<ProgramCompiler>(*device_), 3), nullptr);
  EXPECT_EQ(fake_.compiled, before + 1);
  EXPECT_THAT(problems_, HasSubstr("damaged"));
}

TEST_F(ProgramCompilerTest, StopsWithItsToken) {
  ProgramCompiler compiler(*device_);
  CancelToken token;
  limits_.token = &token;
  fake_.compile = [&](const std::string&, const CancelToken* seen) -> absl::StatusOr<std::string> {
    EXPECT_FALSE(Fired(seen));
    token.Cancel();
    EXPECT_TRUE(Fired(seen));
    return absl::CancelledError("stopped");
  };
  EXPECT_EQ(Ask(compiler).status().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(problems_, IsEmpty());
}

// A compiler that stops though nobody asked has come to the limit on its time.
TEST_F(ProgramCompilerTest, InterpretsWhatTakesTooLong) {
  ProgramCompiler compiler(*device_);
  fake_.compile = [](const std::string&, const CancelToken* seen) -> absl::StatusOr<std::string> {
    EXPECT_NE(seen->deadline(), CancelToken::Clock::time_point::max());
    return absl::CancelledError("stopped");
  };
  const auto none = Ask(compiler);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(*none, nullptr);
  EXPECT_THAT(problems_, HasSubstr("not done after"));
}

TEST_F(ProgramCompilerTest, InterpretsLongPrograms) {
  ProgramCompiler compiler(*device_);
  EXPECT_NE(*Ask(compiler, kMostCompiledElements), nullptr);
  EXPECT_EQ(*Ask(compiler, kMostCompiledElements + 1), nullptr);
  EXPECT_THAT(news_, HasSubstr("the step is interpreted"));
  EXPECT_EQ(fake_.compiled, 1);
}

TEST_F(ProgramCompilerTest, InterpretsWhereThereIsNoCompiler) {
  const std::unique_ptr<Device> device = testing::simt::NewSimtDevice({});
  ProgramCompiler compiler(*device);
  EXPECT_EQ(*Ask(compiler), nullptr);
  EXPECT_THAT(news_, HasSubstr("interpreted on this device"));
  EXPECT_THAT(problems_, IsEmpty());
}

// Weights of any size make text that compiles: no number without digits, in any locale.
TEST(SourceTest, WritesNumbersThatAreNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const ProgramInstruction made[] = {{.ulps = infinity, .epsilon = std::nanf("")},
                                     {.ulps = 10.0F, .epsilon = -infinity}};
  const std::string text = ListingOf("Listing", made);
  EXPECT_THAT(text, HasSubstr(" INFINITY, NAN,"));
  EXPECT_THAT(text, HasSubstr(" 0x1.4p+3F, -INFINITY,"));
}

}  // namespace
}  // namespace deeppcr::cuda
