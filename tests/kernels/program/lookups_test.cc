// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/lookups.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/kernels/program/draft.h"

namespace deeppcr::program {
namespace {

// A program that adds the row of an index to its state.
class Table {
 public:
  explicit Table(int64_t rows) : rows_(rows) {}

  ValueId Label() { return draft_.Label(); }
  ValueId Time() { return draft_.Time(); }
  ValueId Do(Op op, std::initializer_list<ValueId> operands) { return draft_.Do(op, operands); }
  ValueId By(Op op, ValueId a, double number) { return draft_.By(op, a, number); }

  Program Of(ValueId index) {
    const ValueId z = draft_.State(1);
    const LinearLayer table = {
        .rows = rows_, .cols = 1, .weight = std::make_shared<std::vector<float>>(rows_, 1.0F)};
    return draft_.Finish(draft_.Add(z, draft_.Lookup(index, table)));
  }
  Program OfCondition() {
    const ValueId index = draft_.Do(Op::kFloor, {draft_.Condition(1)});
    return Of(index);
  }

 private:
  const int64_t rows_;
  Draft draft_;
};

std::vector<double> Times(int64_t count) {
  std::vector<double> times;
  for (int64_t t = count - 1; t >= 0; --t) times.push_back(static_cast<double>(t));
  return times;
}

std::string Said(const Program& program, int64_t classes, int64_t times) {
  return std::string(CheckLookups(program, classes, Times(times), nullptr).message());
}

TEST(LookupsTest, TakesClassesAndTimesThatAllHaveARow) {
  Table by_label(7);
  EXPECT_EQ(Said(by_label.Of(by_label.Label()), 7, 10), "");
  Table from_the_end(7);
  EXPECT_EQ(Said(from_the_end.Of(from_the_end.By(Op::kSubtract, from_the_end.Label(), 3)), 7, 10),
            "");
  Table computed(20);
  const auto thrice = computed.By(Op::kMultiply, computed.Label(), 3);
  EXPECT_EQ(Said(computed.Of(computed.By(Op::kAdd, thrice, 1)), 6, 10), "");
  Table tenths(100);
  const auto tenth = tenths.By(Op::kDivide, tenths.Time(), 10);
  EXPECT_EQ(Said(tenths.Of(tenths.Do(Op::kFloor, {tenth})), 0, 1000), "");
  Table vector(3);
  EXPECT_EQ(Said(vector.OfCondition(), 0, 10), "");
}

TEST(LookupsTest, RefusesAClassOrATimeWithoutARow) {
  Table by_label(7);
  const Program label = by_label.Of(by_label.Label());
  EXPECT_NE(Said(label, 8, 10).find("class 7 has no row in a table of 7"), std::string::npos);
  Table from_the_end(7);
  const Program below = from_the_end.Of(from_the_end.By(Op::kSubtract, from_the_end.Label(), 8));
  EXPECT_NE(Said(below, 3, 10).find("class 0 has no row in a table of 7"), std::string::npos);
  Table by_time(7);
  const Program time = by_time.Of(by_time.Time());
  EXPECT_NE(Said(time, 0, 8).find("time 7 has no row in a table of 7"), std::string::npos);
  Table by_both(7);
  const auto sum = by_both.Do(Op::kAdd, {by_both.Label(), by_both.Time()});
  EXPECT_NE(Said(by_both.Of(sum), 2, 7).find("class 1 at time 6 has no row"), std::string::npos);
}

// The last class is tried, however many there are.
TEST(LookupsTest, TriesTheLastOfManyClasses) {
  constexpr int64_t kMany = kMaxFloatIndex;
  Table table(kMany - 1);
  const Program program = table.Of(table.Label());
  EXPECT_EQ(Said(program, kMany - 1, 1), "");
  EXPECT_NE(Said(program, kMany, 1).find("has no row"), std::string::npos);
}

TEST(LookupsTest, RefusesIndicesThatRoundingDecides) {
  // 10 times the float 0.7 is below 7, and 7 in float32.
  const double factor = 0.7F;
  Table by_label(12);
  const auto scaled = by_label.By(Op::kMultiply, by_label.Label(), factor);
  const Program label = by_label.Of(by_label.Do(Op::kFloor, {scaled}));
  EXPECT_EQ(Said(label, 10, 1), "");
  EXPECT_NE(Said(label, 11, 1)
                .find("class 10 finds row 6 of a table of 12 in double but row 7 in "
                      "float32: rounding decides"),
            std::string::npos);
  Table by_time(12);
  const auto later = by_time.By(Op::kMultiply, by_time.Time(), factor);
  const Program time = by_time.Of(by_time.Do(Op::kFloor, {later}));
  EXPECT_EQ(Said(time, 0, 10), "");
  EXPECT_NE(Said(time, 0, 11).find("time 10 finds row 6"), std::string::npos);
}

TEST(LookupsTest, RefusesIndicesBeyondFloat32) {
  Table label(1);
  const auto zero = label.By(Op::kMultiply, label.Label(), 0);
  EXPECT_NE(Said(label.Of(zero), kMaxFloatIndex + 1, 1).find("classes"), std::string::npos);
  Table rows(kMaxFloatIndex + 1);
  EXPECT_NE(Said(rows.Of(rows.Label()), 1, 1).find("a table of 16777217 rows"), std::string::npos);
  // In double there are more.
  Table by_time(kMaxFloatIndex + 1);
  EXPECT_EQ(Said(by_time.Of(by_time.Time()), 0, 1), "");
}

TEST(LookupsTest, StopsWhenTheTokenFires) {
  Table table(7);
  CancelToken token;
  token.Cancel();
  EXPECT_TRUE(absl::IsCancelled(CheckLookups(table.Of(table.Label()), 7, {}, &token)));
}

}  // namespace
}  // namespace deeppcr::program
