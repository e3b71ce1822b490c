// SPDX-License-Identifier: Apache-2.0
#include "server/service.h"

#include <array>
#include <utility>

#include "absl/strings/str_replace.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "server/reply_codec.h"
#include "server/request_codec.h"
#include "server/unary_call.h"

namespace deeppcr {
namespace {

// Tells a refused client how long the queue is, for its back-off.
constexpr char kQueueDepthKey[] = "deeppcr-queue-depth";

// What a handler may compute itself: about as long as it takes to wake up another thread, and too
// short to be felt by the other handlers.
constexpr double kQuickSeconds = 50e-6;
constexpr int64_t kQuickBytes = int64_t{16} << 10;  // what the codec does takes time too

// A call whose work goes through the batcher.
class QueuedCall : public UnaryCall, public Job {
 public:
 protected:
  using UnaryCall::UnaryCall;

  // After a call of this that gives OK, `this` belongs to the batcher and may be gone.
  absl::Status Submit(std::shared_ptr<ServedModel> served, int64_t num_samples, int64_t num_bytes) {
    model = std::move(served);
    version_ = model->version;
    samples = num_samples;
    bytes = num_bytes;
    token = &token_;
    held_bytes_ = bytes;
    const absl::Status status = context_.batcher.Enqueue(this);
    if (!status.ok()) held_bytes_ = 0;
    if (status.code() == absl::StatusCode::kResourceExhausted) {
      rpc_->AddTrailingMetadata(kQueueDepthKey, StrCat(context_.batcher.Depth(*model)));
    }
    return status;
  }

  // An unread reply must not hold on to the model: whoever unloads that waits for its last user.
  void Answer(const google::protobuf::Message& reply) {
    model.reset();
    Complete(absl::OkStatus(), &reply);
  }

  // Completes with the error; where the request is at fault, it says which request that was.
  void Refuse(const absl::Status& status) {
    model.reset();
    const absl::Status attributed = Attribute(status);
    if (attributed.code() != absl::StatusCode::kInvalidArgument || model_.empty()) {
      return Complete(attributed);
    }
    std::string where = StrCat(" (model ", Quoted(model_));
    if (!request_id_.empty()) where += StrCat(", request ", Quoted(request_id_));
    Complete(absl::InvalidArgumentError(StrCat(attributed.message(), where, ")")));
  }
};

class ForwardCall final : public QueuedCall {
 public:
  ForwardCall(ServiceContext& context, const RawCall& call)
      : QueuedCall(context, Method::kForward, call) {}

  void Start() {
    if (absl::Status status = Admit(); !status.ok()) Refuse(status);
  }

  absl::Status Prepare() override {
    if (!checked_) DEEPPCR_RETURN_IF_ERROR(CheckValues());
    const int64_t n = input_.num_samples;
    const ModelInfo& info = model->model->info();
    reports_.resize(static_cast<size_t>(n));
    run_item.num_samples = n;
    run_item.inputs = input_.inputs.values;
    run_item.initial_states = input_.initial_states.values;
    run_item.outputs = AllocateTensor(std::array{n, info.output_dim}, reply_.mutable_outputs());
    if (input_.options.return_trajectory) {
      run_item.trajectory = AllocateTensor(std::array{n, info.num_layers + 1, info.state_dim},
                                           reply_.mutable_trajectory());
    }
    run_item.reports = reports_;
    return absl::OkStatus();
  }

  void Done(absl::Status status, const JobTimings& timings) override {
    timings_ = timings;
    if (status.ok()) status = JudgeReports();
    if (!status.ok()) return Refuse(status);
    ObserveReports();
    FillSolveReport(*model, options, reports_, timings, reply_.mutable_report());
    reply_.set_request_id(request_.request_id());
    AnswerAndShadow();
  }

 private:
  ~ForwardCall() override = default;

  void FreeRequest() override {
    v1::ForwardRequest().Swap(&request_);
    v1::ForwardResponse().Swap(&reply_);
    input_ = {};
    reports_ = {};
  }

  absl::Status Admit() {
    DEEPPCR_RETURN_IF_ERROR(Receive(&request_));
    request_id_ = request_.request_id();
    DEEPPCR_ASSIGN_OR_RETURN(std::shared_ptr<ServedModel> served,
                             context_.store.Find(model_, version_));
    const LoadedModel& loaded = *served->model;
    DEEPPCR_ASSIGN_OR_RETURN(input_,
                             DecodeForward(request_, loaded.info(), context_.max_message_bytes));
    DEEPPCR_ASSIGN_OR_RETURN(options, loaded.Resolve(input_.options, input_.num_samples));
    checked_ = input_.request_bytes <= kInlineCheckBytes;
    if (checked_) DEEPPCR_RETURN_IF_ERROR(CheckValues());
    quick = IsQuick(loaded);
    series_ = served->metrics->ForSolver(options.solver);
    return Submit(std::move(served), input_.num_samples, input_.request_bytes + input_.reply_bytes);
  }

