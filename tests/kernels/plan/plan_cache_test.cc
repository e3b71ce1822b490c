// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/plan_cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/base/file.h"
#include "tests/kernels/plan/sample_plan.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;
using nlohmann::json;

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
  const Plan plan = cache_.Load(MakeKey()).value();
  ExpectEqual(plan, MakePlan());
  EXPECT_EQ(plan.id, MakePlan().id);
  EXPECT_EQ(plan.source, PlanSource::kCache);
  EXPECT_EQ(plan.device_class, MakeKey().device_class);
}

// The caller has to check such a plan; its build and id are those of the build that made it.
TEST_F(PlanCacheTest, APlanOfAnotherBuildIsFoundAndSaysSo) {
  ASSERT_TRUE(cache_.Save(MakeKey(), MakePlan()).ok());
  PlanKey newer = MakeKey();
  newer.build = "0.1.0+abd";
  const Plan plan = cache_.Load(newer).value();
  EXPECT_EQ(plan.build, MakeKey().build);
}

TEST_F(PlanCacheTest, ReplacesAnOlderPlan) {
  ASSERT_TRUE(cache_.Save(MakeKey(), MakePlan()).ok());
  Plan newer = MakePlan();
  newer.choices[0].shooting_interval = 8;
  newer.id = *PlanId(MakeKey(), newer);
  ASSERT_TRUE(cache_.Save(MakeKey(), newer).ok());
  EXPECT_EQ(NumFiles(), 1);
  const Plan plan = cache_.Load(MakeKey()).value();
  ExpectEqual(plan, newer);
}

TEST_F(PlanCacheTest, EveryDifferenceOfTheKeyIsAnotherFile) {
  ASSERT_TRUE(cache_.Save(MakeKey(), MakePlan()).ok());
  std::vector<KeyChange> changes(std::begin(kKeyChanges), std::end(kKeyChanges));
  changes.push_back([](PlanKey& k) { k.device_class = "cpu-test l1d=64K"; });
  for (size_t i = 0; i < changes.size(); ++i) {
    PlanKey key = MakeKey();
    changes[i](key);
    EXPECT_EQ(cache_.Load(key).status().code(), StatusCode::kNotFound) << "change " << i;
    Plan plan = MakePlan();
    plan.id = *PlanId(key, plan);
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
  edited["plan"]["entries"][0].erase("max_samples");
  ASSERT_TRUE(WriteFileAtomically(path, edited.dump()).ok());
  ExpectError(cache_.Load(MakeKey()), StatusCode::kInvalidArgument, path);
  ExpectError(cache_.Load(MakeKey()), StatusCode::kInvalidArgument, "max_samples");
}

TEST_F(PlanCacheTest, AnEditedChoiceOrAForeignFileHasTheWrongId) {
  ASSERT_TRUE(cache_.Save(MakeKey(), MakePlan()).ok());
  const std::string path = OnlyFile(), text = *ReadFile(path, 1 << 20);
  json edited = json::parse(text);
  edited["plan"]["choices"][0]["warm_sweeps"] = 7;
  ASSERT_TRUE(WriteFileAtomically(path, edited.dump()).ok());
  ExpectError(cache_.Load(MakeKey()), StatusCode::kInvalidArgument, "id: expected ");
  edited = json::parse(text);
  edited["id"] = "0123456789abcdef";
  ASSERT_TRUE(WriteFileAtomically(path, edited.dump()).ok());
  ExpectError(cache_.Load(MakeKey()), StatusCode::kInvalidArgument, "got \"0123456789abcdef\"");
}

TEST_F(PlanCacheTest, AFileUnderAnothersNameIsRefusedWithWhatDiffers) {
  ASSERT_TRUE(cache_.Save(MakeKey(), MakePlan()).ok());
  PlanKey other = MakeKey();
  other.weights_sha256 = "ffff";
  const std::string first = OnlyFile();
  ASSERT_TRUE(cache_.Save(other, MakePlan()).ok());
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
    if (entry.path() != first)
      std::filesystem::copy_file(first, entry.path(),
                                 std::filesystem::copy_options::overwrite_existing);
  }
  ExpectError(cache_.Load(other), StatusCode::kInvalidArgument, "weights_sha256: expected");
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
}  // namespace deeppcr::testing
