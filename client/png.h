// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_PNG_H_
#define DEEPPCR_CLIENT_PNG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace deeppcr {

inline constexpr int64_t kMaxPicturePixels = int64_t{1} << 26;

struct Colour {
  uint8_t red = 0;
  uint8_t green = 0;
  uint8_t blue = 0;
};

// An 8-bit RGB picture, rows from the top.
class Picture {
 public:
  // Preconditions: extents of at least 1, at most kMaxPicturePixels in all.
  Picture(int64_t width, int64_t height, Colour background);

  int64_t width() const { return width_; }
  int64_t height() const { return height_; }
  const std::vector<uint8_t>& rgb() const { return rgb_; }

  // Fills the part of the rectangle that lies within the picture.
  void FillRectangle(int64_t left, int64_t top, int64_t width, int64_t height, Colour colour);

 private:
  int64_t width_;
  int64_t height_;
  std::vector<uint8_t> rgb_;
};

// The bytes of a PNG file. Errors: kInternal with libpng's reason.
absl::StatusOr<std::string> EncodePng(const Picture& picture);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_PNG_H_
