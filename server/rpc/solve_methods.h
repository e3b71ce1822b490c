// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_SOLVE_METHODS_H_
#define DEEPPCR_SERVER_RPC_SOLVE_METHODS_H_

// The methods of deeppcr.v1 that solve: the M of SolveCall<M>.

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "google/protobuf/arena.h"
#include "kernels/base/status_macros.h"
#include "server/codec/gradient_codec.h"
#include "server/codec/reply_codec.h"
#include "server/codec/request_codec.h"
#include "server/observe/method.h"
#include "server/rpc/parameter_gradients.h"
#include "server/rpc/responder.h"
#include "server/rpc/way_back.h"

namespace deeppcr {

using google::protobuf::Arena;

// A method whose request `decode` reads and whose reply has a report and a request id beside its
// tensors.
template <Method method, typename RequestType, typename ReplyType, auto decode>
struct V1Method {
  static constexpr Method kMethod = method;
  using Request = RequestType;
  using Responder = UnaryResponder;

  static absl::StatusOr<SolveInput> Decode(const Request* request, const ModelInfo& info,
                                           int64_t max_message_bytes) {
    return decode(*request, info, max_message_bytes, kV1Fields);
  }
  v1::SolveReport* report() { return reply->mutable_report(); }
  void SetHandle(const std::string& handle) { reply->set_trajectory_handle(handle); }
  const google::protobuf::Message& Reply(const ServedModel&, const std::string& request_id) {
    if (!request_id.empty()) reply->set_request_id(request_id);
    return *reply;
  }

  ReplyType* reply = nullptr;  // in the arena of Allocate
};

struct ForwardMethod
    : V1Method<Method::kForward, v1::ForwardRequest, v1::ForwardResponse, DecodeForward> {
  void Allocate(const ModelInfo& info, const SolveInput& input, Arena* arena, RunItem* item) {
    reply = Arena::CreateMessage<v1::ForwardResponse>(arena);
    item->outputs =
        AllocateTensor(std::array{input.num_samples, info.output_dim}, reply->mutable_outputs());
    if (input.options.return_trajectory)
      item->trajectory = AllocateTrajectory(info, input, reply->mutable_trajectory());
  }
};

struct GenerateMethod
    : V1Method<Method::kGenerate, v1::GenerateRequest, v1::GenerateResponse, DecodeGenerate> {
  void Allocate(const ModelInfo& info, const SolveInput& input, Arena* arena, RunItem* item) {
    Shape(info, input, Arena::CreateMessage<v1::GenerateResponse>(arena), item);
  }

 protected:
  void Shape(const ModelInfo& info, const SolveInput& input, v1::GenerateResponse* in,
             RunItem* item) {
    reply = in;
    const int64_t n = input.num_samples;
    item->outputs = AllocateTensor(std::array{n, info.output_dim}, reply->mutable_samples());
    if (info.has_decoder)
      item->final_states = AllocateTensor(std::array{n, info.state_dim}, reply->mutable_latents());
    if (input.options.return_trajectory)
      item->trajectory = AllocateTrajectory(info, input, reply->mutable_trajectory());
  }
};

struct StreamGenerateMethod : GenerateMethod {
  static constexpr Method kMethod = Method::kStreamGenerate;
  using Responder = StreamResponder;

  void Allocate(const ModelInfo& info, const SolveInput& input, Arena* arena, RunItem* item) {
    last = Arena::CreateMessage<v1::StreamGenerateResponse>(arena);
    Shape(info, input, last->mutable_result(), item);
  }
  const google::protobuf::Message& Reply(const ServedModel& model, const std::string& request_id) {
    GenerateMethod::Reply(model, request_id);
    return *last;
  }
  static v1::StreamGenerateResponse ProgressOf(const SolveProgress& progress, int64_t num_steps) {
    v1::StreamGenerateResponse event;
    FillProgress(progress, num_steps, event.mutable_progress());
    return event;
  }

  v1::StreamGenerateResponse* last = nullptr;  // in the arena of Allocate
};

struct GradientMethod {
  static constexpr Method kMethod = Method::kGradient;
  using Request = v1::GradientRequest;
  using Responder = UnaryResponder;

