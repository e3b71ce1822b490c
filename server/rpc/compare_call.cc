// SPDX-License-Identifier: Apache-2.0
#include "server/codec/reply_codec.h"
#include "server/rpc/solve_call.h"

namespace deeppcr {
namespace {

class CompareCall final : public QueuedCall {
 public:
  CompareCall(ServiceContext& context, const RawCall& call, grpc::ByteBuffer* reply)
      : QueuedCall(context, Method::kCompare, call), responder_(*this, reply) {
    RespondThrough(&responder_);
    batchable = false;
  }
  grpc::ServerUnaryReactor* reactor() { return &responder_; }

  absl::Status Prepare() override { return CheckFinite(input_.request); }

  absl::Status RunAlone() override {
    const Clock::time_point start = Clock::now();
    RunItem request = input_.request.Item();
    request.token = &token_;
    absl::StatusOr<std::vector<ComparisonRow>> rows =
        model->model->Compare(request, input_.rows, input_.repetitions);
    compute_seconds_ = std::chrono::duration<double>(Clock::now() - start).count();
    if (rows.ok()) rows_ = *std::move(rows);
    return rows.status();
  }

  void Done(absl::Status status, const JobTimings& timings) override {
    timings_ = timings;
    timings_.run.wall_seconds = compute_seconds_;
    if (!status.ok()) return Refuse(status);
    v1::CompareResponse reply;
    FillCompare(*model, input_, rows_, &reply);
    Answer(reply);
  }

 private:
  ~CompareCall() override = default;

  absl::Status Admit() override {
    DEEPPCR_RETURN_IF_ERROR(Receive(&request_));
    DEEPPCR_ASSIGN_OR_RETURN(std::shared_ptr<ServedModel> served,
                             context_.store.Find(model_, version_));
    DEEPPCR_ASSIGN_OR_RETURN(
        input_, DecodeCompare(request_, served->model->info(), context_.max_message_bytes));
    series_ = served->metrics->ForSolver(kSeveralSolvers, Method::kCompare);
    const SolveInput& request = input_.request;
    return Submit(std::move(served), request.num_samples,
                  request.request_bytes + request.reply_bytes);
  }

  void FreeRequest() override {
    v1::CompareRequest().Swap(&request_);
    input_ = {};
    rows_ = {};
  }

  UnaryResponder responder_;
  v1::CompareRequest request_;
  CompareInput input_;
  std::vector<ComparisonRow> rows_;
  double compute_seconds_ = 0;
};

}  // namespace

grpc::ServerUnaryReactor* StartCompare(ServiceContext& context, const RawCall& call,
                                       grpc::ByteBuffer* reply) {
  auto* compare = new CompareCall(context, call, reply);
  grpc::ServerUnaryReactor* reactor = compare->reactor();
  compare->Start();
  return reactor;
}

}  // namespace deeppcr
