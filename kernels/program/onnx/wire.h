// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_ONNX_WIRE_H_
#define DEEPPCR_KERNELS_PROGRAM_ONNX_WIRE_H_

#include <string_view>

#include "absl/status/status.h"
#include "kernels/program/onnx_graph.h"

namespace deeppcr::program {

// Walks the encoded messages of a .onnx file without building them, and counts: two bytes make an
// empty node, for which protobuf would allocate a hundred times as many.
// Errors: kInvalidArgument (no protobuf message, nested too deeply), kResourceExhausted.
absl::Status CheckOnnxWire(std::string_view bytes, const OnnxLimits& limits);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_ONNX_WIRE_H_
