// SPDX-License-Identifier: Apache-2.0
// These tests write pictures, read them back by libpng, and look at single pixels.
#include "client/sample_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>

#include <limits>

namespace deeppcr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Pixels {
  int64_t width = 0;
  int64_t height = 0;
  std::vector<uint8_t> rgb;
  std::vector<int> At(int64_t x, int64_t y) const {
    const auto first = rgb.begin() + 3 * (y * width + x);
    return {first, first + 3};
  }
  int64_t Count(const std::vector<int>& colour) const {
    int64_t count = 0;
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < width; ++x) count += At(x, y) == colour ? 1 : 0;
    }
    return count;
  }
};

Pixels ReadPng(const std::string& bytes) {
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  EXPECT_NE(png_image_begin_read_from_memory(&image, bytes.data(), bytes.size()), 0)
      << image.message;
  image.format = PNG_FORMAT_RGB;
  Pixels pixels{image.width, image.height, std::vector<uint8_t>(PNG_IMAGE_SIZE(image))};
  EXPECT_NE(png_image_finish_read(&image, nullptr, pixels.rgb.data(), 0, nullptr), 0)
      << image.message;
  return pixels;
}

v1::GetModelResponse Model(const std::vector<int64_t>& image_shape, int64_t output_dim) {
  v1::GetModelResponse model;
  model.mutable_image_shape()->Add(image_shape.begin(), image_shape.end());
  model.set_output_dim(output_dim);
  return model;
}

Pixels DrawAndRead(const v1::GetModelResponse& model, const Array& samples, int64_t scale) {
  const auto layout = LayOutPicture(model, samples.rows(), scale);
  EXPECT_TRUE(layout.ok()) << layout.status();
  const auto png = EncodePng(DrawSamples(*layout, samples));
  EXPECT_TRUE(png.ok()) << png.status();
  return ReadPng(*png);
}

std::string ErrorOf(const v1::GetModelResponse& model, int64_t samples, int64_t scale) {
  return std::string(LayOutPicture(model, samples, scale).status().message());
}

const std::vector<int> kRed = {220, 20, 20};
const std::vector<int> kSeparator = {90, 100, 130};

TEST(SamplePictureTest, GreyImagesKeepTheirPixels) {
  const Array samples{{1, 6}, {0, 0.2f, 0.4f, 0.6f, 0.8f, 1}};

  const Pixels pixels = DrawAndRead(Model({2, 3}, 6), samples, 1);

  ASSERT_EQ(pixels.width, 5);
  ASSERT_EQ(pixels.height, 4);
  EXPECT_THAT(pixels.At(1, 1), ElementsAre(0, 0, 0));
  EXPECT_THAT(pixels.At(2, 1), ElementsAre(51, 51, 51));
  EXPECT_THAT(pixels.At(1, 2), ElementsAre(153, 153, 153));
  EXPECT_THAT(pixels.At(3, 2), ElementsAre(255, 255, 255));
  EXPECT_EQ(pixels.Count(kSeparator), 20 - 6);
}

TEST(SamplePictureTest, ValuesBeyondAreClippedAndNanIsRed) {
  const Array samples{{1, 4}, {-3, 7, kInfinity, kNan}};

  const Pixels pixels = DrawAndRead(Model({1, 4}, 4), samples, 1);

  EXPECT_THAT(pixels.At(1, 1), ElementsAre(0, 0, 0));
  EXPECT_THAT(pixels.At(2, 1), ElementsAre(255, 255, 255));
  EXPECT_THAT(pixels.At(3, 1), ElementsAre(255, 255, 255));
  EXPECT_EQ(pixels.At(4, 1), kRed);
}

TEST(SamplePictureTest, ColourImages) {
  const Array samples{{1, 6}, {1, 0, 0.2f, 0, kNan, 0}};

  const Pixels pixels = DrawAndRead(Model({1, 2, 3}, 6), samples, 1);

  EXPECT_THAT(pixels.At(1, 1), ElementsAre(255, 0, 51));
  EXPECT_EQ(pixels.At(2, 1), kRed);
}

TEST(SamplePictureTest, OneChannelIsGrey) {
  const Pixels pixels = DrawAndRead(Model({1, 1, 1}, 1), {{1, 1}, {1}}, 1);

  EXPECT_THAT(pixels.At(1, 1), ElementsAre(255, 255, 255));
}

