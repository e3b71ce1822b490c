// SPDX-License-Identifier: Apache-2.0
#include "server/codec/wire.h"

#include <climits>
#include <cstdint>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;

class WireReader {
 public:
  explicit WireReader(google::protobuf::io::ZeroCopyInputStream* bytes) : in_(bytes) {}

  bool too_many() const { return fields_left_ < 0; }
  int64_t unknown() const { return unknown_; }
  // The message with the first field that is not taken, and its number; null if there is none.
  const Descriptor* newer() const { return newer_; }
  int newer_field() const { return newer_field_; }

  // True if a well-formed message ends where the stream, or the submessage, does.
  bool ReadMessage(const Descriptor& type) {
    while (const uint32_t tag = in_.ReadTag()) {
      const FieldDescriptor* field = Known(type, tag);
      if (!Spend(1) || !ReadField(tag, field)) return false;
      if (field == nullptr) CountUnknown(type, WireFormatLite::GetTagFieldNumber(tag));
    }
    return in_.ConsumedEntireMessage();
  }

 private:
  bool Spend(uint32_t fields) {
    fields_left_ -= fields;
    return !too_many();
  }

  // Null for a number that the type does not have, or has for something else: the parser would keep
  // either aside.
  static const FieldDescriptor* Known(const Descriptor& type, uint32_t tag) {
    const FieldDescriptor* field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    if (field == nullptr) return nullptr;
    const WireFormatLite::WireType wire = WireFormatLite::GetTagWireType(tag);
    const bool packed = field->is_packable() && wire == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    const auto element = static_cast<WireFormatLite::FieldType>(field->type());
    return packed || wire == WireFormatLite::WireTypeForFieldType(element) ? field : nullptr;
  }

  void CountUnknown(const Descriptor& type, int number) {
    ++unknown_;
    if (newer_ != nullptr || type.file()->package() != "deeppcr.v1") return;
    newer_ = &type;
    newer_field_ = number;
  }

  // field: null if it is unknown.
  bool ReadField(uint32_t tag, const FieldDescriptor* field) {
    uint64_t ignored = 0;
    switch (WireFormatLite::GetTagWireType(tag)) {
      case WireFormatLite::WIRETYPE_VARINT:
        return in_.ReadVarint64(&ignored);
      case WireFormatLite::WIRETYPE_FIXED64:
        return in_.Skip(8);
      case WireFormatLite::WIRETYPE_FIXED32:
        return in_.Skip(4);
      case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
        return ReadDelimited(field);
      default:
        return false;
    }
  }

  bool ReadDelimited(const FieldDescriptor* field) {
    uint32_t size = 0;
    if (!in_.ReadVarint32(&size) || size > INT_MAX) return false;
    const int bytes = static_cast<int>(size);
    if (field != nullptr && field->message_type() != nullptr) {
      const auto limit = in_.PushLimit(bytes);
      const bool good = ReadMessage(*field->message_type());
      in_.PopLimit(limit);
      return good;
    }
    if (field != nullptr && field->is_packable()) return ReadPacked(bytes, *field);
    return in_.Skip(bytes);
  }

  // Varints count one by one: each takes up to eight times as much memory as on the wire. Elements
  // of fixed size take no more than on the wire.
  bool ReadPacked(int bytes, const FieldDescriptor& field) {
    if (IsFixed(field)) return in_.Skip(bytes);
    const auto limit = in_.PushLimit(bytes);
    uint64_t ignored = 0;
    bool good = true;
    while (good && in_.BytesUntilLimit() > 0) good = Spend(1) && in_.ReadVarint64(&ignored);
    in_.PopLimit(limit);
    return good;
  }

  static bool IsFixed(const FieldDescriptor& field) {
    switch (field.type()) {
      case FieldDescriptor::TYPE_FLOAT:
      case FieldDescriptor::TYPE_DOUBLE:
      case FieldDescriptor::TYPE_FIXED32:
      case FieldDescriptor::TYPE_FIXED64:
      case FieldDescriptor::TYPE_SFIXED32:
      case FieldDescriptor::TYPE_SFIXED64:
        return true;
      default:
        return false;
    }
  }

  google::protobuf::io::CodedInputStream in_;
  int64_t fields_left_ = kMaxWireFields;
  int64_t unknown_ = 0;
  const Descriptor* newer_ = nullptr;
  int newer_field_ = 0;
};

}  // namespace

absl::StatusOr<int64_t> CheckWire(google::protobuf::io::ZeroCopyInputStream* bytes,
                                  const Descriptor& type) {
  WireReader reader(bytes);
  if (!reader.ReadMessage(type)) {
    return reader.too_many() ? InvalidArgument("request: expected at most ", kMaxWireFields,
                                               " fields and repeated values, got more")
                             : InvalidArgument("request: expected a ", type.full_name(),
                                               ", got bytes that are not one");
  }
  if (reader.newer() != nullptr && reader.newer()->FindFieldByNumber(reader.newer_field())) {
    return InvalidArgument("request: field ", reader.newer_field(), " of ",
                           reader.newer()->full_name(), ": expected a value of its type");
  }
  if (reader.newer() != nullptr) {
    return InvalidArgument("request: field ", reader.newer_field(), " of ",
                           reader.newer()->full_name(),
                           " is not known to this server: the client is of a newer version");
  }
  return reader.unknown();
}

}  // namespace deeppcr
