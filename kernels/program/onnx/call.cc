// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/onnx/call.h"

#include <limits>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr::program {
namespace {

// Bounds of slices may be the ends of 64 bits.
int64_t Saturated(double number) {
  if (number >= 9223372036854775808.0) return std::numeric_limits<int64_t>::max();
  if (number <= -9223372036854775808.0) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(number);
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> Call::Integers(size_t i, std::string_view what) const {
  if (!Has(i)) return InvalidArgument("input ", i, ", ", what, ", is missing");
  const Tensor& tensor = in(i);
  if (!tensor.is_constant()) {
    // In a stack no input but the state is there, and the time is the layer.
    const bool by_layer =
        lowering.OnTimeAlone(tensor) && !lowering.builder().program().stacked.empty();
    return InvalidArgument("input ", i, ", ", what,
                           by_layer ? ", is made of weights that differ from layer to layer"
                                    : ", depends on the graph's inputs",
                           "; it has to be a constant: shapes and places that depend on data are "
                           "not taken");
  }
  if (tensor.type == OnnxType::kFloat || tensor.shape.size() > 1) {
    return InvalidArgument("input ", i, ", ", what, ": expected integers in a list");
  }
  std::vector<int64_t> integers(static_cast<size_t>(NumElements(tensor.shape)));
  for (size_t k = 0; k < integers.size(); ++k) {
    integers[k] = Saturated((*tensor.constant)[static_cast<int64_t>(k)]);
  }
  return integers;
}

absl::StatusOr<int64_t> Call::Integer(size_t i, std::string_view what) const {
  DEEPPCR_ASSIGN_OR_RETURN(const std::vector<int64_t> integers, Integers(i, what));
  if (integers.size() != 1) {
    return InvalidArgument("input ", i, ", ", what, ": expected one integer, got ",
                           integers.size());
  }
  return integers[0];
}

const OnnxAttribute* Call::Attribute(const std::string& name) {
  read_.insert(name);
  const auto found = node.attributes.find(name);
  return found == node.attributes.end() ? nullptr : &found->second;
}

template <typename T>
absl::StatusOr<T> Call::Typed(const std::string& name, T otherwise, std::string_view expected) {
  const OnnxAttribute* attribute = Attribute(name);
  if (attribute == nullptr) return otherwise;
  const T* value = std::get_if<T>(attribute);
  if (value == nullptr) return InvalidArgument("attribute ", name, ": expected ", expected);
  return *value;
}

absl::StatusOr<int64_t> Call::Int(const std::string& name, int64_t otherwise) {
  return Typed<int64_t>(name, otherwise, "an integer");
}

absl::StatusOr<double> Call::Float(const std::string& name, double otherwise) {
  if (!HasAttribute(name)) return otherwise;
  DEEPPCR_ASSIGN_OR_RETURN(const float value, Typed<float>(name, 0, "a float"));
  if (!(value - value == 0))
    return InvalidArgument("attribute ", name, ": expected a finite float");
  return double{value};
}

absl::StatusOr<std::string> Call::String(const std::string& name, const std::string& otherwise) {
  return Typed<std::string>(name, otherwise, "a string");
}

absl::StatusOr<std::vector<int64_t>> Call::Ints(const std::string& name,
                                                std::vector<int64_t> otherwise) {
  return Typed<std::vector<int64_t>>(name, std::move(otherwise), "integers");
}

absl::StatusOr<std::vector<int64_t>> Call::AxesOf(size_t i, int64_t since) {
  if (opset < since) return Ints("axes", {});
  if (!Has(i)) return std::vector<int64_t>();
  return Integers(i, "the axes");
}

absl::Status Call::CheckAttributes() const {
  for (const auto& [name, value] : node.attributes) {
    if (!read_.contains(name)) {
      return InvalidArgument("attribute ", Quoted(name), " is not taken at opset ", opset);
    }
  }
  return absl::OkStatus();
}

}  // namespace deeppcr::program
