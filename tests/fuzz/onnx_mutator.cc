// SPDX-License-Identifier: Apache-2.0
// Mutations of ONNX graphs: bytes that are changed blindly are mostly no message any more, as every
// message says its length.

#include <onnx/onnx.pb.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace deeppcr::fuzz {
namespace {

using Random = std::minstd_rand;

size_t Below(Random& random, size_t bound) { return random() % bound; }

template <typename List>
auto& AnyOf(Random& random, List& list) {
  return *(list.begin() +
           static_cast<std::ptrdiff_t>(Below(random, static_cast<size_t>(list.size()))));
}

// Small numbers of either sign, and the ends of ranges.
int64_t AnyInteger(Random& random) {
  constexpr int64_t kEnds[] = {INT64_MAX, INT64_MIN, int64_t{1} << 40, int64_t{1} << 31, 100, -100};
  if (Below(random, 8) == 0) return kEnds[Below(random, std::size(kEnds))];
  return static_cast<int64_t>(Below(random, 12)) - 4;
}

constexpr const char* kOperators[] = {
    "Add",    "CastLike",  "Concat",  "CumSum",    "Div",       "Einsum",  "Equal",
    "Expand", "Flatten",   "Gather",  "Gemm",      "Less",      "MatMul",  "Max",
    "Mod",    "Mul",       "Neg",     "Pow",       "ReduceMax", "Reshape", "ReduceSum",
    "Relu",   "Shape",     "Slice",   "Softmax",   "Split",     "Squeeze", "Sub",
    "Tile",   "Transpose", "Trilu",   "Unsqueeze", "Where",     "OneHot",  "GatherElements",
    "PRelu",  "Round",     "Sigmoid", "Identity",  "Pad"};

void ChangeAttribute(Random& random, onnx::NodeProto& node) {
  if (node.attribute_size() == 0) return;
  onnx::AttributeProto& attribute = AnyOf(random, *node.mutable_attribute());
  if (attribute.ints_size() > 0) AnyOf(random, *attribute.mutable_ints()) = AnyInteger(random);
  attribute.set_i(AnyInteger(random));
}

void ChangeNode(Random& random, onnx::GraphProto& graph) {
  onnx::NodeProto& node = AnyOf(random, *graph.mutable_node());
  std::vector<std::string> names = {"x"};
  for (const auto& other : graph.node()) {
    names.insert(names.end(), other.output().begin(), other.output().end());
  }
  for (const auto& tensor : graph.initializer()) names.push_back(tensor.name());
  for (const auto& input : graph.input()) names.push_back(input.name());
  switch (Below(random, 5)) {
    case 0:
      node.set_op_type(kOperators[Below(random, std::size(kOperators))]);
      break;
    case 1:
      if (node.input_size() > 0) AnyOf(random, *node.mutable_input()) = AnyOf(random, names);
      break;
    case 2:
      node.add_input(AnyOf(random, names));
      break;
    case 3:
      graph.mutable_node()->SwapElements(
          static_cast<int>(Below(random, static_cast<size_t>(graph.node_size()))), 0);
      break;
    default:
      ChangeAttribute(random, node);
  }
}

void ChangeTensor(Random& random, onnx::GraphProto& graph) {
  if (graph.initializer_size() == 0) return;
  onnx::TensorProto& tensor = AnyOf(random, *graph.mutable_initializer());
  if (tensor.int64_data_size() > 0 && Below(random, 8) != 0) {
    AnyOf(random, *tensor.mutable_int64_data()) = AnyInteger(random);
  } else if (tensor.dims_size() > 0) {
    AnyOf(random, *tensor.mutable_dims()) = AnyInteger(random);
  }
}

void ChangeShape(Random& random, onnx::GraphProto& graph) {
  if (graph.input_size() == 0) return;
  auto& type = *AnyOf(random, *graph.mutable_input()).mutable_type()->mutable_tensor_type();
  if (type.shape().dim_size() == 0) return;
  AnyOf(random, *type.mutable_shape()->mutable_dim()).set_dim_value(AnyInteger(random));
}

}  // namespace

// The graph with one thing changed, or nothing where the bytes are no graph.
std::string Mutated(const std::string& bytes, Random& random) {
  onnx::ModelProto model;
  if (!model.ParseFromString(bytes) || model.graph().node_size() == 0) return "";
  onnx::GraphProto& graph = *model.mutable_graph();
  switch (Below(random, 8)) {
    case 0:
      ChangeShape(random, graph);
      break;
    case 1:
      if (model.opset_import_size() > 0) {
        model.mutable_opset_import(0)->set_version(static_cast<int64_t>(7 + Below(random, 18)));
      }
      break;
    case 2:
    case 3:
    case 4:
      ChangeTensor(random, graph);
      break;
    default:
      ChangeNode(random, graph);
  }
  return model.SerializeAsString();
}

}  // namespace deeppcr::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  std::minstd_rand random(seed);
  if (seed % 4 != 0) {
    const std::string mutated =
        deeppcr::fuzz::Mutated(std::string(reinterpret_cast<const char*>(data), size), random);
    if (!mutated.empty() && mutated.size() <= max_size) {
      std::copy(mutated.begin(), mutated.end(), data);
      return mutated.size();
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}