  // Only of the sequential solver is it known beforehand how long it takes.
  bool IsQuick(const LoadedModel& loaded) const {
    const double seconds = loaded.plan().Lookup(input_.num_samples).sequential_seconds;
    return options.solver == "sequential" && seconds > 0 && seconds <= kQuickSeconds &&
           input_.request_bytes + input_.reply_bytes <= kQuickBytes;
  }

  absl::Status CheckValues() const {
    DEEPPCR_RETURN_IF_ERROR(CheckFinite(input_.inputs.values, "inputs"));
    return CheckFinite(input_.initial_states.values, "initial_states");
  }

  // The samples' terminations as the status of the whole call.
  absl::Status JudgeReports() const {
    for (size_t i = 0; i < reports_.size(); ++i) {
      const SampleReport& report = reports_[i];
      if (report.termination == Termination::kCancelled) {
        return absl::CancelledError("cancelled while it was computed");
      }
      if (report.termination == Termination::kDeadline) {
        return absl::DeadlineExceededError("the deadline passed while it was computed");
      }
      if (report.converged || options.on_no_convergence != OnNoConvergence::kError) continue;
      return absl::AbortedError(
          StrCat("sample ", i, " did not converge: ", ToString(report.termination), " after ",
                 report.iterations, " iterations, error estimate ", report.error_estimate,
                 ", rtol ", options.rtol, " (options.on_no_convergence is ERROR)"));
    }
    return absl::OkStatus();
  }

  void ObserveReports() const {
    int64_t fallbacks = 0;
    for (const SampleReport& report : reports_) {
      ObserveFinite(*series_->iterations, report.iterations);
      ObserveFinite(*series_->dependent_stages, static_cast<double>(report.dependent_stages));
      if (report.error_estimate > 0) ObserveFinite(*series_->error_estimate, report.error_estimate);
      if (!report.fallback) continue;
      ++fallbacks;
      model->metrics->fallbacks[static_cast<size_t>(report.termination)]->Increment();
    }
    if (fallbacks == 0) return;
    context_.logger.LogLimited(LogLevel::kInfo, "fallback",
                               {{"model", model->name},
                                {"version", model->version},
                                {"solver", options.solver},
                                {"samples", fallbacks},
                                {"request_id", request_id_}});
  }

  void AnswerAndShadow() {
    v1::ForwardResponse reply;  // its memory ends here, and not when the client has read it
    reply.Swap(&reply_);
    if (!context_.shadow.Sample()) return Answer(reply);
    // Copied before the reply: `this` and the request are gone after it.
    const auto dim = static_cast<size_t>(model->model->info().input_dim);
    const std::span<const float> first = input_.inputs.values.first(dim);
    std::vector<float> sample(first.begin(), first.end());
    const std::shared_ptr<ServedModel> served = model;
    const ResolvedOptions resolved = options;
    ShadowSampler& shadow = context_.shadow;
    Answer(reply);
    shadow.Offer(served, resolved, std::move(sample));
  }

  v1::ForwardRequest request_;
  v1::ForwardResponse reply_;
  ForwardInput input_;
  bool checked_ = false;
  std::vector<SampleReport> reports_;
};

class CompareCall final : public QueuedCall {
 public:
  CompareCall(ServiceContext& context, const RawCall& call)
      : QueuedCall(context, Method::kCompare, call) {
    batchable = false;
  }

  void Start() {
    if (absl::Status status = Admit(); !status.ok()) Refuse(status);
  }

  absl::Status Prepare() override { return CheckFinite(input_.inputs.values, "inputs"); }

  absl::Status RunAlone() override {
    const Clock::time_point start = Clock::now();
    absl::StatusOr<std::vector<ComparisonRow>> rows = model->model->Compare(
        input_.inputs.values, input_.num_samples, input_.rows, input_.repetitions, &token_);
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

  void FreeRequest() override {
    v1::CompareRequest().Swap(&request_);
    input_ = {};
    rows_ = {};
  }

  absl::Status Admit() {
    DEEPPCR_RETURN_IF_ERROR(Receive(&request_));
    DEEPPCR_ASSIGN_OR_RETURN(std::shared_ptr<ServedModel> served,
                             context_.store.Find(model_, version_));
    DEEPPCR_ASSIGN_OR_RETURN(
        input_, DecodeCompare(request_, served->model->info(), context_.max_message_bytes));
    series_ = &served->metrics->several;
    return Submit(std::move(served), input_.num_samples, input_.request_bytes + input_.reply_bytes);
  }

  v1::CompareRequest request_;
  CompareInput input_;
  std::vector<ComparisonRow> rows_;
  double compute_seconds_ = 0;
};

// Of a reply that waits to be read, with what gRPC keeps of its call.
int64_t ReplyBytes(const google::protobuf::Message& reply) {
  return static_cast<int64_t>(reply.ByteSizeLong()) + 4096;
}

// A call that is answered at once by the handler.
template <typename Request, typename Reply>
class ImmediateCall final : public UnaryCall {
 public:
  using UnaryCall::UnaryCall;

  // answer(request, &reply) gives the status.
  template <typename Answer>
  void Start(const Answer& answer) {
    Request request;
    Reply reply;
    absl::Status status = Receive(&request);
    if (status.ok()) status = answer(request, &reply);
    if (status.ok()) status = HoldBytes(ReplyBytes(reply));
    Complete(status, &reply);
  }

