// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/plan_cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "kernels/base/file.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr {
namespace {

using absl::StatusCode;
using nlohmann::json;
using testing::ExpectError;
using testing::TemporaryDirectory;

PlanKey MakeKey() {
  return {.device = "cpu-test",
          .build = "abc",
          .weights_sha256 = "0123",
          .config_json = "{\"a\": 1}",
          .num_threads = 3,
          .rtol = 1e-3};
}

Plan MakePlan() {
  Plan plan;
  plan.device = "cpu-test";
  plan.rtol = 1e-3;
  plan.measured_seconds = 1.25;
  plan.choices = {{.solver = "newton",
                   .shooting_interval = 32,
                   .initial_guess = InitialGuess::kCalibrated,
                   .warm_sweeps = 6,
                   .jacobian_refresh = JacobianRefresh::kWhileContracting},
                  {.solver = "quasi_newton"}};
  plan.candidates = {"newton C=32: 1 ms", "with \"quotes\" and \xC3\xA9"};
  plan.entries = {{.max_samples = 1,
                   .solver = "newton",
                   .parallel = plan.choices[0],
                   .sequential_seconds = 0.1,
                   .parallel_seconds = 1.0 / 3,
                   .parallel_iterations = 2.5,
                   .parallel_error = 1e-5,
                   .parallel_stages = 77},
                  {.max_samples = 16, .parallel = plan.choices[1], .sequential_seconds = 4e-5}};
  plan.id = PlanId(MakeKey(), plan).value_or("");
  return plan;
}

void ExpectEqual(const Plan& a, const Plan& b) {
  EXPECT_EQ(a.id, b.id);
  EXPECT_EQ(a.device, b.device);
  EXPECT_EQ(a.rtol, b.rtol);
  EXPECT_EQ(a.measured_seconds, b.measured_seconds);
  EXPECT_EQ(a.choices, b.choices);
  EXPECT_EQ(a.candidates, b.candidates);
  EXPECT_TRUE(a.entries == b.entries);
}

TEST(PlanTest, LookupTakesTheFirstEntryThatIsLargeEnough) {
  const Plan plan = MakePlan();
  EXPECT_EQ(plan.Lookup(1).max_samples, 1);
  EXPECT_EQ(plan.Lookup(2).max_samples, 16);
  EXPECT_EQ(plan.Lookup(16).max_samples, 16);
  EXPECT_EQ(plan.Lookup(17).max_samples, 16);
}

TEST(PlanTest, ChoiceOfFindsASolverOrNothing) {
  const Plan plan = MakePlan();
  ASSERT_NE(plan.ChoiceOf("newton"), nullptr);
  EXPECT_EQ(plan.ChoiceOf("newton")->shooting_interval, 32);
  EXPECT_EQ(plan.ChoiceOf("picard"), nullptr);
}

TEST(PlanTest, TimeOfAnEntryIsThatOfItsSolver) {
  EXPECT_EQ(MakePlan().entries[0].seconds(), 1.0 / 3);
  EXPECT_EQ(MakePlan().entries[1].seconds(), 4e-5);
}

TEST(PlanIdTest, IsSixteenHexDigits) {
  const std::string id = MakePlan().id;
  EXPECT_EQ(id.size(), 16U);
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos);
}

TEST(PlanIdTest, NamesWhatBitsDependOnAndNotTheMeasuredTimes) {
  const Plan plan = MakePlan();
  Plan timed = plan;
  timed.measured_seconds = 9;
  timed.candidates.clear();
  timed.entries[0].parallel_seconds = 9;
  timed.entries[0].sequential_seconds = 9;
  timed.entries[0].parallel_error = 9;
  EXPECT_EQ(*PlanId(MakeKey(), timed), plan.id);

  const std::vector<std::function<void(Plan&)>> changes = {
      [](Plan& p) { p.choices[0].shooting_interval = 16; },
      [](Plan& p) { p.choices[0].warm_sweeps = 5; },
      [](Plan& p) { p.choices[0].initial_guess = InitialGuess::kConstant; },
      [](Plan& p) { p.choices[0].jacobian_refresh = JacobianRefresh::kEveryIteration; },
      [](Plan& p) { p.choices.pop_back(); },
      [](Plan& p) { p.entries[0].max_samples = 2; },
      [](Plan& p) { p.entries[0].solver = "sequential"; },
      [](Plan& p) { p.entries[1].parallel.solver = "picard"; },
      [](Plan& p) { p.entries.pop_back(); }};
  for (size_t i = 0; i < changes.size(); ++i) {
    Plan changed = plan;
    changes[i](changed);
    EXPECT_NE(*PlanId(MakeKey(), changed), plan.id) << "change " << i;
  }
}

TEST(ReadPlanTest, GivesBackWhatWasWritten) {
  const absl::StatusOr<Plan> plan = ReadPlan(WritePlan(MakePlan()));
  ASSERT_TRUE(plan.ok()) << plan.status();
  ExpectEqual(*plan, MakePlan());
}

