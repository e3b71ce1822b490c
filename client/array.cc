// SPDX-License-Identifier: Apache-2.0
#include "client/array.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_join.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

static_assert(std::endian::native == std::endian::little,
              "tensors and .npy files are copied byte for byte as little-endian values");

}  // namespace

int64_t Array::row_size() const {
  int64_t size = 1;
  for (size_t i = 1; i < shape.size(); ++i) size *= shape[i];
  return size;
}

absl::StatusOr<int64_t> CountElements(std::span<const int64_t> shape, int64_t max_elements,
                                      std::string_view what) {
  if (shape.size() > kMaxArrayRank) {
    return InvalidArgument(what, ": expected at most ", kMaxArrayRank, " dimensions, got ",
                           shape.size());
  }
  for (const int64_t extent : shape) {
    if (extent >= 0) continue;
    return InvalidArgument(what, ": expected extents of at least 0, got ", ShapeToString(shape));
  }
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent > max_elements / count) {
      return InvalidArgument(what, ": shape ", ShapeToString(shape), " has more than the ",
                             max_elements, " elements allowed");
    }
    count *= extent;
  }
  return count;
}

std::string ShapeToString(std::span<const int64_t> shape) {
  return StrCat("[", absl::StrJoin(shape, ", "), "]");
}

void RowsToTensor(const Array& array, int64_t begin, int64_t count, v1::Tensor* tensor) {
  tensor->clear_shape();
  tensor->add_shape(count);
  for (size_t i = 1; i < array.shape.size(); ++i) tensor->add_shape(array.shape[i]);
  const size_t row_bytes = static_cast<size_t>(array.row_size()) * sizeof(float);
  const float* first = array.values.data() + begin * array.row_size();
  std::string* data = tensor->mutable_data();
  data->resize(static_cast<size_t>(count) * row_bytes);
  if (!data->empty()) std::memcpy(data->data(), first, data->size());
}

absl::StatusOr<Array> TensorToArray(const v1::Tensor& tensor, std::string_view what) {
  Array array;
  array.shape.assign(tensor.shape().begin(), tensor.shape().end());
  const int64_t limit = kMaxArrayBytes / static_cast<int64_t>(sizeof(float));
  const absl::StatusOr<int64_t> count = CountElements(array.shape, limit, what);
  if (!count.ok()) {
    return Internal("bad reply: ", count.status().message());
  }
  const size_t bytes = static_cast<size_t>(*count) * sizeof(float);
  if (tensor.data().size() != bytes) {
    return Internal("bad reply: ", what, ": shape ", ShapeToString(array.shape), " takes ", bytes,
                    " bytes, got ", tensor.data().size());
  }
  array.values.resize(static_cast<size_t>(*count));
  if (bytes > 0) std::memcpy(array.values.data(), tensor.data().data(), bytes);
  return array;
}

absl::Status AppendRows(const Array& more, Array* array) {
  if (array->shape.empty()) {
    *array = more;
    return absl::OkStatus();
  }
  const bool same = more.shape.size() == array->shape.size() &&
                    std::equal(more.shape.begin() + 1, more.shape.end(), array->shape.begin() + 1);
  if (!same) {
    return Internal("bad reply: rows of ", ShapeToString(more.shape), " after rows of ",
                    ShapeToString(array->shape));
  }
  array->shape[0] += more.shape[0];
  array->values.insert(array->values.end(), more.values.begin(), more.values.end());
  return absl::OkStatus();
}

}  // namespace deeppcr
