// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_LOWER_ONNX_H_
#define DEEPPCR_KERNELS_PROGRAM_LOWER_ONNX_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/program/builder.h"
#include "kernels/program/onnx_graph.h"
#include "kernels/program/program.h"

namespace deeppcr::program {

// Which value of a graph is what. Every input of the graph has to be one of these; empty: it has
// none. The first axis of an input is the batch, of extent 1 or symbolic.
struct OnnxInputs {
  std::string state;       // float, [1, ..]
  std::string time;        // float or integer; [], [1] or [1, 1]
  std::string condition;   // float, [1, ..]
  std::string label;       // integer; [], [1] or [1, 1]
  std::string prediction;  // the output to compute; empty: the only one
  // Initialisers that each layer of a stack has for itself, by name: [L, ..], L the same for all.
  std::map<std::string, std::shared_ptr<const std::vector<float>>> stacked;
  // The state of the program is [z, c] of a sampler that carries a memory; the graph's input is z.
  bool carries = false;
  // Initialisers that stay values, by name: Parameter::slices says `tensor`. Those that are stacked
  // are parameters of each step.
  std::map<std::string, int32_t> parameters;
};

// Writes into `builder` what a graph computes for a batch of one, and returns the prediction: the
// elements of its output in row-major order. Inputs that the graph has and reads are added; those
// it has and does not read are added too. Integers and booleans are numbers: exact up to 2^53,
// 0 and 1. Nothing is written that the prediction does not need.
// Errors: kInvalidArgument naming the node, its operator and what would be taken;
// kResourceExhausted beyond the limits of the builder, or where constants grow far beyond the file.
absl::StatusOr<ValueId> LowerOnnx(const OnnxGraph& graph, const OnnxInputs& inputs,
                                  ProgramBuilder& builder);

// The operators that are taken, with commas, for documents and messages.
std::string OnnxOperatorNames();

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_LOWER_ONNX_H_
