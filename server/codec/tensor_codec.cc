// SPDX-License-Identifier: Apache-2.0
#include "server/codec/tensor_codec.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_join.h"
#include "kernels/base/finite.h"
#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"

namespace deeppcr {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are little-endian on the wire");
static_assert(sizeof(float) == 4);

std::string ShapeText(const google::protobuf::RepeatedField<int64_t>& shape) {
  if (shape.size() > 8) return StrCat("rank ", shape.size());
  return StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace

std::string ExpectedShape::Text() const { return StrCat("[n, ", absl::StrJoin(inner, ", "), "]"); }

absl::StatusOr<TensorInput> DecodeTensor(const v1::Tensor& tensor, const ExpectedShape& expected,
                                         int64_t low, int64_t high) {
  const auto& shape = tensor.shape();
  const bool rank = shape.size() == static_cast<int>(expected.inner.size()) + 1;
  if (!rank || !std::equal(expected.inner.begin(), expected.inner.end(), shape.begin() + 1) ||
      shape[0] < low || shape[0] > high) {
    const std::string range =
        low == high ? StrCat("n = ", low) : StrCat("n in [", low, ", ", high, "]");
    return Mismatch(StrCat(expected.field.Text(), ".shape"),
                    StrCat(expected.Text(), " with ", range), ShapeText(shape));
  }
  absl::InlinedVector<int64_t, 4> extents(shape.begin(), shape.end());
  extents.push_back(sizeof(float));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t bytes, CheckedProduct(std::span<const int64_t>(extents)));
  const std::string& data = tensor.data();
  if (static_cast<int64_t>(data.size()) != bytes) {
    return Mismatch(StrCat(expected.field.Text(), ".data"),
                    StrCat(bytes, " bytes for shape ", ShapeText(shape)),
                    StrCat(data.size(), " bytes"));
  }
  TensorInput input;
  const size_t count = data.size() / sizeof(float);
  if (reinterpret_cast<uintptr_t>(data.data()) % alignof(float) == 0) {
    input.values = {reinterpret_cast<const float*>(data.data()), count};
  } else {
    input.copy.resize(count);
    std::memcpy(input.copy.data(), data.data(), data.size());
    input.values = input.copy;
  }
  return input;
}

absl::Status CheckFinite(std::span<const float> values, const FieldName& field) {
  const size_t bad = FirstNonFinite(values);
  if (bad == values.size()) return absl::OkStatus();
  return Mismatch(StrCat(field.Text(), ".data"), "finite values",
                  StrCat(values[bad], " at flat index ", bad));
}

absl::Status AddBytes(std::initializer_list<int64_t> extents, int64_t* sum) {
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t count, CheckedProduct(extents));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t bytes, CheckedProduct({count, sizeof(float)}));
  if (__builtin_add_overflow(*sum, bytes, sum)) *sum = INT64_MAX;
  return absl::OkStatus();
}

}  // namespace deeppcr