 private:
  ~ImmediateCall() override = default;
};

// A call that changes which models are loaded; runs on the loader thread.
template <typename Request, typename Reply>
class AdminCall final : public UnaryCall {
 public:
  using UnaryCall::UnaryCall;

  // work(request, &reply) gives the status.
  template <typename Work>
  void Start(Work work) {
    absl::Status status = Admit();
    if (status.ok() && !context_.loader.Post([this, work = std::move(work)] { Run(work); })) {
      status = absl::ResourceExhaustedError("too many loads and unloads wait; try again later");
    }
    if (!status.ok()) Complete(status);
  }

 private:
  ~AdminCall() override = default;

  absl::Status Admit() {
    if (!context_.allow_remote_admin && !IsLoopbackPeer(rpc_->peer())) {
      return absl::PermissionDeniedError(
          "models are loaded and unloaded from the server's own machine only, unless it runs with "
          "--allow_remote_admin");
    }
    return Receive(&request_);
  }

  template <typename Work>
  void Run(const Work& work) {
    // Loads wait for one another, perhaps long.
    if (token_.cancelled()) return Complete(Attribute(absl::CancelledError("cancelled")));
    Reply reply;
    absl::Status status = work(request_, &reply);
    if (status.ok()) status = HoldBytes(ReplyBytes(reply));
    Complete(status, &reply);
  }

  Request request_;
};

}  // namespace

bool IsLoopbackPeer(std::string_view peer) {
  if (peer.starts_with("unix:") || peer.starts_with("unix-abstract:")) return true;
  if (peer.starts_with("ipv4:")) return peer.substr(5).starts_with("127.");
  if (!peer.starts_with("ipv6:")) return false;
  const std::string address = absl::StrReplaceAll(
      ToAbsl(peer.substr(5)), {{"%5B", "["}, {"%5D", "]"}, {"%5b", "["}, {"%5d", "]"}});
  return address.starts_with("[::1]:") || address.starts_with("[::ffff:127.");
}

grpc::ServerUnaryReactor* DeepPcrService::Forward(Rpc* rpc, const Bytes* request,
                                                  Bytes* reply) noexcept {
  auto* call = new ForwardCall(context_, {rpc, request, reply});
  call->Start();
  return call;
}

grpc::ServerUnaryReactor* DeepPcrService::Compare(Rpc* rpc, const Bytes* request,
                                                  Bytes* reply) noexcept {
  auto* call = new CompareCall(context_, {rpc, request, reply});
  call->Start();
  return call;
}

grpc::ServerUnaryReactor* DeepPcrService::ListModels(Rpc* rpc, const Bytes* request,
                                                     Bytes* reply) noexcept {
  auto* call = new ImmediateCall<v1::ListModelsRequest, v1::ListModelsResponse>(
      context_, Method::kListModels, {rpc, request, reply});
  call->Start([this](const auto&, v1::ListModelsResponse* list) {
    for (const ModelStatus& status : context_.store.List()) {
      FillSummary(status, list->add_models());
    }
    return absl::OkStatus();
  });
  return call;
}

grpc::ServerUnaryReactor* DeepPcrService::GetModel(Rpc* rpc, const Bytes* request,
                                                   Bytes* reply) noexcept {
  auto* call = new ImmediateCall<v1::GetModelRequest, v1::GetModelResponse>(
      context_, Method::kGetModel, {rpc, request, reply});
  call->Start([this](const auto& wanted, v1::GetModelResponse* description) -> absl::Status {
    DEEPPCR_ASSIGN_OR_RETURN(const ModelStatus status,
                             context_.store.Describe(wanted.model(), wanted.version()));
    FillModel(status, description);
    return absl::OkStatus();
  });
  return call;
}

grpc::ServerUnaryReactor* DeepPcrService::LoadModel(Rpc* rpc, const Bytes* request,
                                                    Bytes* reply) noexcept {
  auto* call = new AdminCall<v1::LoadModelRequest, v1::LoadModelResponse>(
      context_, Method::kLoadModel, {rpc, request, reply});
  call->Start([this](const auto& wanted, v1::LoadModelResponse* loaded) -> absl::Status {
    const auto start = std::chrono::steady_clock::now();
    DEEPPCR_ASSIGN_OR_RETURN(const ModelStatus status,
                             context_.store.Load(wanted.model(), wanted.version()));
    FillSummary(status, loaded->mutable_summary());
    loaded->set_seconds(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    return absl::OkStatus();
  });
  return call;
}

grpc::ServerUnaryReactor* DeepPcrService::UnloadModel(Rpc* rpc, const Bytes* request,
                                                      Bytes* reply) noexcept {
  auto* call = new AdminCall<v1::UnloadModelRequest, v1::UnloadModelResponse>(
      context_, Method::kUnloadModel, {rpc, request, reply});
  call->Start([this](const auto& wanted, v1::UnloadModelResponse*) {
    return context_.store.Unload(wanted.model(), wanted.version());
  });
  return call;
}

}  // namespace deeppcr
