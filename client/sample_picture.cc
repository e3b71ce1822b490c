// SPDX-License-Identifier: Apache-2.0
#include "client/sample_picture.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

constexpr Colour kWhite = {255, 255, 255};
constexpr Colour kRed = {220, 20, 20};
constexpr Colour kSeparator = {90, 100, 130};
constexpr Colour kBox = {60, 60, 60};
constexpr Colour kZeroLine = {215, 215, 215};
constexpr Colour kPoint = {30, 90, 180};
constexpr int64_t kMaxImageSide = 4096;
constexpr int64_t kPointsSide = 128;

absl::Status CheckSize(const PictureLayout& layout, int64_t num_samples) {
  const double pixels =
      static_cast<double>(layout.picture_width) * static_cast<double>(layout.picture_height);
  if (pixels <= static_cast<double>(kMaxPicturePixels)) return absl::OkStatus();
  return InvalidArgument("png: ", num_samples, " samples at --scale ", layout.scale,
                         " make a picture of ", layout.picture_width, " x ", layout.picture_height,
                         " pixels, more than the ", kMaxPicturePixels,
                         " allowed: take a smaller scale, or draw fewer samples");
}

absl::StatusOr<PictureLayout> LayOutGrid(const std::vector<int64_t>& shape, int64_t output_dim,
                                         int64_t num_samples, int64_t scale) {
  const bool has_channels = shape.size() == 3;
  PictureLayout layout{.scale = scale};
  const bool drawable = (shape.size() == 2 || has_channels) && shape[0] >= 1 && shape[1] >= 1 &&
                        shape[0] <= kMaxImageSide && shape[1] <= kMaxImageSide &&
                        (!has_channels || shape[2] == 1 || shape[2] == 3);
  if (drawable) {
    layout.height = shape[0];
    layout.width = shape[1];
    layout.channels = has_channels ? shape[2] : 1;
  }
  if (!drawable || layout.height * layout.width * layout.channels != output_dim) {
    return InvalidArgument(
        "png: expected images [height, width] or [height, width, 3] of the model's ", output_dim,
        " outputs, got ", ShapeToString(shape));
  }
  const int64_t cell_width = layout.width * scale + 1;
  const int64_t cell_height = layout.height * scale + 1;
  const double square =
      std::sqrt(static_cast<double>(num_samples) * static_cast<double>(cell_height) /
                static_cast<double>(cell_width));
  layout.columns = std::clamp<int64_t>(static_cast<int64_t>(std::ceil(square)), 1, num_samples);
  const int64_t rows = (num_samples + layout.columns - 1) / layout.columns;
  layout.picture_width = layout.columns * cell_width + 1;
  layout.picture_height = rows * cell_height + 1;
  return layout;
}

uint8_t ToByte(float value) {
  return static_cast<uint8_t>(std::lround(255 * std::clamp(value, 0.0f, 1.0f)));
}

Colour ColourOf(const float* values, int64_t channels) {
  if (std::any_of(values, values + channels, [](float value) { return std::isnan(value); })) {
    return kRed;
  }
  const int64_t green = channels == 3 ? 1 : 0;
  const int64_t blue = channels == 3 ? 2 : 0;
  return {ToByte(values[0]), ToByte(values[green]), ToByte(values[blue])};
}

Picture DrawGrid(const PictureLayout& layout, const Array& samples) {
  Picture picture(layout.picture_width, layout.picture_height, kSeparator);
  const float* value = samples.values.data();
  for (int64_t i = 0; i < samples.rows(); ++i) {
    const int64_t left = i % layout.columns * (layout.width * layout.scale + 1) + 1;
    const int64_t top = i / layout.columns * (layout.height * layout.scale + 1) + 1;
    for (int64_t y = 0; y < layout.height; ++y) {
      for (int64_t x = 0; x < layout.width; ++x) {
        picture.FillRectangle(left + x * layout.scale, top + y * layout.scale, layout.scale,
                              layout.scale, ColourOf(value, layout.channels));
        value += layout.channels;
      }
    }
  }
  return picture;
}

// The middle of the finite values of one coordinate, and half their extent.
struct Extent {
  double middle = 0;
  double half = 0;
};