TEST(SamplePictureTest, ScaleRepeatsPixelsButNotSeparators) {
  const Array samples{{1, 2}, {0, 1}};

  const Pixels pixels = DrawAndRead(Model({1, 2}, 2), samples, 3);

  ASSERT_EQ(pixels.width, 8);
  ASSERT_EQ(pixels.height, 5);
  for (int64_t y = 1; y < 4; ++y) {
    for (int64_t x = 1; x < 7; ++x) EXPECT_EQ(pixels.At(x, y)[0], x < 4 ? 0 : 255);
  }
  EXPECT_EQ(pixels.At(0, 2), kSeparator);
  EXPECT_EQ(pixels.At(7, 2), kSeparator);
}

TEST(SamplePictureTest, TheGridIsCloseToSquareInReadingOrder) {
  Array samples{{5, 1}, {}};
  for (int i = 0; i < 5; ++i) samples.values.push_back(static_cast<float>(i) / 5);

  const Pixels pixels = DrawAndRead(Model({1, 1}, 1), samples, 1);

  ASSERT_EQ(pixels.width, 7);   // three columns
  ASSERT_EQ(pixels.height, 5);  // two rows
  for (int i = 0; i < 5; ++i) EXPECT_EQ(pixels.At(1 + 2 * (i % 3), 1 + 2 * (i / 3))[0], 51 * i);
  EXPECT_EQ(pixels.At(5, 3), kSeparator);  // no sample there
}

TEST(SamplePictureTest, WideImagesStackUp) {
  const auto layout = LayOutPicture(Model({2, 20}, 40), 12, 1).value();

  EXPECT_EQ(layout.columns, 2);
}

TEST(SamplePictureTest, PointsLieWhereTheyShould) {
  // The samples are the corners of a square around 0.
  const Array samples{{4, 2}, {-1, -1, 1, -1, 1, 1, -1, 1}};

  const Pixels pixels = DrawAndRead(Model({}, 2), samples, 1);

  ASSERT_EQ(pixels.width, 128);
  ASSERT_EQ(pixels.height, 128);
  const std::vector<int> point = {30, 90, 180};
  EXPECT_EQ(pixels.Count(point), 4);
  EXPECT_EQ(pixels.Count(kRed), 0);
  // Points are 4 + (1 - 1 / 1.05) / 2 * 119 pixels from one side, and as far from the other.
  for (const int64_t x : {7, 120}) {
    for (const int64_t y : {7, 120}) EXPECT_EQ(pixels.At(x, y), point);
  }
  EXPECT_THAT(pixels.At(4, 60), ElementsAre(60, 60, 60));
  EXPECT_THAT(pixels.At(60, 123), ElementsAre(60, 60, 60));
  EXPECT_THAT(pixels.At(0, 0), ElementsAre(255, 255, 255));
}

TEST(SamplePictureTest, PointsThatAreNotFiniteAreRedAtTheEdge) {
  const Array samples{{3, 2}, {0, 0, kNan, 0, 0, -kInfinity}};

  const Pixels pixels = DrawAndRead(Model({}, 2), samples, 1);

  EXPECT_EQ(pixels.Count(kRed), 2);
  EXPECT_EQ(pixels.At(4, 64), kRed);
  EXPECT_EQ(pixels.At(64, 123), kRed);
}

TEST(SamplePictureTest, NoFinitePointAtAll) {
  const Pixels pixels = DrawAndRead(Model({}, 2), {{1, 2}, {kNan, kNan}}, 2);

  EXPECT_EQ(pixels.Count(kRed), 9);
}

TEST(SamplePictureTest, RefusesWhatIsNoPicture) {
  EXPECT_THAT(ErrorOf(Model({}, 16), 1, 1), HasSubstr("no images"));
  EXPECT_THAT(ErrorOf(Model({}, 16), 1, 1), HasSubstr("16 values each, not 2"));
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{4},
                                            {2, 2, 2},
                                            {2, 3},
                                            {0, 4},
                                            {-2, -2},
                                            {1, 1, 2, 2},
                                            {int64_t{1} << 62, 4}}) {
    EXPECT_THAT(ErrorOf(Model(shape, 4), 1, 1), HasSubstr("png: expected images [height, width]"));
  }
}

TEST(SamplePictureTest, RefusesPicturesThatAreTooLarge) {
  EXPECT_EQ(ErrorOf(Model({8, 8}, 64), 10'000'000, 1),
            "png: 10000000 samples at --scale 1 make a picture of 28468 x 28459 pixels, more than "
            "the 67108864 allowed: take a smaller scale, or draw fewer samples");
  EXPECT_TRUE(LayOutPicture(Model({}, 2), 10'000'000, 64).ok());
}

}  // namespace
}  // namespace deeppcr
