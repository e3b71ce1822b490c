// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CODEC_TENSOR_CODEC_H_
#define DEEPPCR_SERVER_CODEC_TENSOR_CODEC_H_

// Checks of single fields of untrusted messages. Errors are kInvalidArgument and name the field,
// what was expected and what came.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deeppcr/v1/deeppcr.pb.h"
#include "kernels/base/strings.h"

namespace deeppcr {

// A float tensor of a request: the message's own bytes, which must outlive it, or a copy if the
// bytes are not aligned.
struct TensorInput {
  std::span<const float> values;
  std::vector<float> copy;
};

template <typename Expected, typename Got>
absl::Status Mismatch(std::string_view field, const Expected& expected, const Got& got) {
  return InvalidArgument(field, ": expected ", expected, ", got ", got);
}

template <typename T>
absl::Status CheckRange(std::string_view field, T value, T low, T high) {
  // The condition is written so that NaN fails too.
  if (value >= low && value <= high) return absl::OkStatus();
  return Mismatch(field, StrCat("a number in [", low, ", ", high, "]"), StrCat(value));
}

// The extents that a field must have after the first one, which is the number of samples.
struct ExpectedShape {
  std::string field;
  std::vector<int64_t> inner;
  std::string text;  // for messages
};

// Checks shape and size, with n in [low, high], but not whether the values are finite.
absl::StatusOr<TensorInput> DecodeTensor(const v1::Tensor& tensor, const ExpectedShape& expected,
                                         int64_t low, int64_t high);

// Errors: kInvalidArgument naming the flat index of the first NaN or infinity. `field`: the
// tensor's name in the message.
absl::Status CheckFinite(std::span<const float> values, std::string_view field);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CODEC_TENSOR_CODEC_H_
