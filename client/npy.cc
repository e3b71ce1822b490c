// SPDX-License-Identifier: Apache-2.0
#include "client/npy.h"

#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxHeaderBytes = 64 << 10;

absl::Status Error(const std::string& message) { return InvalidArgument("npy: ", message); }

struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;
};

// Reads the Python dictionary literal of a header: three known keys, in any order, each once.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  absl::StatusOr<Header> Parse() {
    Header header;
    if (!Take('{')) return Unexpected("'{'");
    while (!Take('}')) {
      DEEPPCR_RETURN_IF_ERROR(ParseEntry(&header));
      if (Take(',')) continue;
      if (!Take('}')) return Unexpected("',' or '}'");
      break;
    }
    SkipBlanks();
    if (position_ != text_.size()) return Unexpected("the end of the header");
    if (!header.descr || !header.fortran_order || !header.shape) {
      return Error("header: expected the keys descr, fortran_order and shape");
    }
    return header;
  }

 private:
  absl::Status ParseEntry(Header* header) {
    DEEPPCR_ASSIGN_OR_RETURN(const std::string key, ParseString());
    if (!Take(':')) return Unexpected("':'");
    if (key == "descr") return Store(ParseDescr(), "descr", &header->descr);
    if (key == "fortran_order") return Store(ParseBool(), "fortran_order", &header->fortran_order);
    if (key == "shape") return Store(ParseShape(), "shape", &header->shape);
    return Error(StrCat("header: expected the keys descr, fortran_order and shape, got '",
                        absl::CHexEscape(key), "'"));
  }

  template <typename T>
  static absl::Status Store(absl::StatusOr<T> value, const char* key, std::optional<T>* target) {
    if (!value.ok()) return value.status();
    if (target->has_value()) return Error(StrCat("header: key ", key, " came twice"));
    *target = *std::move(value);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ParseDescr() {
    SkipBlanks();
    if (position_ < text_.size() && text_[position_] == '[') {
      return Error("descr: expected '<f4', '<f8', '<i8' or '|u1', got a structured type");
    }
    return ParseString();
  }

  absl::StatusOr<std::string> ParseString() {
    SkipBlanks();
    const char quote = position_ < text_.size() ? text_[position_] : '\0';
    if (quote != '\'' && quote != '"') return Unexpected("a quoted name");
    const size_t end = text_.find(quote, position_ + 1);
    if (end == std::string_view::npos) return Unexpected("a closing quote");
    std::string value(text_.substr(position_ + 1, end - position_ - 1));
    if (value.size() > 64) return Error("header: a name of more than 64 characters");
    position_ = end + 1;
    return value;
  }

  absl::StatusOr<bool> ParseBool() {
    if (TakeWord("False")) return false;
    if (TakeWord("True")) return true;
    return Unexpected("True or False");
  }

  absl::StatusOr<std::vector<int64_t>> ParseShape() {
    std::vector<int64_t> shape;
    if (!Take('(')) return Unexpected("'('");
    bool comma = true;
    while (!Take(')')) {
      if (!comma) return Unexpected("',' or ')'");
      DEEPPCR_ASSIGN_OR_RETURN(const int64_t extent, ParseExtent());
      shape.push_back(extent);
      if (shape.size() > kMaxArrayRank) {
        return Error(StrCat("shape: expected at most ", kMaxArrayRank, " dimensions"));
      }
      comma = Take(',');
    }
    if (shape.size() == 1 && !comma) return Error("shape: expected a tuple such as (3,)");
    return shape;
  }

  absl::StatusOr<int64_t> ParseExtent() {
    SkipBlanks();
    const size_t begin = position_;
    while (position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9') {
      ++position_;
    }
    const std::string digits(text_.substr(begin, position_ - begin));
    int64_t extent = 0;
    if (digits.empty()) return Unexpected("an extent of at least 0");
    if (digits.size() > 19 || !absl::SimpleAtoi(digits, &extent)) {
      return Error(StrCat("shape: extent ", digits.substr(0, 40), " is too large"));
    }
    return extent;
  }

  void SkipBlanks() {
    while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\n')) {
      ++position_;
    }
  }

  bool Take(char c) {
    SkipBlanks();
    if (position_ >= text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }

  bool TakeWord(std::string_view word) {
    SkipBlanks();
    if (text_.substr(position_, word.size()) != word) return false;
    position_ += word.size();
    return true;
  }

  absl::Status Unexpected(const char* expected) const {
    const std::string got(text_.substr(position_, 16));
    return Error(StrCat("header: expected ", expected, " at offset ", position_, ", got '",
                        absl::CHexEscape(got), "'"));
  }

  const std::string_view text_;
  size_t position_ = 0;
};

struct Split {
  std::string_view header;
  std::string_view data;
};

