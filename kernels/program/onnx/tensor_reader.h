// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_ONNX_TENSOR_READER_H_
#define DEEPPCR_KERNELS_PROGRAM_ONNX_TENSOR_READER_H_

#include <onnx/onnx.pb.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/memory_budget.h"
#include "kernels/program/onnx_graph.h"

namespace deeppcr::program {

// The class of an ONNX element type that tensors may have.
// Errors: kInvalidArgument naming the type.
absl::StatusOr<OnnxType> TypeOfElements(int32_t data_type);

// Errors: kInvalidArgument (NUL), kResourceExhausted; `what` the name is of.
absl::Status CheckOnnxName(std::string_view name, std::string_view what, const OnnxLimits& limits);

// Reads the tensors of one file, of which all together may have limits.max_elements. Not
// thread-safe.
class OnnxTensorReader {
 public:
  // `directory`: of the file of external data, or empty. `of_messages`: of what is taken out of
  // them. All outlive the reader.
  OnnxTensorReader(const std::string& directory, const OnnxLimits& limits, MemoryShare& of_messages)
      : directory_(directory),
        limits_(limits),
        of_messages_(of_messages),
        of_external_(of_messages.Another()) {}

  // Takes the bytes out of `proto`, so that they are not in memory twice. Messages do not name the
  // tensor.
  absl::StatusOr<OnnxTensor> Read(onnx::TensorProto& proto);

 private:
  absl::StatusOr<int64_t> CheckedElements(std::span<const int64_t> shape);
  absl::StatusOr<std::string_view> ExternalBytes(const onnx::TensorProto& proto, int64_t size);
  absl::Status LoadExternalFile(const std::string& name);

  const std::string& directory_;
  const OnnxLimits& limits_;
  MemoryShare& of_messages_;
  MemoryShare of_external_;
  int64_t elements_ = 0;  // of all tensors read
  std::string external_name_;
  std::string external_bytes_;
};

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_ONNX_TENSOR_READER_H_
