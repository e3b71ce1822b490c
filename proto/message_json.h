// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_PROTO_MESSAGE_JSON_H_
#define DEEPPCR_PROTO_MESSAGE_JSON_H_

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <string>

namespace deeppcr {

// A message as a JSON object with the field names of the .proto file. Every field without presence
// appears, default or not; maps are objects, enums are names, 64-bit integers are numbers
// (protobuf's own mapping makes them strings). NaN and infinity become null, bytes their size.
nlohmann::ordered_json MessageToJson(const google::protobuf::Message& message);

// Indented text with a line end; invalid UTF-8 in strings is replaced, never an error.
std::string DumpJson(const nlohmann::ordered_json& json);

}  // namespace deeppcr

#endif  // DEEPPCR_PROTO_MESSAGE_JSON_H_
