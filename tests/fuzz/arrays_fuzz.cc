// SPDX-License-Identifier: Apache-2.0
// The readers of .npy and .npz files. What is accepted is read again by plain means: sizes, values,
// and the members that an archive says it has.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "client/npy.h"
#include "client/npz.h"
#include "tests/fuzz/fuzz_target.h"

namespace deeppcr::fuzz {
namespace {

#if defined(DEEPPCR_FUZZ_PLANTED_BUG)
// Takes a file with a byte too many, as readers did that compared with the least size only.
absl::StatusOr<Array> Parse(std::string_view bytes) {
  absl::StatusOr<Array> array = ParseNpy(bytes);
  if (array.ok() || bytes.empty()) return array;
  const absl::StatusOr<Array> shorter = ParseNpy(bytes.substr(0, bytes.size() - 1));
  return shorter.ok() ? shorter : array;
}
#else
absl::StatusOr<Array> Parse(std::string_view bytes) { return ParseNpy(bytes); }
#endif

template <typename T>
T Read(std::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

// The elements of the shape. An extent may be 0 where the others overflow.
int64_t Elements(const Array& array) {
  __extension__ using Wide = unsigned __int128;
  Wide count = 1;
  for (const int64_t extent : array.shape) {
    Require(extent >= 0, "an extent is not negative");
    if (extent == 0) return 0;
    count = std::min(count * static_cast<Wide>(extent), Wide{1} << 64);
  }
  Require(count <= Wide{1} << 28, "an array has at most 2^28 elements");
  return static_cast<int64_t>(count);
}

bool SameFloat(float got, float wanted) {
  return got == wanted || (std::isnan(got) && std::isnan(wanted));
}

void RequireSameReading(const Array& array, std::string_view bytes) {
  const bool first = bytes[6] == 1;
  const size_t begin = first ? 10 : 12;
  const size_t data = begin + (first ? Read<uint16_t>(bytes, 8) : Read<uint32_t>(bytes, 8));
  Require(data <= bytes.size(), "a header lies in its file");
  const std::string_view header = bytes.substr(begin, data - begin);
  const bool eight = header.find("<f8") != header.npos || header.find("<i8") != header.npos;
  const bool real = header.find("<f") != header.npos;
  const size_t size = eight ? 8 : real ? 4 : 1;
  const auto count = static_cast<size_t>(Elements(array));
  Require(array.values.size() == count, "there are as many values as the shape says");
  Require(array.shape.size() <= 8, "the rank is at most 8");
  Require(bytes.size() - data == count * size, "a file holds its values and nothing else");
  for (size_t i = 0; i < count; ++i) {
    const size_t at = data + i * size;
    // Rounded once: 64-bit integers by way of double would be rounded twice.
    const float wanted = size == 1   ? static_cast<unsigned char>(bytes[at])
                         : size == 4 ? Read<float>(bytes, at)
                         : real      ? static_cast<float>(Read<double>(bytes, at))
                                     : static_cast<float>(Read<int64_t>(bytes, at));
    Require(SameFloat(array.values[i], wanted), "a value is that of the file, rounded");
    Require(!std::isinf(wanted) || size == 4 || std::isinf(Read<double>(bytes, at)),
            "what is finite stays finite");
  }
}

bool TryNpy(std::string_view bytes) {
  const absl::StatusOr<Array> array = Parse(bytes);
  if (!array.ok()) {
    RequireCleanRefusal(array.status());
    return false;
  }
  RequireSameReading(*array, bytes);
  const absl::StatusOr<Array> again = ParseNpy(FormatNpy(*array));
  Require(again.ok() && again->shape == array->shape, "what was read can be written");
  return true;
}

bool TryNpz(std::string_view bytes) {
  const absl::StatusOr<std::map<std::string, Array>> arrays = ParseNpz(bytes);
  if (!arrays.ok()) {
    RequireCleanRefusal(arrays.status());
    return false;
  }
  Require(arrays->size() <= 64, "an archive has at most 64 arrays");
  // The archive's own count stands in its end record, which begins with this.
  const size_t end = bytes.rfind("PK\x05\x06");
  Require(end != bytes.npos && end + 22 <= bytes.size(), "an archive has an end record");
  for (const auto& [name, array] : *arrays) {
    Require(array.values.size() == static_cast<size_t>(Elements(array)),
            "there are as many values as the shape says");
    Require(bytes.find(name + ".npy") != bytes.npos, "a name stands in the archive");
  }
  return true;
}

}  // namespace

bool TryInput(std::string_view bytes) {
  const bool npy = TryNpy(bytes), npz = TryNpz(bytes);
  return npy || npz;
}

}  // namespace deeppcr::fuzz
