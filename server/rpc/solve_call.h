// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_SOLVE_CALL_H_
#define DEEPPCR_SERVER_RPC_SOLVE_CALL_H_

// The calls that solve: they go through the batcher. One class for all methods; a struct per method
// (rpc/solve_methods.h, rpc/v2/infer_method.h) says what is particular to it.

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "google/protobuf/arena.h"
#include "kernels/base/never_fits.h"
#include "server/codec/generation_controls.h"
#include "server/codec/reply_codec.h"
#include "server/rpc/call.h"
#include "server/rpc/call_queue.h"
#include "server/rpc/message_memory.h"
#include "server/rpc/way_back.h"
#include "server/schedule/batcher.h"

namespace deeppcr {

// The status about a member of `field`, about that member by its full name.
absl::Status InField(std::string_view field, const absl::Status& status);

// True if the job is so short that the handler should compute it itself. Only the time that the
// sequential solver takes is known beforehand. bytes: those of the request and its reply.
bool IsShort(const Plan& plan, const ResolvedOptions& options, int64_t samples, int64_t bytes);

// The seconds that so many samples take in a full batch, by the plan; 0 where it does not say.
double ExpectedSeconds(const Plan& plan, const ResolvedOptions& options, int64_t samples);

// Counts what the samples cost, and logs those that fell back.
void ObserveReports(std::span<const SampleReport> reports, const ServedModel& model,
                    std::string_view solver, absl::FunctionRef<std::string_view()> request_id,
                    const SolverSeries& series, Logger& logger);

// One call of one method. `M` has
//   kMethod, Request, Responder
//   Decode(Request*, info, max_message_bytes) -> StatusOr<SolveInput>, whose views are into the
//     request and the M object
//   Allocate(info, input, Arena*, RunItem*): shapes the reply's tensors and points the item at them
//   report() -> the SolveReport to fill in, after Allocate
//   SetHandle(handle): names the trajectory that stays on the server, before Reply
//   Reply(model, request_id) -> the whole reply, which lives as long as the arena and the M object
//   ProgressOf(progress, num_steps) -> a message of the stream; only where the reply is a stream
//   way_back() -> the WayBack of a request for gradients, or null; only where there are such
//   requests. These have AllocateBack(info, input, RunItem*, BackwardItem*), after Allocate, and
//   FillBack(job, seconds), before Reply
//   SumParameters(system, back_item, token, pause), after the way back, and
//   Pieces(max_message_bytes) -> the messages before the reply; only where there are such
// `this` may be gone after Start, Done, and whatever answers.
template <typename M>
class SolveCall final : public Call,
                        public Job,
                        public ProgressListener,
                        public SystemPreparer::Waiter {
 public:
  template <typename... ResponderArguments>
  SolveCall(ServiceContext& context, const RawCall& call, ResponderArguments&&... arguments)
      : Call(context, M::kMethod, call),
        responder_(*this, std::forward<ResponderArguments>(arguments)...) {
    RespondThrough(&responder_);
  }
  typename M::Responder* responder() { return &responder_; }

  // Decodes and submits; answers at once where that fails.
  void Start() {
    if (absl::Status status = Admit(); !status.ok()) End(status);
  }

  absl::Status Prepare() override {
    if (!checked_) DEEPPCR_RETURN_IF_ERROR(CheckValues());
    reports_.resize(static_cast<size_t>(input_.num_samples));
    run_item.samples = input_.Samples();
    run_item.reports = reports_;
    if constexpr (kStreams) run_item.listener = this;
    const ModelInfo& info = model->model->info();
    method_.Allocate(info, input_, reply_memory_.arena(), &run_item);
    AllocateKept(info);
    if constexpr (kGoesBack) {
      if (goes_back_) method_.AllocateBack(info, input_, &run_item, &back_item);
    }
    return absl::OkStatus();
  }

  absl::Status PrepareBack() override {
    if constexpr (kGoesBack) return method_.way_back()->Seed(input_, run_item, &back_item);
    return absl::OkStatus();
  }

  absl::Status FinishBack(GoBackFunction go_back, absl::FunctionRef<void(double)> pause) override {
    if constexpr (kGoesBack) {
      DEEPPCR_RETURN_IF_ERROR(
          method_.way_back()->EstimateErrors(go_back, options, run_item, back_item));
      method_.way_back()->Complete(input_);
    }
    if constexpr (kSendsPieces) return method_.SumParameters(*system, back_item, token, pause);
    return absl::OkStatus();
  }

  void Done(absl::Status status, const JobTimings& timings) override {
    timings_ = timings;
    if (status.ok()) status = JudgeReports(Solved(), input_.options);
    if constexpr (kGoesBack) {
      if (status.ok() && goes_back_) status = method_.way_back()->Judge(input_.options);
    }
    const bool shadowed = status.ok() && context_.shadow.Sample(*model);
    // Copied before the states are given away, after which they may be gone.
    std::optional<OwnedBackwardSample> pair;
    if (shadowed && goes_back_) pair = FirstOf(back_item);
    if (status.ok() && input_.keeps_trajectory) status = Keep();
    if (!status.ok()) return End(status);
    PutIntoBounds(input_.controls, run_item.outputs);
    ObserveReports(
        Solved(), *model, options.solver, [this] { return RequestId(); }, *series_,
        context_.logger);
    FillSolveReport(*this, Solved(), timings, method_.report());
    if constexpr (kGoesBack) {
      if (goes_back_) method_.FillBack(*back, timings.back_seconds);
    }
    const google::protobuf::Message& reply = method_.Reply(*model, request_id_);
    if constexpr (kSendsPieces) responder_.set_source(method_.Pieces(context_.max_message_bytes));
    if (pair.has_value()) return AnswerAndShadowBack(reply, *std::move(pair));
    if (shadowed) return AnswerAndShadow(reply);
    Answer(reply);
  }

  // Goes on with the system that the call waited for.
  void Ready(SystemPreparer::Made made) override {
    if (!made.ok()) return End(AboutSteps(input_.names, input_.system, made.status()));
    system = *std::move(made);
    if (absl::Status status = Submit(); !status.ok()) End(status);
  }

  void OnProgress(const SolveProgress& progress) override {
    if constexpr (kStreams) {
      if (!responder_.idle()) return;  // the client is told as fast as it reads
      responder_.Progress(Serialize(M::ProgressOf(progress, input_.num_steps)));
    }
  }

 private:
  static constexpr bool kStreams = requires(const SolveProgress& p) { M::ProgressOf(p, 0); };
  static constexpr bool kGoesBack = requires(M & method) { method.way_back(); };
  static constexpr bool kSendsPieces = requires(M & method) { method.Pieces(0); };

  ~SolveCall() override = default;

  // The reports of samples that were solved.
  std::span<const SampleReport> Solved() const {
    return solves ? std::span<const SampleReport>(reports_) : std::span<const SampleReport>();
  }
  absl::Status CheckValues() {
    DEEPPCR_RETURN_IF_ERROR(CheckFinite(input_));
    CompleteGeneration(model->model->info(), &input_);
    if constexpr (kGoesBack) {
      if (goes_back_) return method_.way_back()->Check(input_);
    }
    return absl::OkStatus();
  }

  // Gives the solve memory for the states that stay on the server, unless it has some for the
  // reply.
  void AllocateKept(const ModelInfo& info) {
    if (!input_.keeps_trajectory || !run_item.trajectory.empty()) return;
    kept_.resize(static_cast<size_t>(StatesOf(info)));
    run_item.trajectory = kept_;
  }
  int64_t StatesOf(const ModelInfo& info) const {
    return input_.num_samples * (input_.num_steps + 1) * info.state_dim;
  }

  static absl::Status WithoutGradients() {
    return absl::UnimplementedError(
        "the server was started without gradients; start it with --gradients");
  }

  // Refuses what is never kept.
  absl::Status CheckKeeping() const {
    if (!input_.keeps_trajectory) return absl::OkStatus();
    const FieldName field(input_.names.options, ".keep_trajectory");
    const LoadedModel& loaded = *model->model;
    const int64_t limit = context_.trajectories.max_bytes();
    if (!context_.gradients) return WithoutGradients();
    if (limit == 0 || loaded.FindForGradients({}, 0, 1)->backward_limits() == nullptr)
      return absl::UnimplementedError(
          StrCat(field.Text(),
                 ": expected false, as this server keeps no trajectories of this model: that takes "
                 "--max_trajectory_bytes above 0, and a backend with gradients of it"));
    const int64_t kept =
        TrajectoryStore::BytesOf(input_.Samples(), StatesOf(loaded.info())) + input_.made_bytes;
    if (kept <= limit) return absl::OkStatus();
    return NeverFits(field.Text(), ": the trajectory would take ", kept, " bytes; the limit is ",
                     limit, ". Ask for fewer samples");
  }

  // Keeps the states of the solve, where all of them have a gradient.
  absl::Status Keep() {
    for (const SampleReport& report : reports_)
      if (!report.converged) return absl::OkStatus();
    DEEPPCR_ASSIGN_OR_RETURN(std::string owner, Caller());
    if (kept_.empty()) kept_.assign(run_item.trajectory.begin(), run_item.trajectory.end());
    DEEPPCR_ASSIGN_OR_RETURN(
        const std::string handle,
        context_.trajectories.Keep({.model = model->name,
                                    .version = model->version,
                                    .served = model,
                                    .owner = std::move(owner),
                                    .system = input_.system,
                                    .samples = OwnedSampleInputs(run_item.samples),
                                    .states = std::move(kept_)}));
    method_.SetHandle(handle);
    return absl::OkStatus();
  }

  absl::Status Admit() {
    auto* const request =
        google::protobuf::Arena::CreateMessage<typename M::Request>(request_memory_.arena());
    DEEPPCR_RETURN_IF_ERROR(Receive(request));
    DEEPPCR_ASSIGN_OR_RETURN(model, context_.store.Find(model_, version_));
    version_ = model->version;
    // From here on the call counts in the model's statistics.
    model_metrics_ = model->metrics;
    statistics_ = &model_metrics_->statistics;
    DEEPPCR_ASSIGN_OR_RETURN(
        input_, method_.Decode(request, model->model->info(), context_.max_message_bytes));
    DEEPPCR_RETURN_IF_ERROR(CheckKeeping());
    if constexpr (kGoesBack) DEEPPCR_RETURN_IF_ERROR(NoteWayBack());
    DEEPPCR_RETURN_IF_ERROR(CheckScratch());
    token = &token_;
    if (input_.timeout.has_value()) {
      limited_.emplace(std::min(start_ + *input_.timeout, token_.deadline()), &token_);
      token = &*limited_;
    }
    request_bytes_ = parsed_bytes_ + request_memory_.bytes();
    const bool completes = NeedsCompletion(model->model->info(), input_);
    checked_ = request_bytes_ <= kInlineCheckBytes &&
               (!completes || input_.made_bytes <= kInlineMadeBytes);
    if (checked_) DEEPPCR_RETURN_IF_ERROR(CheckValues());
    const LoadedModel& loaded = *model->model;
    system = goes_back_ ? loaded.FindForGradients(input_.options, input_.system, input_.num_samples,
                                                  /*by_parameters=*/kSendsPieces)
                        : loaded.FindFor(input_.options, input_.system, input_.num_samples);
    return system != nullptr ? Submit() : AwaitSystem();
  }

  // Notes whether the call goes back, and takes the states that it has a handle of.
  absl::Status NoteWayBack() {
    WayBack* way_back = method_.way_back();
    goes_back_ = way_back != nullptr;
    if (!goes_back_) return absl::OkStatus();
    if (!context_.gradients) return WithoutGradients();
    solves = way_back->solves();
    back_item.columns = way_back->input().columns;
    const std::string_view handle = way_back->input().handle;
    if (handle.empty()) return absl::OkStatus();
    DEEPPCR_ASSIGN_OR_RETURN(const std::string caller, Caller());
    auto kept = context_.trajectories.Find(handle, model, caller);
    if (!kept.ok())
      return absl::Status(kept.status().code(),
                          StrCat(input_.names.handle, ": ", ToStd(kept.status().message())));
    way_back->Follow(*std::move(kept));
    return absl::OkStatus();
  }

  // Bounds memory that neither request nor reply stand for: the budget of bytes admits a request of
  // any size if it is alone.
  absl::Status CheckScratch() const {
    const int64_t limit = context_.batcher.max_bytes();
    if (input_.scratch_bytes <= limit) return absl::OkStatus();
    return NeverFits("the states of the solve would have ", input_.scratch_bytes,
                     " bytes; the limit is ", limit, ". Ask for fewer samples");
  }

  int64_t Bytes() const { return request_bytes_ + input_.reply_bytes + input_.scratch_bytes; }

  // Has the system made, on a thread for that, and goes on there. After OK `this` may be gone.
  absl::Status AwaitSystem() {
    DEEPPCR_RETURN_IF_ERROR(CheckEarly());
    DEEPPCR_RETURN_IF_ERROR(HoldBytes(Bytes()));
    SystemKey key = input_.system;
    key.backward = goes_back_;
    return context_.preparer.Wait(model, key, token, this);
  }

  // Refuses what no system of this model takes, so that none is made for it. Only the bounds of the
  // shooting interval, and whether a solver's workspace fits, depend on the number of steps.
  absl::Status CheckEarly() const {
    SolveOptions any = input_.options;
    any.shooting_interval = 0;
    const std::vector<std::string>& solvers = model->model->info().solvers;
    if (std::ranges::find(solvers, any.solver) == solvers.end()) return absl::OkStatus();
    const absl::Status status = model->model->FindFor(any, 0, input_.num_samples)
                                    ->Resolve(any, input_.num_samples)
                                    .status();
    return status.ok() ? status : InField(input_.names.options, status);
  }

  // Hands the call to the batcher. After OK `this` belongs to the batcher and may be gone.
  absl::Status Submit() {
    absl::StatusOr<ResolvedOptions> resolved = system->Resolve(input_.options, input_.num_samples);
    if (!resolved.ok()) return InField(input_.names.options, resolved.status());
    options = *std::move(resolved);
    num_samples_ = samples = input_.num_samples;
    if constexpr (kGoesBack) {
      if (goes_back_) {
        DEEPPCR_ASSIGN_OR_RETURN(back,
                                 method_.way_back()->Resolve(*system, input_.num_steps, samples));
        if (kSendsPieces && !system->has_parameter_gradients())
          return absl::UnimplementedError(
              StrCat("the backend that runs this model on ", system->plan().device,
                     " has no gradients by its parameters; start the server with --backend=cpu"));
      }
    }
    expected_seconds = ExpectedSeconds(system->plan(), options, work());
    client = client_;
    run_inline = !goes_back_ && IsShort(system->plan(), options, samples, Bytes());
    series_ = model_metrics_->ForSolver(options.solver, goes_back_         ? Method::kGradient
                                                        : input_.generates ? Method::kGenerate
                                                                           : Method::kForward);
    stages_ = &model_metrics_->stages();
    solver_ = options.solver;
    // A call that had to wait for its system holds them already.
    bytes = held_bytes_ > 0 ? 0 : Bytes();
    held_bytes_ += bytes;
    submitted_ = Clock::now();
    const int64_t taken = bytes;
    const absl::Status status = context_.batcher.Enqueue(this);
    if (!status.ok()) held_bytes_ -= taken;
    if (absl::IsResourceExhausted(status))
      SendDepth(context_.batcher.Depth(*model), predicted_wait());
    return status;
  }

  // Ends the call without holding on to the model: an unload waits for users, not for replies that
  // nobody reads.
  void Answer(const google::protobuf::Message& reply) {
    LetGo();
    Complete(absl::OkStatus(), &reply);
  }
  void End(const absl::Status& error) {
    LetGo();
    Refuse(error);
  }
  void LetGo() {
    system.reset();
    model.reset();
  }

  // Offers a shadow of samples that are copied before the reply: `this` and the request are gone
  // after it.
  void AnswerAndShadow(const google::protobuf::Message& reply) {
    OwnedSampleInputs inputs =
        SamplesOfPair(run_item.samples, model->model->info(), input_.num_steps);
    const std::shared_ptr<ServedModel> served = model;
    const ResolvedOptions resolved = options;
    // The sequential solver that auto chose is that of those who asked for it.
    const bool automatic = input_.options.solver == "auto";
    ShadowSampler& shadow = context_.shadow;
    Answer(reply);
    shadow.Offer(served, resolved, std::move(inputs), automatic);
  }

  // The same for the way back of a Gradient.
  void AnswerAndShadowBack(const google::protobuf::Message& reply, OwnedBackwardSample sample) {
    const std::shared_ptr<ServedModel> served = model;
    const ResolvedOptions resolved = options;
    const BackwardOptions way = *back;
    ShadowSampler& shadow = context_.shadow;
    Answer(reply);
    shadow.OfferBack(served, resolved, way, std::move(sample));
  }

  void FreeRequest() override {
    run_item = {};
    back_item = {};
    input_ = {};
    reports_ = {};
    kept_ = {};
    method_ = M();
    request_memory_.Free();
    reply_memory_.Free();
  }

  typename M::Responder responder_;
  MessageMemory request_memory_, reply_memory_;
  M method_;
  SolveInput input_;
  int64_t request_bytes_ = 0;  // in memory, fields we do not know included
  absl::InlinedVector<SampleReport, 1> reports_;
  std::vector<float> kept_;             // [n, L + 1, D]: states that stay on the server
  std::optional<CancelToken> limited_;  // the call's, with the request's own time limit
  bool checked_ = false;
};

// A method whose calls solve. request: the function Request... of `service`.
template <typename M, typename Service, typename Request>
QueuedMethod QueueSolve(ServiceContext& context, Service* service, Request request) {
  return Queued(service, request, [&context](auto* call) {
    (new SolveCall<M>(context, {call->rpc(), call->request()}, call))->Start();
  });
}

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_SOLVE_CALL_H_
