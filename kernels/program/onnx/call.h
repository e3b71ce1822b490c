// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_ONNX_CALL_H_
#define DEEPPCR_KERNELS_PROGRAM_ONNX_CALL_H_

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/program/onnx/lowering.h"
#include "kernels/program/onnx_graph.h"

namespace deeppcr::program {

// One use of an operator: a node with its inputs. Errors of all methods: kInvalidArgument naming
// the attribute or input. Not thread-safe.
class Call {
 public:
  // An input is null where the node leaves it out.
  Call(Lowering& to, const OnnxNode& of, std::vector<const Tensor*> given, int64_t opset_version)
      : lowering(to), node(of), inputs(std::move(given)), opset(opset_version) {}

  bool Has(size_t i) const { return i < inputs.size() && inputs[i] != nullptr; }
  // An input that is there.
  const Tensor& in(size_t i) const { return *inputs[i]; }
  // A known list of integers, or one of them.
  absl::StatusOr<std::vector<int64_t>> Integers(size_t i, std::string_view what) const;
  absl::StatusOr<int64_t> Integer(size_t i, std::string_view what) const;

  bool HasAttribute(const std::string& name) const { return node.attributes.contains(name); }
  // Attributes, with what they are where the node does not say.
  absl::StatusOr<int64_t> Int(const std::string& name, int64_t otherwise);
  absl::StatusOr<double> Float(const std::string& name, double otherwise);
  absl::StatusOr<std::string> String(const std::string& name, const std::string& otherwise);
  absl::StatusOr<std::vector<int64_t>> Ints(const std::string& name,
                                            std::vector<int64_t> otherwise);
  // An attribute that changes nothing here.
  void Ignore(const std::string& name) { read_.insert(name); }
  // Null where the node does not say.
  const OnnxAttribute* Attribute(const std::string& name);

  // Axes by attribute or, from opset `since`, by input i; empty where neither is there.
  absl::StatusOr<std::vector<int64_t>> AxesOf(size_t i, int64_t since);

  // Refuses an attribute that nobody asked for.
  absl::Status CheckAttributes() const;

  Lowering& lowering;
  const OnnxNode& node;
  const std::vector<const Tensor*> inputs;
  const int64_t opset;

 private:
  template <typename T>
  absl::StatusOr<T> Typed(const std::string& name, T otherwise, std::string_view expected);

  std::set<std::string> read_;
};

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_ONNX_CALL_H_
