// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_WEIGHTS_H_
#define DEEPPCR_KERNELS_MODEL_WEIGHTS_H_

// Reader of safetensors files (https://github.com/huggingface/safetensors): u64 little-endian
// length N of the header, N bytes of JSON, then the data. At least as strict as the reference
// implementation; also refused here: duplicate keys, unknown members of an entry, NUL in names,
// more than kMaxTensors tensors, rank above kMaxRank, headers above kMaxHeaderBytes. A file that
// passes has one meaning for every reader.
//
// Reads in three steps, so that each can be tested and fuzzed by itself: the header's text, the
// layout, the data.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace deeppcr {

inline constexpr int64_t kMaxHeaderBytes = int64_t{8} << 20;
inline constexpr int64_t kMaxTensors = 100'000;
inline constexpr int64_t kMaxTensorNameBytes = 256;
inline constexpr int64_t kMaxRank = 8;

// Types of whole bytes. Those behind kF64 may be in a file, but nothing of them is read.
enum class Dtype : uint8_t {
  kF16,
  kBF16,
  kF32,
  kF64,
  kBool,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI8,
  kU8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kC64,
};

// Bytes of one element.
int64_t DtypeSize(Dtype dtype);
// Name of the type as in the file: "F32".
std::string_view DtypeName(Dtype dtype);

struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;  // empty for a scalar; extents may be 0
  int64_t begin = 0;           // offset of the bytes in the data; as claimed until checked
  int64_t end = 0;
  std::span<const std::byte> data;  // its bytes, unaligned; empty until the layout is checked
};

// Elements of a tensor whose data is set.
int64_t NumElements(const TensorEntry& entry);

struct SafetensorsHeader {
  std::vector<TensorEntry> entries;  // in order of the text, `data` not set
  int64_t data_offset = 0;           // offset of the data in the file
};

// The tensors of one checked file, as views into its bytes.
class Tensors {
 public:
  // Takes entries whose data is set and whose names differ.
  explicit Tensors(std::vector<TensorEntry> entries);

  // Entries sorted by name.
  std::span<const TensorEntry> entries() const { return entries_; }
  // Tensor of this name; null if there is none.
  const TensorEntry* Find(std::string_view name) const;

 private:
  std::vector<TensorEntry> entries_;
};

// Reads the header's text: types, names, dtypes, counts. Offsets and sizes are not compared with
// anything. Errors: kInvalidArgument naming tensor and member, what was expected, what came;
// kResourceExhausted beyond the limits above.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> bytes);

// Checks that the tensors fill `data_size` bytes exactly, in any order, without gap or overlap, and
// each as its shape and dtype say. Sorts the entries by offset. Errors: kInvalidArgument naming the
// tensor.
absl::Status CheckSafetensorsLayout(std::vector<TensorEntry>& entries, int64_t data_size);

// Parses and checks header and layout, and returns views into `bytes`, which must outlive the
// result.
absl::StatusOr<Tensors> ParseSafetensors(std::span<const std::byte> bytes);
absl::StatusOr<Tensors> ParseSafetensors(std::string_view bytes);

// Converts to float32, to nearest even. `out` has as many elements as the tensor.
// Errors: kInvalidArgument naming the tensor if it is of a type that is not read, and naming tensor
// and element if a value is not finite as float32.
absl::Status ConvertToFloat(const TensorEntry& entry, std::span<float> out);
absl::StatusOr<std::vector<float>> ToFloat(const TensorEntry& entry);

// IEEE binary16 and bfloat16 bit patterns to float; exact, infinities and NaN included.
float HalfToFloat(uint16_t bits);
float BFloat16ToFloat(uint16_t bits);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_WEIGHTS_H_
