// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_ONNX_GRAPH_H_
#define DEEPPCR_KERNELS_PROGRAM_ONNX_GRAPH_H_

// ONNX graphs as plain data, read from untrusted bytes. What operators mean is lower_onnx.h's.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/memory_budget.h"

namespace deeppcr::program {

// Versions of the operator set whose meaning is known. Before 7 operands were broadcast otherwise.
inline constexpr int64_t kMinOnnxOpset = 7;
inline constexpr int64_t kMaxOnnxOpset = 25;

struct OnnxLimits {
  int64_t max_bytes = int64_t{1} << 30;           // of the file
  int64_t max_external_bytes = int64_t{4} << 30;  // of the file beside it
  int64_t max_nodes = 100'000;
  int64_t max_tensors = 100'000;               // initialisers, and tensors in attributes
  int64_t max_elements = int64_t{1} << 28;     // of all tensors together
  int64_t max_attribute_elements = 1'000'000;  // of one attribute's list
  int64_t max_name_bytes = 1024;               // of a node, value, attribute or file
  int64_t max_rank = 8;
  // Fields of all messages, which take far more memory than bytes where they are short.
  int64_t max_pieces = 4'000'000;
  // Set: numbers are counted in here before they are allocated; what is read on the way to them is
  // counted beside it. May be null.
  MemoryShare* memory = nullptr;
};

enum class OnnxType : uint8_t { kFloat, kInteger, kBool };

// "float", "integer", "bool".
std::string_view OnnxTypeName(OnnxType type);

// Elements of a tensor, shared by its copies. Integers are exact up to 2^53 and the nearest double
// beyond; booleans are 0 and 1.
struct Numbers {
  // One of them: float32 and narrower types, or the others.
  std::shared_ptr<const std::vector<float>> floats;
  std::shared_ptr<const std::vector<double>> doubles;

  double operator[](int64_t i) const {
    const auto at = static_cast<size_t>(i);
    return floats != nullptr ? double{(*floats)[at]} : (*doubles)[at];
  }
};

struct OnnxTensor {
  std::vector<int64_t> shape;  // empty for a scalar; extents may be 0
  OnnxType type = OnnxType::kFloat;
  Numbers numbers;
};

using OnnxAttribute = std::variant<int64_t, float, std::string, std::vector<int64_t>,
                                   std::vector<float>, std::vector<std::string>, OnnxTensor>;

struct OnnxNode {
  std::string op_type;
  std::string domain;                // empty for ONNX's own operators
  std::string name;                  // may be empty
  std::vector<std::string> inputs;   // empty strings where optional ones are left out
  std::vector<std::string> outputs;  // likewise
  std::map<std::string, OnnxAttribute> attributes;
};

struct OnnxDimension {
  int64_t extent = -1;  // -1: symbolic
  std::string symbol;   // may be empty
};

struct OnnxInput {
  std::string name;
  std::vector<OnnxDimension> shape;
  OnnxType type = OnnxType::kFloat;
};

struct OnnxGraph {
  // In an order in which every input is there before its use.
  std::vector<OnnxNode> nodes;
  std::map<std::string, OnnxTensor> initializers;
  std::vector<OnnxInput> inputs;  // those that are no initialisers
  std::vector<std::string> outputs;
  int64_t opset = 0;  // of ONNX's own operators
};

// A node for messages: `node "name" (OpType)`, by its first output where it has no name.
std::string Describe(const OnnxNode& node);

// Reads the bytes of a .onnx file. Tensors may be in one file beside it, in `directory`; with an
// empty `directory` they may not. Thread-safe.
// Errors: kInvalidArgument (malformed; a name that is defined twice or never, a cycle; subgraphs,
// functions, sparse tensors and what else is not taken, by name), kResourceExhausted beyond the
// limits, and those of ReadFile for the file beside it. Nothing large is allocated before its size
// is checked.
absl::StatusOr<OnnxGraph> ReadOnnxGraph(std::string_view bytes, const std::string& directory,
                                        const OnnxLimits& limits = {});

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_ONNX_GRAPH_H_
