// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_REST_INFER_JSON_H_
#define DEEPPCR_SERVER_REST_INFER_JSON_H_

// Bodies of the v2 protocol's REST form <-> its messages: a JSON object, and after it, where a
// tensor says so, its values as they are in memory ("binary tensor data" extension). Only the form
// is checked here; what a request means is checked where those of gRPC are.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inference/grpc_service.pb.h"

namespace deeppcr {

// A request, and which of its outputs are wanted as bytes.
struct RestInfer {
  inference::ModelInferRequest request;     // model and version are not set
  std::vector<std::optional<bool>> binary;  // by the request's outputs
  bool binary_by_default = false;           // of all others
};

// json_bytes: those of the JSON object, from the header Inference-Header-Content-Length; without
// one all of the body. Values in JSON become the bytes of their datatype: FP32, FP64, BOOL, INT8 to
// INT64 and UINT8 to UINT64. Memory: at most eight bytes for two of the body, as inputs, outputs
// and parameters are few. Errors: kInvalidArgument naming the field, what was expected and what
// came.
absl::StatusOr<RestInfer> DecodeRestInfer(std::string_view body, std::optional<int64_t> json_bytes);

// The body of a reply. JSON has no NaN and no infinity: such values are null there.
struct RestBody {
  std::string bytes;
  std::optional<size_t> json_bytes;  // set if binary tensors follow the JSON object
};
// `asked`: with what the reply was asked for.
RestBody EncodeRestInfer(const inference::ModelInferResponse& reply, const RestInfer& asked);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_REST_INFER_JSON_H_
