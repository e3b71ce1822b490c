// SPDX-License-Identifier: Apache-2.0
#include "client/parameter_gradients.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

constexpr size_t kMostNameBytes = 1024;

// Names go into files: printable ASCII without spaces and what JSON would have to escape.
bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kMostNameBytes && std::ranges::all_of(name, [](char c) {
    return c > ' ' && c <= '~' && c != '"' && c != '\\';
  });
}

}  // namespace

absl::Status ParameterCollector::Begin(const v1::ParameterPiece& piece) {
  if (missing_ > 0)
    return Internal("bad reply: the gradient by ", tensors_.back().name, " is cut off");
  if (!IsName(piece.name()) || tensors_.size() == kMostTensors ||
      !names_.insert(piece.name()).second)
    return Internal("bad reply: expected a new tensor, at most ", kMostTensors, ", got ",
                    Quoted(piece.name()));
  const std::vector<int64_t> shape(piece.shape().begin(), piece.shape().end());
  const auto left = (kMaxArrayBytes - bytes_) / int64_t{sizeof(float)};
  absl::StatusOr<int64_t> count = CountElements(shape, left, piece.name());
  if (!count.ok() || *count < 1 || *count != piece.total())
    return Internal("bad reply: ", piece.name(), ": expected a shape of total values, at most ",
                    left, ", got ", ShapeToString(shape), " of ", piece.total());
  // The memory grows with what comes: a shape alone is no reason for it.
  tensors_.push_back({piece.name(), {shape, {}}});
  bytes_ += *count * int64_t{sizeof(float)};
  missing_ = *count;
  return absl::OkStatus();
}

absl::Status ParameterCollector::Add(const v1::ParameterPiece& piece) {
  if (piece.offset() == 0) DEEPPCR_RETURN_IF_ERROR(Begin(piece));
  const auto count = static_cast<int64_t>(piece.data().size() / sizeof(float));
  if (tensors_.empty() || piece.name() != tensors_.back().name || count < 1 || count > missing_ ||
      piece.data().size() % sizeof(float) != 0 ||
      piece.offset() != std::ssize(tensors_.back().array.values))
    return Internal("bad reply: a piece of ", Quoted(piece.name()), " at ", piece.offset(),
                    " that does not follow the piece before");
  std::vector<float>& values = tensors_.back().array.values;
  values.resize(values.size() + static_cast<size_t>(count));
  std::memcpy(values.data() + piece.offset(), piece.data().data(), piece.data().size());
  missing_ -= count;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<NamedArray>> ParameterCollector::Take() {
  if (tensors_.empty() || missing_ > 0)
    return Internal("bad reply: gradients by parameters are missing or cut off");
  names_.clear();
  return std::exchange(tensors_, {});
}

absl::Status AddParameters(std::vector<NamedArray> more, std::vector<NamedArray>* sums) {
  if (sums->empty()) {
    *sums = std::move(more);
    return absl::OkStatus();
  }
  const auto same = [](const NamedArray& a, const NamedArray& b) {
    return a.name == b.name && a.array.shape == b.array.shape;
  };
  if (!std::ranges::equal(more, *sums, same))
    return Internal("bad reply: other parameters than those of the request before");
  for (size_t t = 0; t < more.size(); ++t) {
    std::vector<float>& to = (*sums)[t].array.values;
    for (size_t i = 0; i < to.size(); ++i) to[i] += more[t].array.values[i];
  }
  return absl::OkStatus();
}

std::string FormatSafetensors(const std::vector<NamedArray>& tensors) {
  std::string header = "{";
  size_t offset = 0;
  for (const NamedArray& each : tensors) {
    const size_t end = offset + each.array.values.size() * sizeof(float);
    header += StrCat(offset == 0 ? "" : ",", "\"", each.name, "\":{\"dtype\":\"F32\",\"shape\":[",
                     absl::StrJoin(each.array.shape, ","), "],\"data_offsets\":[", offset, ",", end,
                     "]}");
    offset = end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t size = header.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof(size));
  bytes += header;
  for (const NamedArray& each : tensors)
    bytes.append(reinterpret_cast<const char*>(each.array.values.data()),
                 each.array.values.size() * sizeof(float));
  return bytes;
}

}  // namespace deeppcr