// Every field, removed and with a value of each other type.
TEST(ReadPlanTest, RefusesMissingFieldsAndWrongTypesByName) {
  const json plan = json::parse(WritePlan(MakePlan()));
  for (const std::string path : {"", "/choices/0", "/entries/0", "/entries/0/parallel"}) {
    const json object = plan.at(json::json_pointer(path));
    for (const auto& [key, value] : object.items()) {
      json damaged = plan;
      damaged.at(json::json_pointer(path)).erase(key);
      ExpectError(ReadPlan(damaged.dump()), StatusCode::kInvalidArgument, key);
      for (const json& wrong : {json(nullptr), json(true), json("text"), json(-1.5), json::object(),
                                json::array({1})}) {
        if (wrong.type() == value.type() && !value.is_string() && !value.is_array() &&
            !value.is_object())
          continue;  // a number for a number
        if (key == "id" || key == "device") {
          if (wrong.is_string()) continue;  // any text; the cache checks the id
        }
        damaged = plan;
        damaged.at(json::json_pointer(path))[key] = wrong;
        const absl::StatusOr<Plan> read = ReadPlan(damaged.dump());
        EXPECT_FALSE(read.ok()) << path << "/" << key << " = " << wrong;
        EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument);
      }
    }
  }
}

struct Damage {
  const char* path;
  json value;
  const char* message_part;
};

TEST(ReadPlanTest, RefusesValuesOutOfRange) {
  const Damage damages[] = {
      {"/choices/0/solver", "gauss", "solver: unknown value \"gauss\""},
      {"/choices/0/solver", "sequential", "solver: expected an iterative one, got \"sequential\""},
      {"/entries/0/parallel/solver", "sequential", "solver: expected an iterative one"},
      {"/rtol", -1e-3, "rtol: expected no negative number, got -0.001"},
      {"/measured_seconds", -1.0, "measured_seconds: expected no negative number"},
      {"/entries/0/sequential_seconds", -1e-9, "sequential_seconds: expected no negative number"},
      {"/entries/0/parallel_seconds", -1.0, "parallel_seconds: expected no negative number"},
      {"/entries/0/parallel_iterations", -1.0, "parallel_iterations: expected no negative number"},
      {"/entries/0/parallel_error", -1.0, "parallel_error: expected no negative number"},
      {"/choices/0/shooting_interval", 0, "shooting_interval"},
      {"/choices/0/shooting_interval", (1 << 20) + 1, "shooting_interval"},
      {"/choices/0/shooting_interval", 1.5, "shooting_interval"},
      {"/choices/0/initial_guess", "previous", "initial_guess: unknown value"},
      {"/choices/0/initial_guess", "plan", "initial_guess: unknown value"},
      {"/choices/0/warm_sweeps", -1, "warm_sweeps"},
      {"/choices/0/warm_sweeps", 65, "warm_sweeps"},
      {"/choices/0/jacobian_refresh", "plan", "jacobian_refresh: unknown value"},
      {"/entries/0/max_samples", 0, "max_samples"},
      {"/entries/0/max_samples", 4097, "max_samples"},
      {"/entries/0/solver", "", "solver: unknown value"},
      {"/entries/0/solver", "picard", "solver: expected sequential or the parallel choice"},
      {"/entries/0/parallel_stages", -1, "parallel_stages"},
      {"/entries/0/parallel_stages", int64_t{1} << 41, "parallel_stages"},
      {"/entries/0/max_samples", 16, "entries: expected ascending max_samples"},
      {"/entries/0/max_samples", 17, "entries: expected ascending max_samples"},
      {"/entries", json::array(), "entries: expected at least one"},
      {"/entries/0", 1, "expected"},
      {"/choices/0", json::array(), "expected"},
      {"/candidates/0", 1, "candidates: expected a string"},
  };
  for (const Damage& damage : damages) {
    json plan = json::parse(WritePlan(MakePlan()));
    plan.at(json::json_pointer(damage.path)) = damage.value;
    SCOPED_TRACE(damage.path);
    ExpectError(ReadPlan(plan.dump()), StatusCode::kInvalidArgument, damage.message_part);
  }
}

TEST(ReadPlanTest, RefusesEveryTruncation) {
  const std::string text = WritePlan(MakePlan());
  for (size_t length = 0; length + 2 < text.size(); length += 7)
    EXPECT_EQ(ReadPlan(text.substr(0, length)).status().code(), StatusCode::kInvalidArgument)
        << length;
  EXPECT_FALSE(ReadPlan("[]").ok());
  EXPECT_FALSE(ReadPlan(text + "x").ok());
}

class PlanCacheTest : public ::testing::Test {
 protected:
  int64_t NumFiles() const {
    const auto begin = std::filesystem::directory_iterator(directory_.path());
    return std::distance(begin, std::filesystem::directory_iterator());
  }
  std::string OnlyFile() const {
    return std::filesystem::directory_iterator(directory_.path())->path().string();
  }

  TemporaryDirectory directory_;
  const PlanCache cache_{directory_.path()};
};

