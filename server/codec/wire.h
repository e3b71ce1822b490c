// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CODEC_WIRE_H_
#define DEEPPCR_SERVER_CODEC_WIRE_H_

// The bytes of untrusted requests, before they are parsed. A submessage, an unknown field or an
// extent of a shape takes one or two bytes on the wire and up to a hundred in memory, so a request
// within the message limit could take gigabytes. No honest request has many fields: its bulk is in
// tensors' data.

#include <cstdint>

#include "absl/status/statusor.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/zero_copy_stream.h"

namespace deeppcr {

// Limit on the fields and elements of repeated scalars of a whole request: a label and a target
// class for each of 4096 samples, 4096 known elements, and the rest.
inline constexpr int kMaxWireFields = 3 * 4096 + 1024;

// Bytes that a field of unknown number takes in memory beside its data, at most.
inline constexpr int64_t kUnknownFieldBytes = 128;

// Reads the stream to its end as a message of this type, without parsing it. Returns the number of
// fields that the type does not know: those of the v2 protocol are left aside, as its servers do,
// but one of deeppcr.v1 asks for what this server does not have, so that an answer without it
// would be another answer than the one that was asked for. Errors: kInvalidArgument if it has such
// a field, too many fields or is malformed. Groups count as malformed: no message of ours has one.
absl::StatusOr<int64_t> CheckWire(google::protobuf::io::ZeroCopyInputStream* bytes,
                                  const google::protobuf::Descriptor& type);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CODEC_WIRE_H_