Extent FiniteExtent(const Array& samples, size_t coordinate) {
  bool any = false;
  double low = 0;
  double high = 0;
  for (size_t i = coordinate; i < samples.values.size(); i += 2) {
    const double value = samples.values[i];
    if (!std::isfinite(value)) continue;
    low = any ? std::min(low, value) : value;
    high = any ? std::max(high, value) : value;
    any = true;
  }
  return {(low + high) / 2, (high - low) / 2};
}

// Maps coordinates to pixels, with the same scale in both directions.
class PointsArea {
 public:
  PointsArea(const PictureLayout& layout, const Array& samples)
      : side_(layout.picture_width), margin_(std::max<int64_t>(4, side_ / 32)) {
    x_ = FiniteExtent(samples, 0);
    y_ = FiniteExtent(samples, 1);
    const double half = std::max(x_.half, y_.half);
    half_ = half > 0 ? 1.05 * half : 1;
  }

  // Values that are not finite lie at the left and the lower edge.
  int64_t Column(double x) const { return std::isfinite(x) ? At((x - x_.middle) / half_) : low(); }
  int64_t Row(double y) const { return std::isfinite(y) ? At((y_.middle - y) / half_) : high(); }
  int64_t low() const { return margin_; }
  int64_t high() const { return side_ - 1 - margin_; }
  bool Contains(int64_t pixel) const { return pixel > low() && pixel < high(); }

 private:
  // The pixel of a position in [-1, 1]; bounded, since a value far outside has none.
  int64_t At(double position) const {
    const double pixel =
        static_cast<double>(low()) + (position + 1) / 2 * static_cast<double>(high() - low());
    return std::lround(std::clamp(pixel, -1.0, static_cast<double>(side_)));
  }

  int64_t side_;
  int64_t margin_;
  Extent x_;
  Extent y_;
  double half_;
};

void DrawAxes(const PointsArea& area, Picture* picture) {
  const int64_t low = area.low();
  const int64_t extent = area.high() - low + 1;
  if (area.Contains(area.Column(0)))
    picture->FillRectangle(area.Column(0), low, 1, extent, kZeroLine);
  if (area.Contains(area.Row(0))) picture->FillRectangle(low, area.Row(0), extent, 1, kZeroLine);
  for (const int64_t edge : {low, area.high()}) {
    picture->FillRectangle(low, edge, extent, 1, kBox);
    picture->FillRectangle(edge, low, 1, extent, kBox);
  }
}

Picture DrawPoints(const PictureLayout& layout, const Array& samples) {
  Picture picture(layout.picture_width, layout.picture_height, kWhite);
  const PointsArea area(layout, samples);
  DrawAxes(area, &picture);
  const int64_t radius = layout.scale / 2;
  const int64_t size = 2 * radius + 1;
  for (size_t i = 0; i + 1 < samples.values.size(); i += 2) {
    const double x = samples.values[i];
    const double y = samples.values[i + 1];
    const bool finite = std::isfinite(x) && std::isfinite(y);
    picture.FillRectangle(area.Column(x) - radius, area.Row(y) - radius, size, size,
                          finite ? kPoint : kRed);
  }
  return picture;
}

}  // namespace

absl::StatusOr<PictureLayout> LayOutPicture(const v1::GetModelResponse& model, int64_t num_samples,
                                            int64_t scale) {
  const std::vector<int64_t> shape(model.image_shape().begin(), model.image_shape().end());
  PictureLayout layout{
      .scale = scale, .picture_width = kPointsSide * scale, .picture_height = kPointsSide * scale};
  if (!shape.empty()) {
    DEEPPCR_ASSIGN_OR_RETURN(layout, LayOutGrid(shape, model.output_dim(), num_samples, scale));
  } else if (model.output_dim() != 2) {
    return InvalidArgument(
        "png: this model's samples are no images (its config.json has no image_shape) "
        "and no points (",
        model.output_dim(), " values each, not 2)");
  }
  DEEPPCR_RETURN_IF_ERROR(CheckSize(layout, num_samples));
  return layout;
}

Picture DrawSamples(const PictureLayout& layout, const Array& samples) {
  return layout.height > 0 ? DrawGrid(layout, samples) : DrawPoints(layout, samples);
}

}  // namespace deeppcr
