// SPDX-License-Identifier: Apache-2.0
#include "server/models/version_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> Chosen(std::string_view rules, std::string_view model) {
  const auto policies = VersionPolicies::Parse(rules);
  EXPECT_TRUE(policies.ok()) << policies.status();
  return policies->For(model).Choose(std::vector<int64_t>{1, 2, 5, 10});
}

TEST(VersionPolicyTest, ChoosesByRule) {
  EXPECT_THAT(Chosen("latest", "m"), ElementsAre(10));
  EXPECT_THAT(Chosen("latest:3", "m"), ElementsAre(2, 5, 10));
  EXPECT_THAT(Chosen("latest:9", "m"), ElementsAre(1, 2, 5, 10));
  EXPECT_THAT(Chosen("all", "m"), ElementsAre(1, 2, 5, 10));
  EXPECT_THAT(Chosen("m=5+1+5", "m"), ElementsAre(1, 5));
  EXPECT_THAT(Chosen("m=7", "m"), ElementsAre(7));  // its load reports that it is missing
}

TEST(VersionPolicyTest, ARuleOfItsOwnGoesBeforeThatOfAll) {
  EXPECT_THAT(Chosen("m=latest:2,all", "m"), ElementsAre(5, 10));
  EXPECT_THAT(Chosen("m=latest:2,all", "n"), ElementsAre(1, 2, 5, 10));
  EXPECT_THAT(Chosen("m=1", "n"), ElementsAre(10));
}

TEST(VersionPolicyTest, RefusesWhatIsNoRule) {
  for (const char* rules : {"", "newest", "latest:", "latest:0", "latest:-1", "latest:x",
                            "m=", "m=1+", "m=01", "m=0", "1", "1+3", "latest,all", "m=1,m=2",
                            "latest,", "=1", "a/b=1", "m=latest:99999999999999999999", "m=1=2"}) {
    SCOPED_TRACE(rules);
    ExpectError(VersionPolicies::Parse(rules), absl::StatusCode::kInvalidArgument, "expected");
  }
}

}  // namespace
}  // namespace deeppcr::testing
