// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/base/shape.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

absl::Status Invalid(const TensorEntry& entry, std::string_view what) {
  return InvalidArgument("tensor ", Quoted(entry.name), ": ", what);
}

std::string OffsetsString(const TensorEntry& entry) {
  return StrCat("data_offsets ", ShapeString({{entry.begin, entry.end}}));
}

// Compares the bytes that shape and dtype ask for with the bytes claimed.
absl::Status CheckSize(const TensorEntry& entry) {
  std::vector<int64_t> extents = entry.shape;
  extents.push_back(DtypeSize(entry.dtype));
  const absl::StatusOr<int64_t> bytes = CheckedProduct(extents);
  if (!bytes.ok()) {
    return Invalid(entry, StrCat("the bytes of shape ", ShapeString(entry.shape), " x ",
                                 DtypeName(entry.dtype), " overflow 64 bits"));
  }
  if (*bytes != entry.end - entry.begin) {
    return Invalid(entry, StrCat("shape ", ShapeString(entry.shape), " x ", DtypeName(entry.dtype),
                                 " takes ", *bytes, " bytes, but ", OffsetsString(entry), " holds ",
                                 entry.end - entry.begin));
  }
  return absl::OkStatus();
}

template <typename T>
T Load(std::span<const std::byte> data, size_t index) {
  T value;
  std::memcpy(&value, data.data() + index * sizeof(T), sizeof(T));
  return value;
}

// Converts all elements; returns the first index that is not finite afterwards, or the size.
template <typename T, typename Convert>
size_t ConvertElements(std::span<const std::byte> data, std::span<float> out, Convert convert) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = convert(Load<T>(data, i));
    if (!std::isfinite(out[i])) return i;
  }
  return out.size();
}

size_t ConvertByDtype(const TensorEntry& entry, std::span<float> out) {
  switch (entry.dtype) {
    case Dtype::kF16:
      return ConvertElements<uint16_t>(entry.data, out, HalfToFloat);
    case Dtype::kBF16:
      return ConvertElements<uint16_t>(entry.data, out, BFloat16ToFloat);
    case Dtype::kF32:
      return ConvertElements<float>(entry.data, out, [](float value) { return value; });
    case Dtype::kF64:
      return ConvertElements<double>(entry.data, out,
                                     [](double value) { return static_cast<float>(value); });
    default:
      return 0;  // refused before
  }
}

// A flat index as a position, e.g. 5 in [2, 3] is [1, 2].
std::string PositionString(size_t index, std::span<const int64_t> shape) {
  std::vector<int64_t> position(shape.size());
  int64_t rest = static_cast<int64_t>(index);
  for (size_t axis = shape.size(); axis-- > 0;) {
    position[axis] = rest % shape[axis];
    rest /= shape[axis];
  }
  return ShapeString(position);
}

}  // namespace

int64_t NumElements(const TensorEntry& entry) {
  return static_cast<int64_t>(entry.data.size()) / DtypeSize(entry.dtype);
}

Tensors::Tensors(std::vector<TensorEntry> entries) : entries_(std::move(entries)) {
  std::sort(entries_.begin(), entries_.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
}

const TensorEntry* Tensors::Find(std::string_view name) const {
  const auto found = std::lower_bound(
      entries_.begin(), entries_.end(), name,
      [](const TensorEntry& entry, std::string_view key) { return entry.name < key; });
  return found != entries_.end() && found->name == name ? &*found : nullptr;
}

absl::Status CheckSafetensorsLayout(std::vector<TensorEntry>& entries, int64_t data_size) {
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t covered = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.end < entry.begin) {
      return Invalid(entry, StrCat(OffsetsString(entry), ": end is before begin"));
    }
    if (entry.begin != covered) {
      return Invalid(
          entry, StrCat(OffsetsString(entry),
                        entry.begin > covered ? " leaves a gap: " : " overlaps another tensor: ",
                        "expected begin ", covered));
    }
    DEEPPCR_RETURN_IF_ERROR(CheckSize(entry));
    covered = entry.end;
  }
  if (covered == data_size) return absl::OkStatus();
  return InvalidArgument(
      "the tensors take ", covered, " bytes, but ", data_size, " bytes of data ",
      covered > data_size ? "are there (file cut short)" : "follow the header (extra bytes)");
}

absl::StatusOr<Tensors> ParseSafetensors(std::span<const std::byte> bytes) {
  DEEPPCR_ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensorsHeader(bytes));
  const auto data = bytes.subspan(static_cast<size_t>(header.data_offset));
  DEEPPCR_RETURN_IF_ERROR(
      CheckSafetensorsLayout(header.entries, static_cast<int64_t>(data.size())));
  for (TensorEntry& entry : header.entries) {
    entry.data = data.subspan(static_cast<size_t>(entry.begin),
                              static_cast<size_t>(entry.end - entry.begin));
  }
  return Tensors(std::move(header.entries));
}

absl::StatusOr<Tensors> ParseSafetensors(std::string_view bytes) {
  return ParseSafetensors(std::as_bytes(std::span<const char>(bytes)));
}

absl::Status ConvertToFloat(const TensorEntry& entry, std::span<float> out) {
  if (static_cast<int64_t>(out.size()) != NumElements(entry)) {
    return Internal("tensor \"", entry.name, "\" of ", NumElements(entry),
                    " elements converted into ", out.size());
  }
  if (entry.dtype > Dtype::kF64)
    return Invalid(entry, StrCat("dtype ", DtypeName(entry.dtype),
                                 " is not read; expected F16, BF16, F32 or F64"));
  const size_t bad = ConvertByDtype(entry, out);
  if (bad == out.size()) return absl::OkStatus();
  return Invalid(entry, StrCat("element ", PositionString(bad, entry.shape), " is ",
                               std::isnan(out[bad]) ? "NaN" : "infinite",
                               " as float32; every value must be finite"));
}

absl::StatusOr<std::vector<float>> ToFloat(const TensorEntry& entry) {
  std::vector<float> values(static_cast<size_t>(NumElements(entry)));
  DEEPPCR_RETURN_IF_ERROR(ConvertToFloat(entry, values));
  return values;
}

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1FU;
  const uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0x1F) {  // infinity or NaN
    return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  }
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in float
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  constexpr uint32_t kBiasDifference = 127 - 15;
  return std::bit_cast<float>(sign | ((exponent + kBiasDifference) << 23) | (mantissa << 13));
}

float BFloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

}  // namespace deeppcr
