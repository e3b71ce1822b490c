// SPDX-License-Identifier: Apache-2.0
#include "proto/message_json.h"

#include <cmath>

namespace deeppcr {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Json = nlohmann::ordered_json;

// The value of element `index` of a repeated field or, with index -1, of a singular field.
Json ValueToJson(const Message& message, const FieldDescriptor* field, int index) {
  const google::protobuf::Reflection* reflection = message.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? reflection->GetInt32(message, field)
                 : reflection->GetRepeatedInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? reflection->GetInt64(message, field)
                 : reflection->GetRepeatedInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? reflection->GetUInt32(message, field)
                 : reflection->GetRepeatedUInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? reflection->GetUInt64(message, field)
                 : reflection->GetRepeatedUInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? reflection->GetBool(message, field)
                 : reflection->GetRepeatedBool(message, field, index);
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      const bool wide = field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE;
      const double value = wide ? (one ? reflection->GetDouble(message, field)
                                       : reflection->GetRepeatedDouble(message, field, index))
                                : (one ? reflection->GetFloat(message, field)
                                       : reflection->GetRepeatedFloat(message, field, index));
      return std::isfinite(value) ? Json(value) : Json(nullptr);
    }
    case FieldDescriptor::CPPTYPE_ENUM:
      return one ? reflection->GetEnum(message, field)->name()
                 : reflection->GetRepeatedEnum(message, field, index)->name();
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text = one ? reflection->GetString(message, field)
                                   : reflection->GetRepeatedString(message, field, index);
      return field->type() == FieldDescriptor::TYPE_BYTES ? Json(text.size()) : Json(text);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageToJson(one ? reflection->GetMessage(message, field)
                               : reflection->GetRepeatedMessage(message, field, index));
  }
  return nullptr;
}

// The key of an entry of a map, as JSON has it.
std::string KeyOf(const Json& key) { return key.is_string() ? key.get<std::string>() : key.dump(); }

Json MapToJson(const Message& message, const FieldDescriptor* field) {
  const google::protobuf::Reflection* reflection = message.GetReflection();
  const FieldDescriptor* const key = field->message_type()->map_key();
  const FieldDescriptor* const value = field->message_type()->map_value();
  Json object = Json::object();
  for (int k = 0; k < reflection->FieldSize(message, field); ++k) {
    const Message& entry = reflection->GetRepeatedMessage(message, field, k);
    object[KeyOf(ValueToJson(entry, key, -1))] = ValueToJson(entry, value, -1);
  }
  return object;
}

}  // namespace

Json MessageToJson(const Message& message) {
  const google::protobuf::Reflection* reflection = message.GetReflection();
  Json object = Json::object();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    if (field->is_map()) {
      object[field->name()] = MapToJson(message, field);
    } else if (field->is_repeated()) {
      Json list = Json::array();
      for (int k = 0; k < reflection->FieldSize(message, field); ++k) {
        list.push_back(ValueToJson(message, field, k));
      }
      object[field->name()] = std::move(list);
    } else if (!field->has_presence() || reflection->HasField(message, field)) {
      object[field->name()] = ValueToJson(message, field, -1);
    }
  }
  return object;
}

std::string DumpJson(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace deeppcr
