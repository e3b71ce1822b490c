// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/plan_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/kernels/plan/sample_plan.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;
using nlohmann::json;

constexpr std::string_view kItem = "/devices/cpu-test l1d=32K/0";

std::string FileText() {
  PlanFile file;
  file.Add(MakeKey(), MakePlan());
  return file.Text();
}

TEST(PlanFileTest, GivesBackWhatWasWritten) {
  const PlanFile file = PlanFile::Parse(FileText()).value();
  const KeyedPlan* found = file.Find(MakeKey());
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->key, MakeKey());
  ExpectEqual(found->plan, MakePlan());
  EXPECT_EQ(found->plan.source, PlanSource::kFile);
  EXPECT_EQ(found->plan.device_class, MakeKey().device_class);
  EXPECT_EQ(found->plan.build, MakeKey().build);
  EXPECT_EQ(file.Text(), FileText());
}

// A machine whose device class has no plan of its own takes the plan for all devices with its bits.
TEST(PlanFileTest, TheDeviceClassComesBeforeItsBits) {
  PlanKey other = MakeKey();
  other.device_class = "cpu-test l1d=64K";
  PlanFile file;
  file.Add(MakeKey(), MakePlan());
  EXPECT_EQ(file.Find(other), nullptr);
  Plan general = MakePlan();
  general.device_class = MakeKey().device_bits;
  file.Add(MakeKey(), general);
  ASSERT_NE(file.Find(other), nullptr);
  EXPECT_EQ(file.Find(other)->plan.device_class, "cpu-test");
  EXPECT_EQ(file.Find(MakeKey())->plan.device_class, "cpu-test l1d=32K");
  EXPECT_EQ(file.Contents(), "\"cpu-test\" (128), \"cpu-test l1d=32K\" (128)");
  EXPECT_EQ(PlanFile().Contents(), "none");
}

// An older plan for the device class, for instance of other weights, does not hide one that fits.
TEST(PlanFileTest, APlanThatFitsComesBeforeOneThatDoesNot) {
  PlanKey older = MakeKey();
  older.weights_sha256 = "ffff";
  PlanFile file;
  file.Add(older, MakePlan());
  EXPECT_EQ(file.Find(MakeKey())->key.weights_sha256, "ffff") << "for the caller to refuse";
  Plan general = MakePlan();
  general.device_class = MakeKey().device_bits;
  file.Add(MakeKey(), general);
  EXPECT_EQ(file.Find(MakeKey())->plan.device_class, "cpu-test");
}

TEST(PlanFileTest, APlanIsForOneNumberOfSteps) {
  PlanKey other = MakeKey();
  other.num_steps = 64;
  PlanFile file;
  file.Add(MakeKey(), MakePlan());
  EXPECT_EQ(file.Find(other), nullptr);
  file.Add(other, MakePlan());
  ASSERT_NE(file.Find(other), nullptr);
  EXPECT_EQ(file.Find(other)->key.num_steps, 64);
}

TEST(PlanFileTest, RefusesOtherFormatsUnknownFieldsAndDoubles) {
  json root = json::parse(FileText());
  json changed = root;
  changed["format"] = "deeppcr-plan-2";
  ExpectError(PlanFile::Parse(changed.dump()), StatusCode::kInvalidArgument, "format: expected");
  changed = root;
  changed.at(json::json_pointer(std::string(kItem)))["plan"]["x"] = 1;
  ExpectError(PlanFile::Parse(changed.dump()), StatusCode::kInvalidArgument,
              "devices: \"cpu-test l1d=32K\": plan 0: \"x\": unknown field");
  changed = root;
  json& items = changed["devices"]["cpu-test l1d=32K"];
  items.push_back(items[0]);
  ExpectError(PlanFile::Parse(changed.dump()), StatusCode::kInvalidArgument,
              "num_steps: expected one plan for 128, got two");
  changed = root;
  changed["devices"]["other"] = json::array();
  ExpectError(PlanFile::Parse(changed.dump()), StatusCode::kInvalidArgument,
              "expected 1 to 64 plans, got 0");
}

TEST(PlanFileTest, RefusesWhatIsTooLarge) {
  ExpectError(PlanFile::Parse(std::string((1 << 20) + 1, ' ')), StatusCode::kResourceExhausted, "");
  json root = json::parse(FileText());
  for (int i = 0; i < 64; ++i)
    root["devices"][std::to_string(i)] = root["devices"]["cpu-test l1d=32K"];
  ExpectError(PlanFile::Parse(root.dump()), StatusCode::kInvalidArgument,
              "devices: expected at most 64, got 65");
}

