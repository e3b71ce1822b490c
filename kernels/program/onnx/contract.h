// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_ONNX_CONTRACT_H_
#define DEEPPCR_KERNELS_PROGRAM_ONNX_CONTRACT_H_

// Sums of products of two tensors, of which matrix products are the commonest.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/program/onnx/lowering.h"

namespace deeppcr::program {

// A tensor whose axes have names, one letter each, all different.
struct Labelled {
  Tensor tensor;
  std::string axes;
};

// result[out] = the sum of a[..] b[..] over every letter that is not in `out`. An axis of extent 1
// is broadcast to the other's. With a constant as one of both, or a value that depends on
// the time alone, this is a linear layer, whose bias
// (one element for each of its rows, or null) is added; `bias` is taken with such a layer only.
// Errors: kInvalidArgument where extents differ, and for matrices that both depend on the state.
absl::StatusOr<Tensor> Contract(Lowering& lowering, const Labelled& a, const Labelled& b,
                                const std::string& out,
                                std::shared_ptr<const std::vector<float>> bias = nullptr);

// A constant's elements in float32, shared where they are. Errors: kInvalidArgument where one is
// not finite there.
absl::StatusOr<std::shared_ptr<const std::vector<float>>> ToWeights(const Tensor& constant);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_ONNX_CONTRACT_H_
