// SPDX-License-Identifier: Apache-2.0
// The text of a safetensors header, read piece by piece: no tree of a hostile header is built.

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/base/json.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/weights.h"

namespace deeppcr {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is used as it lies");

constexpr std::string_view kMetadataName = "__metadata__";

struct DtypeRow {
  std::string_view name;
  Dtype dtype;
  int64_t size;
};
constexpr std::array<DtypeRow, 17> kDtypes = {{
    {"F16", Dtype::kF16, 2},
    {"BF16", Dtype::kBF16, 2},
    {"F32", Dtype::kF32, 4},
    {"F64", Dtype::kF64, 8},
    {"BOOL", Dtype::kBool, 1},
    {"F8_E4M3", Dtype::kF8E4M3, 1},
    {"F8_E5M2", Dtype::kF8E5M2, 1},
    {"F8_E8M0", Dtype::kF8E8M0, 1},
    {"I8", Dtype::kI8, 1},
    {"U8", Dtype::kU8, 1},
    {"I16", Dtype::kI16, 2},
    {"U16", Dtype::kU16, 2},
    {"I32", Dtype::kI32, 4},
    {"U32", Dtype::kU32, 4},
    {"I64", Dtype::kI64, 8},
    {"U64", Dtype::kU64, 8},
    {"C64", Dtype::kC64, 8},
}};

const DtypeRow& RowOf(Dtype dtype) {
  return *std::find_if(kDtypes.begin(), kDtypes.end(),
                       [=](const DtypeRow& row) { return row.dtype == dtype; });
}

// Walks {"name": {"dtype": "F32", "shape": [..], "data_offsets": [b, e]}, .., "__metadata__":
// {..}}.
class HeaderHandler final : public JsonHandler {
 public:
  std::vector<TensorEntry> Take() { return std::move(entries_); }

  absl::Status OnStartObject() override {
    return ++depth_ <= 2 ? absl::OkStatus() : Unexpected("an object");
  }

  absl::Status OnKey(std::string key) override {
    if (depth_ == 1) return StartEntry(std::move(key));
    place_ = Place::kMember;
    return in_metadata_ ? absl::OkStatus() : StartMember(std::move(key));
  }

  absl::Status OnStartArray() override {
    ++depth_;
    if (depth_ == 3 && !in_metadata_ && member_ == "shape") return absl::OkStatus();
    if (depth_ == 3 && !in_metadata_ && member_ == "data_offsets") return absl::OkStatus();
    return Unexpected("an array");
  }

  absl::Status OnEndArray() override {
    --depth_;
    if (member_ == "data_offsets" && offsets_.size() != 2) {
      return Invalid(
          StrCat("data_offsets: expected [begin, end], got ", offsets_.size(), " numbers"));
    }
    return absl::OkStatus();
  }

  absl::Status OnEndObject() override {
    if (--depth_ == 1 && !in_metadata_) return FinishEntry();
    return absl::OkStatus();
  }

  absl::Status OnScalar(JsonScalar value) override {
    if (depth_ == 3) return OnExtent(value);
    const std::string* text = std::get_if<std::string>(&value);
    if (depth_ == 2 && in_metadata_ && text != nullptr) return absl::OkStatus();
    if (depth_ == 2 && !in_metadata_ && member_ == "dtype" && text != nullptr) {
      return SetDtype(*text);
    }
    return Unexpected(Describe(value));
  }

 private:
  static std::string Describe(const JsonScalar& value) {
    nlohmann::json described;
    std::visit([&](const auto& scalar) { described = scalar; }, value);
    return DescribeJson(described);
  }

  absl::Status Invalid(std::string_view what) const {
    if (in_metadata_) return InvalidArgument(kMetadataName, ": ", what);
    return InvalidArgument("tensor ", Quoted(entry_.name), ": ", what);
  }

  // The value of the current place has the wrong type.
  absl::Status Unexpected(std::string_view got) const {
    if (place_ == Place::kRoot) {
      return InvalidArgument("header: expected an object, got ", got);
    }
    if (place_ == Place::kEntry) return Invalid(StrCat("expected an object, got ", got));
    if (in_metadata_) return Invalid(StrCat("expected string values only, got ", got));
    const std::string_view expected =
        member_ == "dtype" ? "a string" : "an array of unsigned integers";
    return Invalid(StrCat(member_, ": expected ", expected, ", got ", got));
  }