// Damages every field: removes it, and replaces it by a value of each other type.
TEST(PlanFileTest, RefusesMissingFieldsAndWrongTypesByName) {
  const json plan = json::parse(FileText());
  for (const std::string part :
       {"", "/key", "/plan", "/plan/choices/0", "/plan/entries/0", "/plan/entries/0/parallel"}) {
    const std::string path = std::string(kItem) + part;
    const json object = plan.at(json::json_pointer(path));
    for (const auto& [key, value] : object.items()) {
      json damaged = plan;
      damaged.at(json::json_pointer(path)).erase(key);
      ExpectError(PlanFile::Parse(damaged.dump()), StatusCode::kInvalidArgument, key);
      for (const json& wrong : {json(nullptr), json(true), json("text"), json(-1.5), json::object(),
                                json::array({1})}) {
        if (wrong.type() == value.type() && !value.is_string() && !value.is_array() &&
            !value.is_object())
          continue;  // still a number
        // Any text may be a name or a hash.
        if (part == "/key" && wrong.is_string() && value.is_string()) continue;
        if (wrong.is_boolean() && value.is_boolean()) continue;
        damaged = plan;
        damaged.at(json::json_pointer(path))[key] = wrong;
        const absl::StatusOr<PlanFile> read = PlanFile::Parse(damaged.dump());
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

TEST(PlanFileTest, RefusesValuesOutOfRange) {
  const Damage damages[] = {
      {"/plan/choices/0/solver", "gauss", "solver: unknown value \"gauss\""},
      {"/plan/choices/0/solver", "sequential",
       "solver: expected an iterative one, got \"sequential\""},
      {"/plan/entries/0/parallel/solver", "sequential", "solver: expected an iterative one"},
      {"/key/rtol", -1e-3, "rtol: expected no negative number, got -0.001"},
      {"/plan/least_rtol", -1e-3, "least_rtol: expected no negative number, got -0.001"},
      {"/plan/least_rtol", 1e13, "least_rtol: expected at most"},
      {"/key/num_steps", 0, "num_steps"},
      {"/key/min_shooting_interval", 0, "min_shooting_interval"},
      {"/key/build", std::string(257, 'x'), "build: expected at most 256 bytes, got 257"},
      {"/plan/choices/1/solver", "newton", "choices: expected one for newton, got two"},
      {"/plan/entries", json(std::vector<int>(65, 1)), "entries: expected at most 64 elements"},
      {"/plan/choices", json(std::vector<int>(17, 1)), "choices: expected at most 16 elements"},
      {"/plan/measured_seconds", -1.0, "measured_seconds: expected no negative number"},
      {"/plan/entries/0/sequential_seconds", -1e-9,
       "sequential_seconds: expected no negative number"},
      {"/plan/entries/0/parallel_seconds", -1.0, "parallel_seconds: expected no negative number"},
      {"/plan/entries/0/parallel_iterations", -1.0,
       "parallel_iterations: expected no negative number"},
      {"/plan/entries/0/parallel_error", -1.0, "parallel_error: expected no negative number"},
      {"/plan/choices/0/shooting_interval", 0, "shooting_interval"},
      {"/plan/choices/0/shooting_interval", (1 << 20) + 1, "shooting_interval"},
      {"/plan/choices/0/shooting_interval", 1.5, "shooting_interval"},
      {"/plan/choices/0/initial_guess", "previous", "initial_guess: unknown value"},
      {"/plan/choices/0/initial_guess", "plan", "initial_guess: unknown value"},
      {"/plan/choices/0/warm_sweeps", -1, "warm_sweeps"},
      {"/plan/choices/0/warm_sweeps", 65, "warm_sweeps"},
      {"/plan/choices/0/jacobian_refresh", "plan", "jacobian_refresh: unknown value"},
      {"/plan/entries/0/max_samples", 0, "max_samples"},
      {"/plan/entries/0/max_samples", 4097, "max_samples"},
      {"/plan/entries/0/solver", "", "solver: unknown value"},
      {"/plan/entries/0/solver", "picard", "solver: expected sequential or the parallel choice"},
      {"/plan/entries/0/parallel_stages", -1, "parallel_stages"},
      {"/plan/entries/0/parallel_stages", int64_t{1} << 41, "parallel_stages"},
      {"/plan/entries/0/max_samples", 16, "entries: expected ascending max_samples"},
      {"/plan/entries/0/max_samples", 17, "entries: expected ascending max_samples"},
      {"/plan/entries", json::array(), "entries: expected at least one"},
      {"/plan/entries/0", 1, "expected"},
      {"/plan/choices/0", json::array(), "expected"},
  };
  for (const Damage& damage : damages) {
    json plan = json::parse(FileText());
    plan.at(json::json_pointer(std::string(kItem) + damage.path)) = damage.value;
    SCOPED_TRACE(damage.path);
    ExpectError(PlanFile::Parse(plan.dump()), StatusCode::kInvalidArgument, damage.message_part);
  }
}

TEST(PlanFileTest, RefusesEveryTruncation) {
  const std::string text = FileText();
  for (size_t length = 0; length + 2 < text.size(); length += 7)
    EXPECT_EQ(PlanFile::Parse(text.substr(0, length)).status().code(), StatusCode::kInvalidArgument)
        << length;
  ExpectError(PlanFile::Parse("[]"), StatusCode::kInvalidArgument, "expected an object");
  EXPECT_FALSE(PlanFile::Parse(text + "x").ok());
}

}  // namespace
}  // namespace deeppcr::testing
