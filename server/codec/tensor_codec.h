// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CODEC_TENSOR_CODEC_H_
#define DEEPPCR_SERVER_CODEC_TENSOR_CODEC_H_

// Checks of single fields of untrusted messages. Errors are kInvalidArgument and name the field,
// what was expected and what came.

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
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

// The name of a field, in two pieces: requests without an error never put it together. A view, as
// the pieces are.
struct FieldName {
  // NOLINTBEGIN(google-explicit-constructor): any text is a name.
  FieldName(std::string_view whole) : name(whole) {}
  FieldName(const char* whole) : name(whole) {}
  FieldName(const std::string& whole) : name(whole) {}
  // NOLINTEND(google-explicit-constructor)
  FieldName(std::string_view before, std::string_view last) : prefix(before), name(last) {}

  std::string Text() const { return StrCat(prefix, name); }

  std::string_view prefix, name;
};

template <typename Expected, typename Got>
absl::Status Mismatch(const FieldName& field, const Expected& expected, const Got& got) {
  return InvalidArgument(field.prefix, field.name, ": expected ", expected, ", got ", got);
}

template <typename T>
absl::Status CheckRange(const FieldName& field, T value, T low, T high) {
  // The condition is written so that NaN fails too.
  if (value >= low && value <= high) return absl::OkStatus();
  return Mismatch(field, StrCat("a number in [", low, ", ", high, "]"), StrCat(value));
}

// The extents that a field must have after the first one, which is the number of samples.
struct ExpectedShape {
  std::string Text() const;  // "[n, 16]"

  FieldName field;
  absl::InlinedVector<int64_t, 2> inner;
};

// Checks shape and size, with n in [low, high], but not whether the values are finite.
absl::StatusOr<TensorInput> DecodeTensor(const v1::Tensor& tensor, const ExpectedShape& expected,
                                         int64_t low, int64_t high);

// Adds the bytes of a float tensor. The sum saturates: anything near its limit is far above every
// limit of ours. Errors: kInvalidArgument for a product that overflows.
absl::Status AddBytes(std::initializer_list<int64_t> extents, int64_t* sum);

// Errors: kInvalidArgument naming the flat index of the first NaN or infinity. `field`: the
// tensor's name in the message.
absl::Status CheckFinite(std::span<const float> values, const FieldName& field);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CODEC_TENSOR_CODEC_H_
