// SPDX-License-Identifier: Apache-2.0
#include "client/curve_picture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace deeppcr {
namespace {

constexpr Colour kCurve = {255, 0, 0};

// Rows in which a column has this colour.
std::set<int64_t> RowsOf(const Picture& picture, int64_t column, Colour colour) {
  std::set<int64_t> rows;
  for (int64_t y = 0; y < picture.height(); ++y) {
    const uint8_t* pixel = picture.rgb().data() + 3 * (y * picture.width() + column);
    if (pixel[0] == colour.red && pixel[1] == colour.green && pixel[2] == colour.blue)
      rows.insert(y);
  }
  return rows;
}
int64_t CountOf(const Picture& picture, Colour colour) {
  int64_t count = 0;
  for (int64_t x = 0; x < picture.width(); ++x) count += std::ssize(RowsOf(picture, x, colour));
  return count;
}

Picture DrawCurve(std::vector<CurvePoint> points, bool logarithmic = false) {
  return DrawPanels(
      {{.curves = {{.points = std::move(points), .colour = kCurve}}, .logarithmic = logarithmic}});
}

TEST(CurvePictureTest, ALineRisesFromColumnToColumn) {
  const Picture picture = DrawCurve({{0, 0}, {10, 5}});
  int64_t last = picture.height();
  int64_t columns = 0;
  for (int64_t x = 0; x < picture.width(); ++x) {
    const std::set<int64_t> rows = RowsOf(picture, x, kCurve);
    if (rows.empty()) continue;
    ++columns;
    EXPECT_LE(*rows.begin(), last + 1);  // a point is a square around its place
    last = *rows.begin();
  }
  EXPECT_GT(columns, 700);
}

// The middle one of 1, 10, 100 is half way up.
TEST(CurvePictureTest, ALogarithmIsStraightWhereValuesMultiply) {
  const Picture picture = DrawCurve({{0, 1}, {5, 10}, {10, 100}}, true);
  std::vector<std::set<int64_t>> drawn;
  for (int64_t x = 0; x < picture.width(); ++x)
    if (std::set<int64_t> rows = RowsOf(picture, x, kCurve); !rows.empty()) drawn.push_back(rows);
  const int64_t low = *drawn.front().rbegin(), high = *drawn.back().begin();
  const int64_t middle = *drawn[drawn.size() / 2].begin();
  EXPECT_NEAR(middle, (low + high) / 2, 3);
}

TEST(CurvePictureTest, LeavesOutWhatIsNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(CountOf(DrawCurve({{0, nan}, {1, infinite}, {2, -infinite}}), kCurve), 0);
  EXPECT_EQ(CountOf(DrawCurve({{0, -1}, {1, 0}}, true), kCurve), 0);
  EXPECT_GT(CountOf(DrawCurve({{0, 1}, {1, nan}, {2, 2}}), kCurve), 0);
  EXPECT_GT(CountOf(DrawCurve({{0, 1e308}, {1, -1e308}}), kCurve), 0);
}

TEST(CurvePictureTest, DrawsOnePointAndNoPoint) {
  EXPECT_GT(CountOf(DrawCurve({{3, 3}}), kCurve), 0);
  EXPECT_EQ(CountOf(DrawCurve({}), kCurve), 0);
  EXPECT_EQ(DrawPanels({}).height(), 320);
  EXPECT_EQ(DrawPanels({{}, {}}).height(), 640);
}

}  // namespace
}  // namespace deeppcr
