// SPDX-License-Identifier: Apache-2.0
#include "client/png.h"

#include <png.h>

#include <algorithm>

#include "kernels/base/strings.h"

namespace deeppcr {

Picture::Picture(int64_t width, int64_t height, Colour background)
    : width_(width), height_(height), rgb_(static_cast<size_t>(3 * width * height)) {
  FillRectangle(0, 0, width, height, background);
}

void Picture::FillRectangle(int64_t left, int64_t top, int64_t width, int64_t height,
                            Colour colour) {
  const int64_t right = std::min(left + width, width_);
  const int64_t bottom = std::min(top + height, height_);
  for (int64_t y = std::max<int64_t>(top, 0); y < bottom; ++y) {
    for (int64_t x = std::max<int64_t>(left, 0); x < right; ++x) {
      uint8_t* pixel = rgb_.data() + 3 * (y * width_ + x);
      pixel[0] = colour.red;
      pixel[1] = colour.green;
      pixel[2] = colour.blue;
    }
  }
}

absl::StatusOr<std::string> EncodePng(const Picture& picture) {
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(picture.width());
  image.height = static_cast<png_uint_32>(picture.height());
  image.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string bytes(size, '\0');
  if (png_image_write_to_memory(&image, bytes.data(), &size, 0, picture.rgb().data(), 0, nullptr) ==
      0) {
    return Internal("png: ", image.message);
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace deeppcr
