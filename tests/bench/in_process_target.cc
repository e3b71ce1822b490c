// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/in_process_target.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/c_api/deeppcr.h"

namespace deeppcr::bench {
namespace {

absl::Status ToStatus(deeppcr_status status) {
  if (status == DEEPPCR_OK) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status), deeppcr_last_error());
}

struct Answer {
  std::vector<float> outputs;
  deeppcr_report report{};
  double seconds = 0;
};

class InProcessTarget final : public Target {
 public:
  explicit InProcessTarget(const RpcWorkload& workload) : workload_(workload) {}
  ~InProcessTarget() override {
    deeppcr_model_destroy(model_);
    deeppcr_engine_destroy(engine_);
  }

  absl::Status Load(const std::string& folder) {
    deeppcr_engine_options options = DEEPPCR_ENGINE_OPTIONS_INIT;
    options.num_threads = 1;  // one sample is computed by the thread that asks
    absl::Status status = ToStatus(deeppcr_engine_create(&options, &engine_));
    if (!status.ok()) return status;
    status = ToStatus(deeppcr_model_load(engine_, folder.c_str(), nullptr, &model_));
    if (!status.ok()) return status;
    deeppcr_model_info info = DEEPPCR_MODEL_INFO_INIT;
    status = ToStatus(deeppcr_model_describe(model_, &info));
    answer_.outputs.resize(static_cast<size_t>(info.output_dim));
    return status;
  }

  absl::StatusOr<RequestOutcome> Send(int, int64_t index) const override {
    const absl::Status status = Solve(index, workload_.solver, &answer_);
    if (!status.ok()) return status;
    return RequestOutcome{
        .solver = answer_.report.solver, .samples = 1, .solve_seconds = answer_.seconds};
  }
  absl::StatusOr<std::vector<float>> Outputs(int64_t index,
                                             const std::string& solver) const override {
    const absl::Status status = Solve(index, solver, &answer_);
    if (!status.ok()) return status;
    if (answer_.report.converged == 0)
      return absl::InternalError(absl::StrCat(solver, " did not converge"));
    return answer_.outputs;
  }
  absl::StatusOr<std::string> Reply(int64_t) const override {
    return absl::UnimplementedError("there is no reply without a server");
  }

 private:
  absl::Status Solve(int64_t index, const std::string& solver, Answer* answer) const {
    const int64_t row = index % workload_.inputs.rows();
    deeppcr_run_options options = DEEPPCR_RUN_OPTIONS_INIT;
    if (!solver.empty()) options.solver = solver.c_str();
    deeppcr_inputs inputs = DEEPPCR_INPUTS_INIT;
    inputs.num_samples = 1;
    inputs.inputs = workload_.inputs.values.data() + row * workload_.inputs.row_size();
    deeppcr_outputs outputs = DEEPPCR_OUTPUTS_INIT;
    outputs.outputs = answer->outputs.data();
    outputs.reports = &answer->report;
    const absl::Status status = ToStatus(deeppcr_run(model_, &options, &inputs, &outputs));
    answer->seconds = outputs.seconds;
    return status;
  }

  const RpcWorkload& workload_;
  deeppcr_engine* engine_ = nullptr;
  deeppcr_model* model_ = nullptr;
  mutable Answer answer_;  // of the one client
};

}  // namespace

absl::StatusOr<std::unique_ptr<Target>> LoadTarget(const RpcWorkload& workload,
                                                   const std::string& folder) {
  auto target = std::make_unique<InProcessTarget>(workload);
  if (absl::Status status = target->Load(folder); !status.ok()) return status;
  return target;
}

}  // namespace deeppcr::bench
