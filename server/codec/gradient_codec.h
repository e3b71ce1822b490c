// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CODEC_GRADIENT_CODEC_H_
#define DEEPPCR_SERVER_CODEC_GRADIENT_CODEC_H_

// The part of Gradient that goes back: what starts it, and what it gives.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deeppcr/v1/deeppcr.pb.h"
#include "kernels/engine.h"
#include "server/codec/solve_input.h"
#include "server/codec/tensor_codec.h"

namespace deeppcr {

// The decoded request beside its solve. Views are into the message.
struct GradientInput {
  FieldNames names = kSourceFields;
  // What is gone back along: states [n, L + 1, D], a handle of such, or, if both are empty, what a
  // solve finds.
  TensorInput trajectory;
  std::string_view handle;
  int64_t columns = 1;     // m: cotangents of each sample
  bool ranked = false;     // gradients have m as an extent of their own
  TensorInput of_outputs;  // [n, m, output_dim], or empty
  TensorInput of_final;    // [n, m, D], or empty
  v1::Loss loss = v1::LOSS_UNSPECIFIED;
  TensorInput targets;               // [n, output_dim] for LOSS_MSE
  std::span<const int32_t> classes;  // [n] for LOSS_CROSS_ENTROPY
  BackwardOptions wanted;            // as asked; see ResolveBackward
  bool plans_way = false;            // the way of the plan, in place of that of `wanted`
  bool by_inputs = false, by_initial_state = false, by_step_noise = false;
  bool estimates_error = false;

  bool solves() const { return trajectory.values.empty() && handle.empty(); }
};

// Decodes a request, and checks all but the finiteness of values. Errors: kInvalidArgument;
// kResourceExhausted if the reply would exceed max_message_bytes. `solve` receives the part that is
// solved, with the bytes of the whole.
absl::StatusOr<GradientInput> DecodeGradient(const v1::GradientRequest& request,
                                             const ModelInfo& info, int64_t max_message_bytes,
                                             SolveInput* solve,
                                             const FieldNames& names = kSourceFields);

// The same for StreamGradient, with the memory of the sums counted. Errors also: kUnimplemented for
// a model without parameters, with the reason.
absl::StatusOr<GradientInput> DecodeParameterGradient(const v1::GradientRequest& request,
                                                      const ModelInfo& info,
                                                      int64_t max_message_bytes, SolveInput* solve);

// Checks the tensors of the way back.
absl::Status CheckFinite(const GradientInput& input);

// Losses of n samples, one for each, in double, and their cotangents: derivatives by the outputs
// [n, output_dim], rounded to float.
std::vector<double> ComputeLosses(const GradientInput& input, std::span<const float> outputs,
                                  int64_t num_samples, std::span<float> cotangents);

// Fills the report of a way back. errors: one for each sample, or none at all.
void FillBackwardReport(const BackwardOptions& options, std::span<const BackwardReport> samples,
                        std::span<const std::optional<double>> errors, double seconds,
                        v1::BackwardReport* report);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CODEC_GRADIENT_CODEC_H_
