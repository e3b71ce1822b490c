// SPDX-License-Identifier: Apache-2.0
#include "kernels/backend/registry.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace deeppcr {
namespace {

using Automatic = BackendRow::Automatic;

// A variable of the environment, for as long as the object lives.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name); before != nullptr) before_ = before;
    setenv(name, value, 1);
  }
  ~Environment() {
    if (before_.has_value()) {
      setenv(name_, before_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* const name_;
  std::optional<std::string> before_;
};

std::vector<std::string> NamesOf(const SelectedBackends& selected) {
  std::vector<std::string> names;
  for (const SelectedBackend& each : selected.backends) names.emplace_back(each.backend->name());
  return names;
}

TEST(BackendRegistryTest, AutoTakesTheCpuFirstAndTheOracleForTheRest) {
  const Environment none("DEEPPCR_FORCE_BACKEND", "");
  const auto selected = SelectBackends("auto").value();
  EXPECT_EQ(NamesOf(selected), (std::vector<std::string>{"cpu", "reference"}));
  EXPECT_EQ(selected.reason, "cuda only when asked for: no GPU has passed the tests of this code");
}

// The oracle is slow: it must not become the first because the cpu backend cannot run.
TEST(BackendRegistryTest, AutoIsAnErrorWhereOnlyTheOracleIsLeft) {
  const Environment none("DEEPPCR_FORCE_BACKEND", "");
  const Environment unknown("DEEPPCR_CPU_ISA", "no such set");
  const auto selected = SelectBackends("auto");
  EXPECT_EQ(selected.status().code(), absl::StatusCode::kUnavailable) << selected.status();
}

TEST(BackendRegistryTest, ABackendThatIsNamedIsTheOnlyOne) {
  for (const char* name : {"cpu", "reference"}) {
    const auto selected = SelectBackends(name).value();
    EXPECT_EQ(NamesOf(selected), std::vector<std::string>{name});
    EXPECT_EQ(selected.reason, "asked for");
  }
}

TEST(BackendRegistryTest, TheEnvironmentTakesThePlaceOfAuto) {
  const Environment forced("DEEPPCR_FORCE_BACKEND", "reference");
  const auto automatic = SelectBackends("auto"), named = SelectBackends("cpu");
  ASSERT_TRUE(automatic.ok() && named.ok());
  EXPECT_EQ(NamesOf(*automatic), std::vector<std::string>{"reference"});
  EXPECT_EQ(NamesOf(*named), std::vector<std::string>{"cpu"});
}

TEST(BackendRegistryTest, AnUnknownNameIsAnErrorThatListsTheKnown) {
  const auto selected = SelectBackends("tpu");
  EXPECT_EQ(selected.status(),
            absl::InvalidArgumentError(
                "backend: expected auto or one of cuda, cpu, reference, got \"tpu\""));
}

// A backend that is checked at every load has one that is not to be checked against.
TEST(BackendRegistryTest, GpusAreCheckedAgainstBackendsThatAreNot) {
  for (const BackendRow& row : Backends()) EXPECT_EQ(row.self_check, row.name == "cuda");
  const auto selected = SelectBackends("cuda");
  if (!selected.ok()) GTEST_SKIP() << selected.status();
  std::vector<std::string> names;
  for (const auto& oracle : selected->backends.front().oracles) names.emplace_back(oracle->name());
  EXPECT_EQ(names, (std::vector<std::string>{"cpu", "reference"}));
}

TEST(BackendRegistryTest, EveryBackendThatAutoPassesOverSaysWhy) {
  for (const BackendRow& row : Backends())
    EXPECT_EQ(row.why_not == nullptr, row.automatic == Automatic::kYes) << row.name;
}

}  // namespace
}  // namespace deeppcr