TEST_F(PlanCacheTest, LoadsWhatWasSaved) {
  ExpectError(cache_.Load(MakeKey()), StatusCode::kNotFound, "");
  ASSERT_TRUE(cache_.Save(MakeKey(), MakePlan()).ok());
  const absl::StatusOr<Plan> plan = cache_.Load(MakeKey());
  ASSERT_TRUE(plan.ok()) << plan.status();
  ExpectEqual(*plan, MakePlan());
  EXPECT_TRUE(plan->from_cache);
}

TEST_F(PlanCacheTest, ReplacesAnOlderPlan) {
  ASSERT_TRUE(cache_.Save(MakeKey(), MakePlan()).ok());
  Plan newer = MakePlan();
  newer.choices[0].shooting_interval = 8;
  newer.id = *PlanId(MakeKey(), newer);
  ASSERT_TRUE(cache_.Save(MakeKey(), newer).ok());
  EXPECT_EQ(NumFiles(), 1);
  const absl::StatusOr<Plan> plan = cache_.Load(MakeKey());
  ASSERT_TRUE(plan.ok()) << plan.status();
  ExpectEqual(*plan, newer);
}

TEST_F(PlanCacheTest, EveryDifferenceOfTheKeyIsAnotherFile) {
  ASSERT_TRUE(cache_.Save(MakeKey(), MakePlan()).ok());
  const std::vector<std::function<void(PlanKey&)>> changes = {
      [](PlanKey& k) { k.device = "cpu-other"; }, [](PlanKey& k) { k.build = "abd"; },
      [](PlanKey& k) { k.weights_sha256 = "0124"; },
      [](PlanKey& k) { k.config_json = "{\"a\": 2}"; }, [](PlanKey& k) { k.num_threads = 4; },
      [](PlanKey& k) { k.rtol = 2e-3; },
      // The same characters, cut elsewhere.
      [](PlanKey& k) {
        k.device = "cpu-tes";
        k.build = "tabc";
      },
      [](PlanKey& k) { k.rtol = 1.0000001e-3; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    PlanKey key = MakeKey();
    changes[i](key);
    EXPECT_EQ(cache_.Load(key).status().code(), StatusCode::kNotFound) << "change " << i;
    Plan plan = MakePlan();
    plan.id = *PlanId(key, plan);
    EXPECT_NE(plan.id, MakePlan().id) << "change " << i;
    ASSERT_TRUE(cache_.Save(key, plan).ok());
    EXPECT_EQ(NumFiles(), static_cast<int64_t>(i) + 2);
    EXPECT_TRUE(cache_.Load(key).ok());
  }
}

TEST_F(PlanCacheTest, ADamagedFileIsNamed) {
  ASSERT_TRUE(cache_.Save(MakeKey(), MakePlan()).ok());
  const std::string path = OnlyFile(), text = *ReadFile(path, 1 << 20);
  ASSERT_TRUE(WriteFileAtomically(path, text.substr(0, text.size() / 2)).ok());
  ExpectError(cache_.Load(MakeKey()), StatusCode::kInvalidArgument, path);
  json edited = json::parse(text);
  edited["entries"][0].erase("max_samples");
  ASSERT_TRUE(WriteFileAtomically(path, edited.dump()).ok());
  ExpectError(cache_.Load(MakeKey()), StatusCode::kInvalidArgument, path);
  ExpectError(cache_.Load(MakeKey()), StatusCode::kInvalidArgument, "max_samples");
}

TEST_F(PlanCacheTest, AnEditedChoiceOrAForeignFileHasTheWrongId) {
  ASSERT_TRUE(cache_.Save(MakeKey(), MakePlan()).ok());
  const std::string path = OnlyFile(), text = *ReadFile(path, 1 << 20);
  json edited = json::parse(text);
  edited["choices"][0]["warm_sweeps"] = 7;
  ASSERT_TRUE(WriteFileAtomically(path, edited.dump()).ok());
  ExpectError(cache_.Load(MakeKey()), StatusCode::kInvalidArgument, "id: expected ");
  edited = json::parse(text);
  edited["id"] = "0123456789abcdef";
  ASSERT_TRUE(WriteFileAtomically(path, edited.dump()).ok());
  ExpectError(cache_.Load(MakeKey()), StatusCode::kInvalidArgument, "got \"0123456789abcdef\"");
}

TEST_F(PlanCacheTest, NoDirectoryNameSwitchesItOff) {
  const PlanCache off("");
  EXPECT_TRUE(off.Save(MakeKey(), MakePlan()).ok());
  ExpectError(off.Load(MakeKey()), StatusCode::kNotFound, "switched off");
}

TEST_F(PlanCacheTest, AMissingDirectoryIsAnErrorOfSaveAlone) {
  const PlanCache nowhere(directory_.File("missing"));
  EXPECT_FALSE(nowhere.Save(MakeKey(), MakePlan()).ok());
  ExpectError(nowhere.Load(MakeKey()), StatusCode::kNotFound, "");
}

}  // namespace
}  // namespace deeppcr
