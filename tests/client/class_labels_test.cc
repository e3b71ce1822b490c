// SPDX-License-Identifier: Apache-2.0
#include "client/class_labels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/npy.h"

namespace deeppcr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int32_t> Cycle(const char* text, int64_t classes, uint64_t first, int64_t count) {
  return *CycleClasses(*ParseClassChoice(text), classes, first, count);
}

std::string CycleError(const char* text, int64_t classes) {
  return std::string(CycleClasses(*ParseClassChoice(text), classes, 0, 1).status().message());
}

TEST(ClassLabelsTest, ClassesTakeTurnsByTheNumberOfTheSample) {
  EXPECT_THAT(Cycle("4", 10, 0, 3), ElementsAre(4, 4, 4));
  EXPECT_THAT(Cycle("0,3,7", 10, 0, 5), ElementsAre(0, 3, 7, 0, 3));
  EXPECT_THAT(Cycle("0,3,7", 10, 2, 3), ElementsAre(7, 0, 3));
  EXPECT_THAT(Cycle("all", 3, 1, 4), ElementsAre(1, 2, 0, 1));
  EXPECT_THAT(Cycle("", 0, 0, 4), IsEmpty());
}

TEST(ClassLabelsTest, RefusesWhatIsNoChoice) {
  for (const char* text : {"x", "1,", ",1", "1,,2", "-1", "1.5", "99999999999", "every"}) {
    EXPECT_THAT(std::string(ParseClassChoice(text).status().message()),
                HasSubstr("class: expected numbers of at least 0"))
        << text;
  }
}

TEST(ClassLabelsTest, RefusesWhatTheModelDoesNotKnow) {
  EXPECT_EQ(CycleError("3", 0), "class: this model has no classes to choose from");
  EXPECT_EQ(CycleError("all", 0), "class: this model has no classes to choose from");
  EXPECT_EQ(CycleError("0,10", 10), "class: expected 0 to 9 for this model, got 10");
  EXPECT_THAT(CycleError("", 10), HasSubstr("choose from 0 to 9 with --class"));
  EXPECT_THAT(CycleError("all", int64_t{1} << 40), HasSubstr("bad reply: num_classes"));
}

TEST(ClassLabelsTest, FormatsWholeNumbers) {
  const std::vector<int32_t> labels = {3, 1000000};

  EXPECT_EQ(FormatClassLabels(labels, ArrayFormat::kCsv), "3\n1000000\n");
  EXPECT_EQ(FormatClassLabels(labels, ArrayFormat::kJson), "[3, 1000000]\n");
  const std::string npy = FormatClassLabels(labels, ArrayFormat::kNpy);
  EXPECT_THAT(npy, HasSubstr("'descr': '<i8'"));
  const auto array = ParseNpy(npy).value();
  EXPECT_THAT(array.shape, ElementsAre(2));
  EXPECT_THAT(array.values, ElementsAre(3, 1000000));
}

}  // namespace
}  // namespace deeppcr