size_t LittleEndian(std::string_view bytes) {
  size_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

absl::StatusOr<Split> SplitFile(std::string_view bytes) {
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return Error(StrCat("not a .npy file: expected it to begin with \\x93NUMPY, got '",
                        absl::CHexEscape(std::string(bytes.substr(0, 6))), "'"));
  }
  bytes.remove_prefix(kMagic.size());
  if (bytes.size() < 2) return Error("file ends within the version");
  const int major = bytes[0];
  if (!(major == 1 || major == 2) || bytes[1] != 0) {
    return Error(StrCat("expected format version 1.0 or 2.0, got ",
                        LittleEndian(bytes.substr(0, 1)), ".", LittleEndian(bytes.substr(1, 1))));
  }
  bytes.remove_prefix(2);
  const size_t width = major == 1 ? 2 : 4;
  if (bytes.size() < width) return Error("file ends within the header's length");
  const size_t length = LittleEndian(bytes.substr(0, width));
  bytes.remove_prefix(width);
  if (length > kMaxHeaderBytes) {
    return Error(StrCat("header: expected at most ", kMaxHeaderBytes, " bytes, got ", length));
  }
  if (length > bytes.size()) {
    return Error(StrCat("header: ", length, " bytes announced, ", bytes.size(), " there"));
  }
  return Split{bytes.substr(0, length), bytes.substr(length)};
}

// Copies values of type T to floats. Fails where rounding a finite value makes it infinite.
template <typename T>
absl::Status Convert(std::string_view data, std::vector<float>* values) {
  for (size_t i = 0; i < values->size(); ++i) {
    T value;
    std::memcpy(&value, data.data() + i * sizeof(T), sizeof(T));
    const float rounded = static_cast<float>(value);
    if (std::isinf(rounded) && std::isfinite(static_cast<double>(value))) {
      return Error(
          StrCat("element ", i, ": ", static_cast<double>(value), " is beyond the range of float"));
    }
    (*values)[i] = rounded;
  }
  return absl::OkStatus();
}

struct ElementType {
  std::string_view descr;
  size_t bytes;
  absl::Status (*convert)(std::string_view, std::vector<float>*);
};

constexpr ElementType kElementTypes[] = {
    {"<f4", 4, Convert<float>},
    {"<f8", 8, Convert<double>},
    {"<i8", 8, Convert<int64_t>},
    {"|u1", 1, Convert<uint8_t>},
};

absl::StatusOr<ElementType> FindType(const std::string& descr) {
  for (const ElementType& type : kElementTypes) {
    if (type.descr == descr) return type;
  }
  const char* kind = !descr.empty() && descr[0] == '>' ? "the big-endian type '" : "'";
  return Error(StrCat("descr: expected '<f4', '<f8', '<i8' or '|u1', got ", kind,
                      absl::CHexEscape(descr), "'; convert with x.astype('<f4')"));
}

// A whole file: a header, then the values as they lie in memory.
std::string FormatFile(const char* descr, std::span<const int64_t> shape, const void* data,
                       size_t data_bytes) {
  // A tuple of one needs its comma.
  const std::string extents =
      StrCat("(", absl::StrJoin(shape, ", "), shape.size() == 1 ? ",)" : ")");
  std::string header =
      StrCat("{'descr': '", descr, "', 'fortran_order': False, 'shape': ", extents, ", }");
  const size_t prefix = kMagic.size() + 4;
  // Data begins at a multiple of 64 bytes, as NumPy writes it.
  header.append(63 - (prefix + header.size()) % 64, ' ');
  header.push_back('\n');
  std::string bytes(kMagic);
  bytes.append({'\x01', '\x00', static_cast<char>(header.size() & 0xff),
                static_cast<char>(header.size() >> 8)});
  bytes += header;
  const size_t begin = bytes.size();
  bytes.resize(begin + data_bytes);
  if (data_bytes > 0) std::memcpy(bytes.data() + begin, data, data_bytes);
  return bytes;
}

}  // namespace

absl::StatusOr<Array> ParseNpy(std::string_view bytes) {
  DEEPPCR_ASSIGN_OR_RETURN(const Split split, SplitFile(bytes));
  DEEPPCR_ASSIGN_OR_RETURN(const Header header, HeaderParser(split.header).Parse());
  DEEPPCR_ASSIGN_OR_RETURN(const ElementType type, FindType(*header.descr));
  if (*header.fortran_order) {
    return Error("fortran_order: expected False, got True; convert with np.ascontiguousarray(x)");
  }
  Array array{*header.shape, {}};
  DEEPPCR_ASSIGN_OR_RETURN(
      const int64_t count,
      CountElements(array.shape, kMaxArrayBytes / static_cast<int64_t>(sizeof(float)),
                    "npy: shape"));
  const size_t expected = static_cast<size_t>(count) * type.bytes;
  if (split.data.size() != expected) {
    return Error(StrCat("data: shape ", ShapeToString(array.shape), " of '", *header.descr,
                        "' takes ", expected, " bytes, got ", split.data.size()));
  }
  array.values.resize(static_cast<size_t>(count));
  DEEPPCR_RETURN_IF_ERROR(type.convert(split.data, &array.values));
  return array;
}

std::string FormatNpy(const Array& array) {
  return FormatFile("<f4", array.shape, array.values.data(), array.values.size() * sizeof(float));
}

std::string FormatNpy(const std::vector<int64_t>& values) {
  const int64_t shape[] = {static_cast<int64_t>(values.size())};
  return FormatFile("<i8", shape, values.data(), values.size() * sizeof(int64_t));
}

}  // namespace deeppcr
