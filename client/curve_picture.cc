// SPDX-License-Identifier: Apache-2.0
#include "client/curve_picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

#include "absl/strings/str_format.h"

namespace deeppcr {
namespace {

constexpr int64_t kWidth = 900, kPanelHeight = 320;
constexpr int64_t kLeft = 90, kRight = 20, kTop = 20, kBottom = 40;
constexpr int64_t kTextScale = 2, kGlyphWidth = 3, kGlyphHeight = 5;
constexpr Colour kWhite = {255, 255, 255}, kGrid = {224, 224, 224}, kInk = {64, 64, 64};
constexpr int kGridLines = 4;

struct Glyph {
  char character;
  std::array<uint8_t, kGlyphHeight> rows;  // three bits each, the left one the highest
};
constexpr Glyph kGlyphs[] = {
    {'0', {7, 5, 5, 5, 7}}, {'1', {2, 6, 2, 2, 7}}, {'2', {7, 1, 7, 4, 7}}, {'3', {7, 1, 7, 1, 7}},
    {'4', {5, 5, 7, 1, 1}}, {'5', {7, 4, 7, 1, 7}}, {'6', {7, 4, 7, 5, 7}}, {'7', {7, 1, 1, 1, 1}},
    {'8', {7, 5, 7, 5, 7}}, {'9', {7, 5, 7, 1, 7}}, {'.', {0, 0, 0, 0, 2}}, {'-', {0, 0, 7, 0, 0}},
    {'+', {0, 2, 7, 2, 0}}, {'e', {0, 6, 7, 4, 6}},
};

// Text that ends at `right`; characters without a glyph are blank.
void DrawText(std::string_view text, int64_t right, int64_t top, Picture* picture) {
  const int64_t advance = (kGlyphWidth + 1) * kTextScale;
  int64_t left = right - static_cast<int64_t>(text.size()) * advance;
  for (const char c : text) {
    for (const Glyph& glyph : kGlyphs) {
      if (glyph.character != c) continue;
      for (int64_t y = 0; y < kGlyphHeight; ++y)
        for (int64_t x = 0; x < kGlyphWidth; ++x)
          if ((glyph.rows[y] >> (kGlyphWidth - 1 - x) & 1) != 0)
            picture->FillRectangle(left + x * kTextScale, top + y * kTextScale, kTextScale,
                                   kTextScale, kInk);
    }
    left += advance;
  }
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void Add(double x) {
    low = std::min(low, x);
    high = std::max(high, x);
  }
  bool empty() const { return low > high; }
  // In [0, 1]; one value alone is in the middle. The ends may be farther apart than any number is
  // large.
  double PartOf(double x) const {
    return high > low ? (x / 2 - low / 2) / (high / 2 - low / 2) : 0.5;
  }
  double At(double part) const { return (1 - part) * low + part * high; }
};

class Diagram {
 public:
  Diagram(const Panel& panel, int64_t top, Picture* picture)
      : logarithmic_(panel.logarithmic), top_(top), picture_(picture) {
    for (const Curve& curve : panel.curves) {
      for (const CurvePoint& point : curve.points) {
        if (!IsDrawn(point)) continue;
        x_.Add(point.x);
        y_.Add(Height(point.y));
      }
    }
    if (x_.empty()) return;
    x_.Add(0);
    DrawGrid();
    for (const Curve& curve : panel.curves) Draw(curve);
  }

 private:
  static constexpr int64_t kInnerWidth = kWidth - kLeft - kRight;
  static constexpr int64_t kInnerHeight = kPanelHeight - kTop - kBottom;

  bool IsDrawn(const CurvePoint& point) const {
    return std::isfinite(point.x) && std::isfinite(point.y) && !(logarithmic_ && point.y <= 0);
  }
  double Height(double y) const { return logarithmic_ ? std::log10(y) : y; }
  double ValueAt(double part) const {
    return logarithmic_ ? std::pow(10, y_.At(part)) : y_.At(part);
  }

  int64_t Column(double part) const {
    return kLeft + std::llround(part * static_cast<double>(kInnerWidth - 1));
  }
  int64_t Row(double part) const {
    return top_ + kTop + std::llround((1 - part) * static_cast<double>(kInnerHeight - 1));
  }

  int64_t RowOf(const CurvePoint& point) const { return Row(y_.PartOf(Height(point.y))); }

  void DrawGrid() {
    for (int i = 0; i <= kGridLines; ++i) {
      const double part = static_cast<double>(i) / kGridLines;
      picture_->FillRectangle(kLeft, Row(part), kInnerWidth, 1, kGrid);
      picture_->FillRectangle(Column(part), top_ + kTop, 1, kInnerHeight, kGrid);
      DrawText(absl::StrFormat("%.3g", ValueAt(part)), kLeft - 8,
               Row(part) - kGlyphHeight * kTextScale / 2, picture_);
      DrawText(absl::StrFormat("%.0f", x_.At(part)), Column(part) + 12,
               top_ + kPanelHeight - kBottom + 10, picture_);
    }
  }

  void Draw(const Curve& curve) {
    for (size_t i = 0; i < curve.points.size(); ++i) {
      const CurvePoint& point = curve.points[i];
      if (!IsDrawn(point)) continue;
      const int64_t x = Column(x_.PartOf(point.x)), y = RowOf(point);
      const int64_t size = curve.marked ? 5 : 2;
      picture_->FillRectangle(x - size / 2, y - size / 2, size, size, curve.colour);
      if (i == 0 || !IsDrawn(curve.points[i - 1])) continue;
      const CurvePoint& last = curve.points[i - 1];
      DrawLine(Column(x_.PartOf(last.x)), RowOf(last), x, y, curve.colour);
    }
  }

  void DrawLine(int64_t x0, int64_t y0, int64_t x1, int64_t y1, Colour colour) {
    const int64_t length = std::max({std::abs(x1 - x0), std::abs(y1 - y0), int64_t{1}});
    for (int64_t i = 0; i <= length; ++i)
      picture_->FillRectangle(x0 + (x1 - x0) * i / length, y0 + (y1 - y0) * i / length, 2, 2,
                              colour);
  }

  const bool logarithmic_;
  const int64_t top_;
  Picture* const picture_;
  Range x_, y_;
};

}  // namespace

Picture DrawPanels(const std::vector<Panel>& panels) {
  const auto count = std::max<int64_t>(1, std::ssize(panels));
  Picture picture(kWidth, count * kPanelHeight, kWhite);
  for (size_t i = 0; i < panels.size(); ++i)
    Diagram(panels[i], static_cast<int64_t>(i) * kPanelHeight, &picture);
  return picture;
}

}  // namespace deeppcr
