// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/service.h"

#include <chrono>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "server/codec/reply_codec.h"
#include "server/rpc/compare_call.h"
#include "server/rpc/small_calls.h"
#include "server/rpc/solve_call.h"
#include "server/rpc/solve_methods.h"

namespace deeppcr {

SystemPreparer::Made PrepareSteps(const ServedModel& model, const SystemKey& key,
                                  ServiceContext& context) {
  const auto start = CancelToken::Clock::now();
  const auto served = [&] { return context.store.Find(model.name, model.version); };
  if (!served().ok())
    return absl::UnavailableError(
        StrCat("version ", model.version, " of ", model.name, " was unloaded; try again"));
  SystemPreparer::Made made = model.model->Prepare(key, &context.stop);
  if (!made.ok()) return made;
  // The gauge of a version that was unloaded or loaded again in the meantime is not this model's.
  if (const auto now = served(); now.ok() && now->get() == &model)
    model.metrics->memory_bytes->Set(static_cast<double>(model.model->memory_bytes()));
  const std::chrono::duration<double> seconds = CancelToken::Clock::now() - start;
  context.logger.LogLimited(LogLevel::kInfo, "steps_prepared",
                            {{"model", model.name},
                             {"version", model.version},
                             {"num_inference_steps", key.num_steps},
                             {"first_step", key.first_step},
                             {"guided", key.guided},
                             {"known_elements", key.known},
                             {"seconds", seconds.count()},
                             {"plan", (*made)->plan().id}});
  return made;
}

std::vector<QueuedMethod> DeepPcrService::Methods() {
  using S = DeepPcrService;
  const auto list = [this](const auto&, auto* models) {
    for (const ModelStatus& status : context_.store.List())
      FillSummary(status, models->add_models());
    return absl::OkStatus();
  };
  const auto describe = [this](const auto& wanted, auto* description) -> absl::Status {
    DEEPPCR_ASSIGN_OR_RETURN(const ModelStatus status,
                             context_.store.Describe(wanted.model(), wanted.version()));
    FillModel(status, description);
    if (wanted.with_plan_file() && status.model != nullptr)
      description->set_plan_file(status.model->model->PlanFileText());
    return absl::OkStatus();
  };
  const auto load = [this](const auto& wanted, auto* loaded) -> absl::Status {
    const auto start = std::chrono::steady_clock::now();
    DEEPPCR_ASSIGN_OR_RETURN(const ModelStatus status,
                             context_.store.Load(wanted.model(), wanted.version()));
    FillSummary(status, loaded->mutable_summary());
    loaded->set_seconds(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    return absl::OkStatus();
  };
  const auto unload = [this](const auto& wanted, auto*) {
    return context_.store.Unload(wanted.model(), wanted.version());
  };
  const auto compare = [this](UnaryCallOfQueue* call) {
    call->MayTakeLong();
    (new CompareCall(context_, call))->Start();
  };
  return {QueueSolve<ForwardMethod>(context_, this, &S::RequestForward),
          QueueSolve<GenerateMethod>(context_, this, &S::RequestGenerate),
          QueueSolve<StreamGenerateMethod>(context_, this, &S::RequestStreamGenerate),
          QueueSolve<GradientMethod>(context_, this, &S::RequestGradient),
          QueueSolve<StreamGradientMethod>(context_, this, &S::RequestStreamGradient),
          Queued(this, &S::RequestCompare, compare),
          QueueSmall<ImmediateCall<v1::ListModelsRequest, v1::ListModelsResponse>>(
              context_, Method::kListModels, this, &S::RequestListModels, list),
          QueueSmall<ImmediateCall<v1::GetModelRequest, v1::GetModelResponse>>(
              context_, Method::kGetModel, this, &S::RequestGetModel, describe),
          QueueSmall<AdminCall<v1::LoadModelRequest, v1::LoadModelResponse>>(
              context_, Method::kLoadModel, this, &S::RequestLoadModel, load),
          QueueSmall<AdminCall<v1::UnloadModelRequest, v1::UnloadModelResponse>>(
              context_, Method::kUnloadModel, this, &S::RequestUnloadModel, unload)};
}

}  // namespace deeppcr
