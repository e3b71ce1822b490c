// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/onnx/wire.h"

#include <algorithm>
#include <cstdint>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr::program {
namespace {

// Deep enough for every graph without subgraphs.
constexpr int kMaxDepth = 12;

enum class Message : uint8_t {
  kModel,
  kGraph,
  kNode,
  kAttribute,
  kTensor,
  kValueInfo,
  kType,
  kTensorType,
  kShape,
  kAnnotation,
  kPlain,    // a message that holds no others
  kBytes,    // no message
  kRefused,  // a message of a kind that is not taken
};

struct Field {
  Message in;
  uint32_t number;
  Message holds;
  const char* refused = "";  // its name
};

// Fields of onnx.proto that hold messages.
constexpr Field kFields[] = {
    {Message::kModel, 7, Message::kGraph},
    {Message::kModel, 8, Message::kPlain},
    {Message::kModel, 14, Message::kPlain},
    {Message::kModel, 20, Message::kRefused, "training information"},
    {Message::kModel, 25, Message::kRefused,
     "model-local functions (export so that they are inlined)"},
    {Message::kGraph, 1, Message::kNode},
    {Message::kGraph, 5, Message::kTensor},
    {Message::kGraph, 11, Message::kValueInfo},
    {Message::kGraph, 12, Message::kValueInfo},
    {Message::kGraph, 13, Message::kValueInfo},
    {Message::kGraph, 14, Message::kAnnotation},
    {Message::kGraph, 15, Message::kRefused, "sparse initialisers"},
    {Message::kNode, 5, Message::kAttribute},
    {Message::kAttribute, 5, Message::kTensor},
    {Message::kAttribute, 6, Message::kGraph},
    {Message::kAttribute, 10, Message::kTensor},
    {Message::kAttribute, 11, Message::kGraph},
    {Message::kAttribute, 14, Message::kRefused, "types as attributes"},
    {Message::kAttribute, 15, Message::kRefused, "types as attributes"},
    {Message::kAttribute, 22, Message::kRefused, "sparse tensors"},
    {Message::kAttribute, 23, Message::kRefused, "sparse tensors"},
    {Message::kTensor, 3, Message::kPlain},
    {Message::kTensor, 13, Message::kPlain},
    {Message::kValueInfo, 2, Message::kType},
    {Message::kType, 1, Message::kTensorType},
    {Message::kType, 4, Message::kRefused, "sequences"},
    {Message::kType, 5, Message::kRefused, "maps"},
    {Message::kType, 7, Message::kRefused, "opaque types"},
    {Message::kType, 8, Message::kRefused, "sparse tensors"},
    {Message::kType, 9, Message::kRefused, "optional values"},
    {Message::kTensorType, 2, Message::kShape},
    {Message::kShape, 1, Message::kPlain},
    {Message::kAnnotation, 2, Message::kPlain},
};

constexpr Field kNoMessage = {Message::kBytes, 0, Message::kBytes};

const Field& FieldOf(Message in, uint64_t number) {
  for (const Field& field : kFields) {
    if (field.in == in && field.number == number) return field;
  }
  return kNoMessage;
}

// Base-128 numbers of the encoding, least significant group first. False at the end of the bytes.
bool ReadVarint(std::string_view& bytes, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

// Lists of integers of a byte or more each: TensorProto's int32_data, int64_data and uint64_data,
// and AttributeProto's ints.
bool HoldsPackedIntegers(Message in, uint64_t number) {
  if (in == Message::kAttribute) return number == 8;
  return in == Message::kTensor && (number == 5 || number == 7 || number == 11);
}

int64_t NumVarints(std::string_view bytes) {
  return std::ranges::count_if(bytes, [](char byte) { return (byte & 0x80) == 0; });
}

// Sizes in memory, of protobuf 3.21: a field has a message, a string or a place in a list; lists
// grow by half of what they have, or more.
constexpr int64_t kBytesOfPiece = 128;
constexpr int64_t kBytesOfLargeMessage = 512;  // a node or a tensor
constexpr int64_t kBytesOfPacked = 2 * 8;

class Walk {
 public:
  explicit Walk(const OnnxLimits& limits) : limits_(limits) {}

  // What the messages take beside their bytes, at most.
  int64_t memory_bytes() const {
    return pieces_ * kBytesOfPiece + (nodes_ + tensors_) * kBytesOfLargeMessage +
           packed_ * kBytesOfPacked;
  }

  absl::Status Enter(std::string_view bytes, Message kind, int depth) {
    if (depth > kMaxDepth) {
      return InvalidArgument("messages nested deeper than ", kMaxDepth,
                             "; subgraphs (Loop, If, Scan) are not taken");
    }
    while (!bytes.empty()) DEEPPCR_RETURN_IF_ERROR(OneField(bytes, kind, depth));
    return absl::OkStatus();
  }

 private:
  static absl::Status Malformed() {
    return InvalidArgument("no ONNX file: the bytes are cut short or are no protobuf message");
  }

  absl::Status OneField(std::string_view& bytes, Message kind, int depth) {
    uint64_t key = 0, value = 0;
    if (!ReadVarint(bytes, key) || key >> 3 == 0) return Malformed();
    if (++pieces_ > limits_.max_pieces) {
      return ResourceExhausted("more than ", limits_.max_pieces, " fields");
    }
    switch (key & 7) {
      case 0:
        return ReadVarint(bytes, value) ? absl::OkStatus() : Malformed();
      case 1:
        return Skip(bytes, 8);
      case 5:
        return Skip(bytes, 4);
      case 2:
        break;
      default:
        return Malformed();
    }
    if (!ReadVarint(bytes, value) || value > bytes.size()) return Malformed();
    const Field& field = FieldOf(kind, key >> 3);
    DEEPPCR_RETURN_IF_ERROR(Count(field));
    const std::string_view inside = bytes.substr(0, value);
    if (HoldsPackedIntegers(kind, key >> 3)) packed_ += NumVarints(inside);
    bytes.remove_prefix(value);
    return field.holds == Message::kBytes ? absl::OkStatus()
                                          : Enter(inside, field.holds, depth + 1);
  }

  static absl::Status Skip(std::string_view& bytes, size_t count) {
    if (bytes.size() < count) return Malformed();
    bytes.remove_prefix(count);
    return absl::OkStatus();
  }

  absl::Status Count(const Field& field) {
    if (field.holds == Message::kRefused) {
      return InvalidArgument("the file holds ", field.refused, ", which are not taken");
    }
    if (field.holds == Message::kNode && ++nodes_ > limits_.max_nodes) {
      return ResourceExhausted("more than ", limits_.max_nodes, " nodes");
    }
    if (field.holds == Message::kTensor && ++tensors_ > limits_.max_tensors) {
      return ResourceExhausted("more than ", limits_.max_tensors, " tensors");
    }
    return absl::OkStatus();
  }

  const OnnxLimits& limits_;
  int64_t pieces_ = 0, nodes_ = 0, tensors_ = 0, packed_ = 0;
};

}  // namespace

absl::StatusOr<int64_t> CheckOnnxWire(std::string_view bytes, const OnnxLimits& limits) {
  Walk walk(limits);
  DEEPPCR_RETURN_IF_ERROR(walk.Enter(bytes, Message::kModel, 0));
  return static_cast<int64_t>(bytes.size()) + walk.memory_bytes();
}

}  // namespace deeppcr::program
