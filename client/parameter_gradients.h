// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_PARAMETER_GRADIENTS_H_
#define DEEPPCR_CLIENT_PARAMETER_GRADIENTS_H_

// Gradients by parameters, put together from the pieces of StreamGradient.

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/array.h"
#include "deeppcr/v1/deeppcr.pb.h"

namespace deeppcr {

struct NamedArray {
  std::string name;
  Array array;
};

// The tensors of one call. What a server sends is not trusted: at most kMaxArrayBytes are kept.
class ParameterCollector {
 public:
  static constexpr size_t kMostTensors = 100'000;  // an .onnx file has no more

  // Takes the next piece. Errors: kInternal for one that does not follow the piece before.
  absl::Status Add(const v1::ParameterPiece& piece);

  // The tensors, in the order in which they came. Errors: kInternal if there are none, or the last
  // is not whole.
  absl::StatusOr<std::vector<NamedArray>> Take();

 private:
  absl::Status Begin(const v1::ParameterPiece& piece);

  std::vector<NamedArray> tensors_;
  std::set<std::string> names_;  // of tensors_
  int64_t bytes_ = 0;            // of all tensors, whole
  int64_t missing_ = 0;          // values of the last tensor
};

// Adds the tensors of another call to `sums`, which takes them over if it is empty.
// Errors: kInternal if they are not the same tensors.
absl::Status AddParameters(std::vector<NamedArray> more, std::vector<NamedArray>* sums);

// The bytes of a .safetensors file.
std::string FormatSafetensors(const std::vector<NamedArray>& tensors);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_PARAMETER_GRADIENTS_H_
