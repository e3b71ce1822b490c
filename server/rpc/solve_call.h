// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_SOLVE_CALL_H_
#define DEEPPCR_SERVER_RPC_SOLVE_CALL_H_

// The common part of calls that compute: Forward, Generate, StreamGenerate and Compare go through
// the batcher.

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "server/codec/reply_codec.h"
#include "server/rpc/call.h"
#include "server/schedule/batcher.h"

namespace deeppcr {

// A call whose work goes through the batcher.
class QueuedCall : public Call, public Job {
 public:
  // Decodes and submits; answers at once where that fails. `this` may be gone afterwards.
  void Start();

 protected:
  using Call::Call;

  // Decodes the request and ends with Submit.
  virtual absl::Status Admit() = 0;
  // Hands the call to the batcher. After OK `this` belongs to the batcher and may be gone.
  absl::Status Submit(std::shared_ptr<ServedModel> served, int64_t num_samples, int64_t num_bytes);
  // Answers without holding on to the model: an unload waits for users, not for unread replies.
  void Answer(const google::protobuf::Message& reply);
  // Completes with the error, which names model and request if the request is at fault.
  void Refuse(const absl::Status& status);
  // Sets a deadline of the request's own; called before Submit.
  void LimitTo(std::chrono::microseconds time) {
    sooner_.emplace(std::min(Clock::now() + time, token_.deadline()), &token_);
    token = &*sooner_;
  }

 private:
  // Tells a refused client how long the queue is, for its back-off.
  virtual void TellDepth(int64_t depth);

  std::optional<CancelToken> sooner_;
};

// One solve: Forward or Generate.
class SolveCall : public QueuedCall {
 public:
  absl::Status Prepare() override;
  void Done(absl::Status status, const JobTimings& timings) override;

 protected:
  using QueuedCall::QueuedCall;

  // Receives the request, decodes it with `decode` (DecodeForward, DecodeGenerate) and submits it;
  // the durations count as those of `method`.
  template <typename Request, typename Decode>
  absl::Status AdmitRequest(Request* request, const Decode& decode, Method method) {
    DEEPPCR_RETURN_IF_ERROR(Receive(request));
    request_id_ = request->request_id();
    DEEPPCR_ASSIGN_OR_RETURN(std::shared_ptr<ServedModel> served, FindModel());
    DEEPPCR_ASSIGN_OR_RETURN(input_,
                             decode(*request, served->model->info(), context_.max_message_bytes));
    return SubmitInput(std::move(served), method);
  }
  // Finds the model of the request. From here on the call counts in the model's statistics.
  absl::StatusOr<std::shared_ptr<ServedModel>> FindModel();
  absl::Status SubmitInput(std::shared_ptr<ServedModel> served, Method method);
  // Gives the reply a trajectory for run_item to write, if the request wants one.
  template <typename Response>
  void AllocateTrajectory(const ModelInfo& info, Response* response) {
    if (!input_.options.return_trajectory) return;
    run_item.trajectory =
        AllocateTensor(std::array{input_.num_samples, input_.num_steps + 1, info.state_dim},
                       response->mutable_trajectory());
  }
  // Shapes the reply's tensors and points run_item at them.
  virtual void AllocateReply(const ModelInfo& info) = 0;
  // Completes the reply and ends with AnswerAndShadow.
  virtual void Reply(const JobTimings& timings) = 0;
  // Answers, and offers a shadow if it is this request's turn. `this` may be gone afterwards.
  void AnswerAndShadow(const google::protobuf::Message& reply);
  void ForgetInput();

  SolveInput input_;
  std::vector<SampleReport> reports_;

 private:
  bool IsQuick(const LoadedModel& loaded) const;
  absl::Status JudgeReports() const;
  void ObserveReports() const;

  bool checked_ = false;
};

// Entry points for the handlers: each makes a call that deletes itself, starts it, and returns the
// reactor that gRPC wants.
grpc::ServerUnaryReactor* StartForward(ServiceContext& context, const RawCall& call,
                                       grpc::ByteBuffer* reply);
grpc::ServerUnaryReactor* StartGenerate(ServiceContext& context, const RawCall& call,
                                        grpc::ByteBuffer* reply);
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartStreamGenerate(ServiceContext& context,
                                                                const RawCall& call);
grpc::ServerUnaryReactor* StartCompare(ServiceContext& context, const RawCall& call,
                                       grpc::ByteBuffer* reply);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_SOLVE_CALL_H_
