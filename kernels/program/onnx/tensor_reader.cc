// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/onnx/tensor_reader.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/onnx/shape_size.h"

namespace deeppcr::program {
namespace {

static_assert(std::endian::native == std::endian::little, "raw data is used as it lies");

using onnx::TensorProto;

struct TypeRow {
  int32_t data_type;
  const char* name;
  int64_t size;  // bytes of one element of raw data; 0: not taken
  OnnxType type;

  // Bytes of one of Numbers, which has doubles for all but floats of at most 32 bits.
  int64_t size_in_memory() const { return type == OnnxType::kFloat && size <= 4 ? 4 : 8; }
};

constexpr TypeRow kTypes[] = {
    {TensorProto::FLOAT, "FLOAT", 4, OnnxType::kFloat},
    {TensorProto::DOUBLE, "DOUBLE", 8, OnnxType::kFloat},
    {TensorProto::FLOAT16, "FLOAT16", 2, OnnxType::kFloat},
    {TensorProto::BFLOAT16, "BFLOAT16", 2, OnnxType::kFloat},
    {TensorProto::INT64, "INT64", 8, OnnxType::kInteger},
    {TensorProto::INT32, "INT32", 4, OnnxType::kInteger},
    {TensorProto::INT16, "INT16", 2, OnnxType::kInteger},
    {TensorProto::INT8, "INT8", 1, OnnxType::kInteger},
    {TensorProto::UINT8, "UINT8", 1, OnnxType::kInteger},
    {TensorProto::BOOL, "BOOL", 1, OnnxType::kBool},
};

absl::StatusOr<const TypeRow*> RowOf(int32_t data_type) {
  for (const TypeRow& row : kTypes) {
    if (row.data_type == data_type) return &row;
  }
  return InvalidArgument(
      "element type ",
      TensorProto::DataType_IsValid(data_type)
          ? TensorProto::DataType_Name(static_cast<TensorProto::DataType>(data_type))
          : StrCat(data_type),
      " is not taken; expected FLOAT, DOUBLE, FLOAT16, BFLOAT16, INT64, INT32, INT16, INT8, UINT8 "
      "or BOOL");
}

float FloatOfBfloat16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

float FloatOfFloat16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const auto mantissa = static_cast<float>(bits & 1023);
  float value = 0;
  if (exponent == 31) {
    value = mantissa == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, -24);
  } else {
    value = std::ldexp(mantissa + 1024, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

// Elements of raw data, each `Stored` as it lies there.
template <typename Stored, typename Result, typename Convert>
std::shared_ptr<const std::vector<Result>> FromRaw(std::string_view raw, Convert convert) {
  auto result = std::make_shared<std::vector<Result>>(raw.size() / sizeof(Stored));
  for (size_t i = 0; i < result->size(); ++i) {
    Stored stored;
    std::memcpy(&stored, raw.data() + i * sizeof(Stored), sizeof(Stored));
    (*result)[i] = convert(stored);
  }
  return result;
}

template <typename Stored>
Numbers DoublesFromRaw(std::string_view raw) {
  return {.doubles = FromRaw<Stored, double>(
              raw, [](Stored stored) { return static_cast<double>(stored); })};
}

Numbers NumbersFromRaw(int32_t data_type, std::string_view raw) {
  switch (data_type) {
    case TensorProto::FLOAT:
      return {.floats = FromRaw<float, float>(raw, [](float stored) { return stored; })};
    case TensorProto::FLOAT16:
      return {.floats = FromRaw<uint16_t, float>(raw, FloatOfFloat16)};
    case TensorProto::BFLOAT16:
      return {.floats = FromRaw<uint16_t, float>(raw, FloatOfBfloat16)};
    case TensorProto::DOUBLE:
      return DoublesFromRaw<double>(raw);
    case TensorProto::INT64:
      return DoublesFromRaw<int64_t>(raw);
    case TensorProto::INT32:
      return DoublesFromRaw<int32_t>(raw);
    case TensorProto::INT16:
      return DoublesFromRaw<int16_t>(raw);
    case TensorProto::INT8:
      return DoublesFromRaw<int8_t>(raw);
    case TensorProto::UINT8:
      return DoublesFromRaw<uint8_t>(raw);
    default:
      return {.doubles = FromRaw<uint8_t, double>(
                  raw, [](uint8_t stored) { return stored != 0 ? 1.0 : 0.0; })};
  }
}

template <typename Result, typename Field, typename Convert>
std::shared_ptr<const std::vector<Result>> FromField(const Field& field, Convert convert) {
  auto result = std::make_shared<std::vector<Result>>(static_cast<size_t>(field.size()));
  std::transform(field.begin(), field.end(), result->begin(), convert);
  return result;
}

template <typename Field>
Numbers DoublesFromField(const Field& field) {
  return {.doubles =
              FromField<double>(field, [](auto stored) { return static_cast<double>(stored); })};
}

// Elements of the field of numbers in which the type's are, of `*size`.
Numbers NumbersFromField(const TensorProto& proto, int64_t& size) {
  switch (proto.data_type()) {
    case TensorProto::FLOAT:
      size = proto.float_data_size();
      return {.floats = FromField<float>(proto.float_data(), [](float stored) { return stored; })};
    case TensorProto::FLOAT16:
      size = proto.int32_data_size();
      return {.floats = FromField<float>(proto.int32_data(), [](int32_t stored) {
                return FloatOfFloat16(static_cast<uint16_t>(stored));
              })};
    case TensorProto::BFLOAT16:
      size = proto.int32_data_size();
      return {.floats = FromField<float>(proto.int32_data(), [](int32_t stored) {
                return FloatOfBfloat16(static_cast<uint16_t>(stored));
              })};
    case TensorProto::DOUBLE:
      size = proto.double_data_size();
      return DoublesFromField(proto.double_data());
    case TensorProto::INT64:
      size = proto.int64_data_size();
      return DoublesFromField(proto.int64_data());
    case TensorProto::BOOL:
      size = proto.int32_data_size();
      return {.doubles = FromField<double>(proto.int32_data(),
                                           [](int32_t stored) { return stored != 0 ? 1.0 : 0.0; })};
    default:
      size = proto.int32_data_size();
      return DoublesFromField(proto.int32_data());
  }
}

absl::Status RefuseNan(const Numbers& numbers) {
  const auto has_nan = [](const auto* elements) {
    return elements != nullptr && std::any_of(elements->begin(), elements->end(),
                                              [](auto element) { return std::isnan(element); });
  };
  if (has_nan(numbers.floats.get()) || has_nan(numbers.doubles.get())) {
    return InvalidArgument("an element is NaN");
  }
  return absl::OkStatus();
}

absl::Status CheckSize(int64_t got, int64_t expected, std::span<const int64_t> shape,
                       std::string_view unit) {
  if (got == expected) return absl::OkStatus();
  return InvalidArgument("shape ", ShapeString(shape), " needs ", expected, " ", unit, ", got ",
                         got);
}

struct External {
  std::string location;
  int64_t offset = 0;
  int64_t length = -1;  // not given
};

absl::StatusOr<int64_t> ParsePosition(const std::string& key, const std::string& text) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) {
    return InvalidArgument("external data: ", key, ": expected a number below 2^63, got ",
                           Quoted(text));
  }
  return number;
}

absl::StatusOr<External> ParseExternal(const TensorProto& proto) {
  External external;
  for (const auto& entry : proto.external_data()) {
    if (entry.key() == "location") external.location = entry.value();
    if (entry.key() == "offset") {
      DEEPPCR_ASSIGN_OR_RETURN(external.offset, ParsePosition(entry.key(), entry.value()));
    }
    if (entry.key() == "length") {
      DEEPPCR_ASSIGN_OR_RETURN(external.length, ParsePosition(entry.key(), entry.value()));
    }
  }
  return external;
}

absl::Status CheckLocation(const std::string& location, const OnnxLimits& limits) {
  DEEPPCR_RETURN_IF_ERROR(CheckOnnxName(location, "the external data's file", limits));
  if (location.empty() || location == "." || location == ".." ||
      location.find_first_of("/\\") != std::string::npos) {
    return InvalidArgument("external data in ", Quoted(location),
                           "; expected the name of a file in the same folder");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OnnxType> TypeOfElements(int32_t data_type) {
  DEEPPCR_ASSIGN_OR_RETURN(const TypeRow* row, RowOf(data_type));
  return row->type;
}

absl::Status CheckOnnxName(std::string_view name, std::string_view what, const OnnxLimits& limits) {
  if (static_cast<int64_t>(name.size()) > limits.max_name_bytes) {
    return ResourceExhausted("the name of ", what, ", ", Quoted(name, 32), ", has ", name.size(),
                             " bytes; ", limits.max_name_bytes, " are allowed");
  }
  if (name.find('\0') != std::string_view::npos) {
    return InvalidArgument("the name of ", what, ", ", Quoted(name), ", contains a NUL");
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> OnnxTensorReader::CheckedElements(std::span<const int64_t> shape) {
  if (static_cast<int64_t>(shape.size()) > limits_.max_rank) {
    return ResourceExhausted("rank ", shape.size(), "; ", limits_.max_rank, " is allowed");
  }
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t elements, CheckedSize(shape));
  if (elements > limits_.max_elements - elements_) {
    return ResourceExhausted("shape ", ShapeString(shape), ": more than ", limits_.max_elements,
                             " elements in all tensors");
  }
  elements_ += elements;
  return elements;
}

absl::StatusOr<OnnxTensor> OnnxTensorReader::Read(TensorProto& proto) {
  DEEPPCR_ASSIGN_OR_RETURN(const TypeRow* row, RowOf(proto.data_type()));
  if (proto.has_segment()) return InvalidArgument("segments of tensors are not taken");
  OnnxTensor tensor;
  tensor.type = row->type;
  if (proto.dims_size() > limits_.max_rank) {
    return ResourceExhausted("rank ", proto.dims_size(), "; ", limits_.max_rank, " is allowed");
  }
  tensor.shape.assign(proto.dims().begin(), proto.dims().end());
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t elements, CheckedElements(tensor.shape));
  const int64_t size = elements * row->size;
  if (limits_.memory != nullptr)
    DEEPPCR_RETURN_IF_ERROR(limits_.memory->Add(elements * row->size_in_memory()));
  if (proto.data_location() == TensorProto::EXTERNAL) {
    DEEPPCR_ASSIGN_OR_RETURN(const std::string_view bytes, ExternalBytes(proto, size));
    tensor.numbers = NumbersFromRaw(row->data_type, bytes);
  } else if (proto.has_raw_data()) {
    const std::unique_ptr<std::string> raw(proto.release_raw_data());
    DEEPPCR_RETURN_IF_ERROR(
        CheckSize(static_cast<int64_t>(raw->size()), size, tensor.shape, "bytes"));
    tensor.numbers = NumbersFromRaw(row->data_type, *raw);
    DEEPPCR_RETURN_IF_ERROR(of_messages_.Set(std::max<int64_t>(0, of_messages_.bytes() - size)));
  } else {
    int64_t got = 0;
    tensor.numbers = NumbersFromField(proto, got);
    DEEPPCR_RETURN_IF_ERROR(CheckSize(got, elements, tensor.shape, "numbers"));
  }
  DEEPPCR_RETURN_IF_ERROR(RefuseNan(tensor.numbers));
  return tensor;
}

absl::StatusOr<std::string_view> OnnxTensorReader::ExternalBytes(const TensorProto& proto,
                                                                 int64_t size) {
  DEEPPCR_ASSIGN_OR_RETURN(const External external, ParseExternal(proto));
  DEEPPCR_RETURN_IF_ERROR(CheckLocation(external.location, limits_));
  DEEPPCR_RETURN_IF_ERROR(LoadExternalFile(external.location));
  if (external.length >= 0 && external.length != size) {
    return InvalidArgument("external data of ", external.length, " bytes; the shape needs ", size);
  }
  const auto available = static_cast<int64_t>(external_bytes_.size());
  if (external.offset > available || size > available - external.offset) {
    return InvalidArgument("external data of ", size, " bytes at offset ", external.offset,
                           ", but ", Quoted(external.location), " has ", available, " bytes");
  }
  return std::string_view(external_bytes_)
      .substr(static_cast<size_t>(external.offset), static_cast<size_t>(size));
}

absl::Status OnnxTensorReader::LoadExternalFile(const std::string& name) {
  if (name == external_name_) return absl::OkStatus();
  if (!external_name_.empty()) {
    return InvalidArgument("external data in ", Quoted(external_name_), " and in ", Quoted(name),
                           "; one file is taken");
  }
  if (directory_.empty()) {
    return InvalidArgument("external data in ", Quoted(name),
                           ", but these bytes come without a folder; export into one file");
  }
  DEEPPCR_ASSIGN_OR_RETURN(external_bytes_, ReadFile(StrCat(directory_, "/", name),
                                                     limits_.max_external_bytes, &of_external_));
  external_name_ = name;
  return absl::OkStatus();
}

}  // namespace deeppcr::program
