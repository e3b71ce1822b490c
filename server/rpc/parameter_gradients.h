// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_PARAMETER_GRADIENTS_H_
#define DEEPPCR_SERVER_RPC_PARAMETER_GRADIENTS_H_

// Gradients by the parameters of a model: their sums over samples, and their way to the client in
// pieces.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/engine.h"
#include "server/rpc/responder.h"

namespace deeppcr {

// The gradient by one tensor.
struct ParameterGradient {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;  // row-major
};

// The sums of one request.
class ParameterGradients {
 public:
  // Allocates everything but what the sums take on the way. info: of a model with parameters.
  ParameterGradients(const ModelInfo& info, int64_t num_samples, int64_t num_steps);

  // Points the item at memory for what the sums are made of; this object outlives its use.
  void Attach(BackwardItem* item);

  // Sums over the samples of the item, which has gone back, in their order: the same bits each
  // time. Errors: those of AddParameterGradients.
  absl::Status Sum(const LoadedSystem& system, const BackwardItem& item, const CancelToken* token,
                   absl::FunctionRef<void(double)> pause);

  // Hands out the sums; nothing else may follow.
  std::vector<ParameterGradient> Take() && { return std::move(tensors_); }

 private:
  const int64_t input_dim_, output_dim_, state_dim_, num_steps_;
  const ParameterForm form_;
  std::vector<ParameterGradient> tensors_;
  std::vector<float> of_steps_;       // [n, L, D]: deltas or state_cotangents
  std::vector<float> encode_deltas_;  // [n, D], or empty without an input layer
};

// The messages of StreamGradient before the last.
class ParameterPieces final : public MessageSource {
 public:
  static constexpr int64_t kMostBytes = int64_t{64} << 10;  // of a piece's data

  ParameterPieces(std::vector<ParameterGradient> tensors, int64_t max_message_bytes);

  bool Next(grpc::ByteBuffer* message) override;
  int64_t bytes() const override { return bytes_; }

 private:
  std::vector<ParameterGradient> tensors_;
  const size_t most_values_;  // of a piece
  int64_t bytes_ = 0;
  size_t tensor_ = 0, offset_ = 0;  // where the next piece begins
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_PARAMETER_GRADIENTS_H_
