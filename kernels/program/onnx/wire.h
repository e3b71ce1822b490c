// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_ONNX_WIRE_H_
#define DEEPPCR_KERNELS_PROGRAM_ONNX_WIRE_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/program/onnx_graph.h"

namespace deeppcr::program {

// Walks the encoded messages of a .onnx file without building them, and counts: two bytes make an
// empty node, for which protobuf would allocate a hundred times as many. Returns the bytes that the
// messages take at most, as they are built.
// Errors: kInvalidArgument (no protobuf message, nested too deeply), kResourceExhausted.
absl::StatusOr<int64_t> CheckOnnxWire(std::string_view bytes, const OnnxLimits& limits);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_ONNX_WIRE_H_
