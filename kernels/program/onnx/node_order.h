// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_ONNX_NODE_ORDER_H_
#define DEEPPCR_KERNELS_PROGRAM_ONNX_NODE_ORDER_H_

#include "absl/status/status.h"
#include "kernels/program/onnx_graph.h"

namespace deeppcr::program {

// Brings the nodes of a graph into an order in which every input is there before its use; nodes
// that are in order stay as they are.
// Errors: kInvalidArgument naming a value that is defined twice or never, or a node of a cycle.
absl::Status OrderNodes(OnnxGraph& graph);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_ONNX_NODE_ORDER_H_