  absl::StatusOr<SolveInput> Decode(const Request* request, const ModelInfo& info,
                                    int64_t max_message_bytes) {
    SolveInput solve;
    DEEPPCR_ASSIGN_OR_RETURN(GradientInput input,
                             DecodeGradient(*request, info, max_message_bytes, &solve));
    back.emplace(std::move(input));
    return solve;
  }
  WayBack* way_back() { return back.has_value() ? &*back : nullptr; }

  void Allocate(const ModelInfo& info, const SolveInput& input, Arena* arena, RunItem* item) {
    Shape(info, input, Arena::CreateMessage<v1::GradientResponse>(arena), item);
  }
  void Shape(const ModelInfo& info, const SolveInput& input, v1::GradientResponse* in,
             RunItem* item) {
    reply = in;
    if (!back->solves()) return;
    item->outputs =
        AllocateTensor(std::array{input.num_samples, info.output_dim}, reply->mutable_outputs());
    if (input.options.return_trajectory)
      item->trajectory = AllocateTrajectory(info, input, reply->mutable_trajectory());
  }
  void AllocateBack(const ModelInfo& info, const SolveInput& input, RunItem* run,
                    BackwardItem* item) {
    const GradientInput& wanted = back->input();
    WayBack::Tensors tensors;
    if (wanted.by_inputs) tensors.inputs = reply->mutable_input_gradients();
    if (wanted.by_initial_state) tensors.initial_state = reply->mutable_initial_state_gradients();
    if (wanted.by_step_noise) tensors.step_noise = reply->mutable_step_noise_gradients();
    back->Allocate(info, input.num_steps, tensors, run, item);
  }

  v1::SolveReport* report() { return reply->mutable_report(); }
  void SetHandle(const std::string& handle) { reply->set_trajectory_handle(handle); }
  void FillBack(const BackwardOptions& options, double seconds) {
    FillBackwardReport(options, back->reports(), back->errors(), seconds,
                       reply->mutable_backward());
    reply->mutable_losses()->Add(back->losses().begin(), back->losses().end());
  }
  const google::protobuf::Message& Reply(const ServedModel&, const std::string& request_id) {
    if (!request_id.empty()) reply->set_request_id(request_id);
    return *reply;
  }

  std::optional<WayBack> back;            // once decoded
  v1::GradientResponse* reply = nullptr;  // in the arena of Allocate
};

struct StreamGradientMethod : GradientMethod {
  static constexpr Method kMethod = Method::kStreamGradient;
  using Responder = PieceResponder;

  absl::StatusOr<SolveInput> Decode(const Request* request, const ModelInfo& info,
                                    int64_t max_message_bytes) {
    SolveInput solve;
    DEEPPCR_ASSIGN_OR_RETURN(GradientInput input,
                             DecodeParameterGradient(*request, info, max_message_bytes, &solve));
    back.emplace(std::move(input));
    return solve;
  }
  void Allocate(const ModelInfo& info, const SolveInput& input, Arena* arena, RunItem* item) {
    last = Arena::CreateMessage<v1::StreamGradientResponse>(arena);
    Shape(info, input, last->mutable_result(), item);
  }
  void AllocateBack(const ModelInfo& info, const SolveInput& input, RunItem* run,
                    BackwardItem* item) {
    GradientMethod::AllocateBack(info, input, run, item);
    parameters = std::make_unique<ParameterGradients>(info, input.num_samples, input.num_steps);
    parameters->Attach(item);
  }
  absl::Status SumParameters(const LoadedSystem& system, const BackwardItem& item,
                             const CancelToken* token, absl::FunctionRef<void(double)> pause) {
    return parameters->Sum(system, item, token, pause);
  }
  std::unique_ptr<MessageSource> Pieces(int64_t max_message_bytes) {
    return std::make_unique<ParameterPieces>(std::move(*parameters).Take(), max_message_bytes);
  }
  const google::protobuf::Message& Reply(const ServedModel& model, const std::string& request_id) {
    GradientMethod::Reply(model, request_id);
    return *last;
  }

  v1::StreamGradientResponse* last = nullptr;  // in the arena of Allocate
  std::unique_ptr<ParameterGradients> parameters;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_SOLVE_METHODS_H_
