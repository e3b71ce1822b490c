// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_SAMPLE_PICTURE_H_
#define DEEPPCR_CLIENT_SAMPLE_PICTURE_H_

// Pictures of a diffusion model's samples.

#include <cstdint>

#include "absl/status/statusor.h"
#include "client/array.h"
#include "client/png.h"
#include "deeppcr/v1/deeppcr.pb.h"

namespace deeppcr {

// The layout of a picture: images as a grid, pairs of numbers as points.
struct PictureLayout {
  int64_t scale = 1;
  int64_t picture_width = 0;
  int64_t picture_height = 0;
  // Extents of each image, and columns of the grid; height 0: points.
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 1;
  int64_t columns = 1;
};

// A grid, close to square, if the model says that its samples are images; points if samples are two
// numbers. scale, at least 1: the side of the square drawn for a pixel of a sample; a picture of
// points is 128 * scale pixels on a side.
// Errors: kInvalidArgument for a model of other samples, and if the picture would be too large.
absl::StatusOr<PictureLayout> LayOutPicture(const v1::GetModelResponse& model, int64_t num_samples,
                                            int64_t scale);

// Draws samples [n, output_dim]; model and n as given to LayOutPicture. In a grid 0 is black, 1 is
// white, values beyond are clipped, and NaN is red. Points that are not finite are red marks at the
// lower and left edges.
Picture DrawSamples(const PictureLayout& layout, const Array& samples);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_SAMPLE_PICTURE_H_