  absl::Status StartEntry(std::string name) {
    place_ = Place::kEntry;
    in_metadata_ = name == kMetadataName;
    if (static_cast<int64_t>(name.size()) > kMaxTensorNameBytes) {
      return InvalidArgument("tensor name ", Quoted(name, 32), " has ", name.size(), " bytes; ",
                             kMaxTensorNameBytes, " are allowed");
    }
    if (name.find('\0') != std::string::npos) {
      return InvalidArgument("tensor name ", Quoted(name), " contains a NUL");
    }
    entry_ = TensorEntry();
    entry_.name = std::move(name);
    dtype_.reset();
    offsets_.clear();
    has_shape_ = has_offsets_ = false;
    return absl::OkStatus();
  }

  absl::Status StartMember(std::string key) {
    member_ = std::move(key);
    has_shape_ |= member_ == "shape";
    has_offsets_ |= member_ == "data_offsets";
    if (member_ == "dtype" || member_ == "shape" || member_ == "data_offsets") {
      return absl::OkStatus();
    }
    return Invalid(
        StrCat("unknown member ", Quoted(member_), "; expected dtype, shape and data_offsets"));
  }

  absl::Status SetDtype(std::string_view name) {
    for (const DtypeRow& row : kDtypes) {
      if (row.name == name) {
        dtype_ = row.dtype;
        return absl::OkStatus();
      }
    }
    return Invalid(StrCat("dtype ", Quoted(name), " is not known"));
  }

  // An element of shape or data_offsets.
  absl::Status OnExtent(const JsonScalar& value) {
    const uint64_t* number = std::get_if<uint64_t>(&value);
    if (number == nullptr || !std::in_range<int64_t>(*number)) {
      return Invalid(
          StrCat(member_, ": expected unsigned integers below 2^63, got ", Describe(value)));
    }
    std::vector<int64_t>& list = member_ == "shape" ? entry_.shape : offsets_;
    list.push_back(static_cast<int64_t>(*number));
    if (member_ == "shape" && static_cast<int64_t>(list.size()) > kMaxRank) {
      return Invalid(StrCat("shape: rank above ", kMaxRank));
    }
    if (member_ == "data_offsets" && list.size() > 2) {
      return Invalid("data_offsets: expected [begin, end], got more than 2 numbers");
    }
    return absl::OkStatus();
  }

  absl::Status FinishEntry() {
    if (!dtype_.has_value()) return Invalid("dtype is missing");
    if (!has_shape_) return Invalid("shape is missing");
    if (!has_offsets_) return Invalid("data_offsets is missing");
    if (static_cast<int64_t>(entries_.size()) == kMaxTensors) {
      return ResourceExhausted("more than ", kMaxTensors, " tensors; stack them per layer");
    }
    entry_.dtype = *dtype_;
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    entries_.push_back(std::move(entry_));
    return absl::OkStatus();
  }

  enum class Place { kRoot, kEntry, kMember };

  Place place_ = Place::kRoot;  // place of the next value
  int depth_ = 0;
  bool in_metadata_ = false;
  std::string member_;
  TensorEntry entry_;
  std::optional<Dtype> dtype_;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::vector<int64_t> offsets_;
  std::vector<TensorEntry> entries_;
};

// The length prefix, compared with the limit and with the file.
absl::StatusOr<int64_t> HeaderLength(std::span<const std::byte> bytes) {
  uint64_t length = 0;
  if (bytes.size() < sizeof(length)) {
    return InvalidArgument("expected at least 8 bytes for the length of the header, got ",
                           bytes.size());
  }
  std::memcpy(&length, bytes.data(), sizeof(length));
  if (length > uint64_t{kMaxHeaderBytes}) {
    return ResourceExhausted("header of ", length, " bytes; ", kMaxHeaderBytes, " are allowed");
  }
  if (length > bytes.size() - sizeof(length)) {
    return InvalidArgument("header of ", length, " bytes, but only ", bytes.size() - sizeof(length),
                           " follow its length");
  }
  return static_cast<int64_t>(length);
}

}  // namespace

int64_t DtypeSize(Dtype dtype) { return RowOf(dtype).size; }

std::string_view DtypeName(Dtype dtype) { return RowOf(dtype).name; }

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> bytes) {
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t length, HeaderLength(bytes));
  const auto text_bytes = bytes.subspan(sizeof(uint64_t), static_cast<size_t>(length));
  const std::string_view text(reinterpret_cast<const char*>(text_bytes.data()), text_bytes.size());
  HeaderHandler handler;
  DEEPPCR_RETURN_IF_ERROR(WithContext(
      WalkJson(text, {.max_bytes = kMaxHeaderBytes, .max_depth = 3}, handler), "header"));
  SafetensorsHeader header;
  header.entries = handler.Take();
  header.data_offset = static_cast<int64_t>(sizeof(uint64_t)) + length;
  return header;
}

}  // namespace deeppcr
