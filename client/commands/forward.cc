// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/array_file.h"
#include "client/batched_forward.h"
#include "client/commands/command.h"
#include "client/progress.h"
#include "client/solver_options.h"
#include "client/table.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "proto/message_json.h"

namespace deeppcr {
namespace {

struct ForwardFlags {
  ModelFlags model;
  InputFlags inputs;
  SolverFlags solver;
  std::string out;
  std::string trajectory;
  std::string previous;
  std::string keep;
  std::string report;
  int64_t batch_size = 0;
  bool labels = false;
  bool quiet = false;
};

void AddFlags(CLI::App* app, ForwardFlags* flags) {
  flags->model.Add(app)->required();
  flags->inputs.AddPath(app, true);
  app->add_option("--out", flags->out, "outputs [n, output_dim]; - is standard output")
      ->type_name("FILE");
  app->add_flag("--labels", flags->labels,
                "print the label of the largest output, one line per sample; nan if any output is "
                "NaN");
  app->add_option("--report", flags->report,
                  "write the solve reports as JSON; - is standard output")
      ->type_name("[FILE]")
      ->expected(0, 1)
      ->default_str("-");
  app->add_option("--trajectory", flags->trajectory, "write the states [n, L + 1, D]")
      ->type_name("FILE");
  app->add_option("--previous", flags->previous,
                  "states to start from, as --trajectory wrote them (implies --initial_guess "
                  "previous)")
      ->type_name("FILE");
  AddKeepFlag(app, &flags->keep);
  AddBatchSizeFlag(app, &flags->batch_size);
  app->add_flag("--quiet", flags->quiet, "no summary on standard error; warnings stay");
  flags->solver.Add(app, true);
  app->footer(
      "Examples:\n"
      "  deeppcr forward --model digits-resnet --in digits.npy --out scores.npy\n"
      "  deeppcr forward --model digits-resnet --in digits.npy --labels --solver newton\n"
      "  echo 0.1,0.2,0.3 | deeppcr forward --model m --in - --out y.json");
}

// The label of the largest output; "nan" if any output is NaN.
std::string LabelText(std::span<const float> outputs, const v1::GetModelResponse& model) {
  if (std::any_of(outputs.begin(), outputs.end(), [](float x) { return std::isnan(x); }))
    return "nan";
  const auto best = std::max_element(outputs.begin(), outputs.end()) - outputs.begin();
  const bool named = model.labels_size() == std::ssize(outputs);
  return Printable(named ? model.labels(static_cast<int>(best)) : StrCat(best));
}

std::string LabelsText(const Array& outputs, const v1::GetModelResponse& model) {
  std::string text;
  const int64_t width = outputs.row_size();
  for (int64_t row = 0; row < outputs.rows() && width > 0; ++row) {
    const std::span<const float> values(outputs.values.data() + row * width, width);
    absl::StrAppend(&text, LabelText(values, model), "\n");
  }
  return text;
}

std::string ReportText(const BatchedForwardResult& result) {
  nlohmann::ordered_json requests = nlohmann::ordered_json::array();
  for (const v1::SolveReport& report : result.reports) requests.push_back(MessageToJson(report));
  return DumpJson({{"requests", requests}});
}

// Prints what ran, unless `quiet`, and warnings about samples that fell back or did not converge.
void PrintSummary(const BatchedForwardResult& result, bool quiet) {
  SolveTotals totals;
  std::map<std::string, int64_t> solvers;
  int64_t iterations = 0;
  for (const v1::SolveReport& report : result.reports) {
    totals.Add(report);
    for (const v1::SampleReport& sample : report.samples()) {
      ++solvers[sample.solver()];
      iterations = std::max<int64_t>(iterations, sample.iterations());
    }
  }
  if (!quiet) {
    absl::FPrintF(stderr, "%d samples in %d requests on %s; solved by: %s; at most %d iterations\n",
                  totals.samples, result.reports.size(), Printable(result.reports.front().device()),
                  CountsText(solvers), iterations);
  }
  absl::FPrintF(stderr, "%s", WarningsText(totals));
}

absl::Status WriteResults(const ForwardFlags& flags, const v1::GetModelResponse& model,
                          const BatchedForwardResult& result) {
  const std::string& format = flags.inputs.format;
  const bool nothing = flags.out.empty() && !flags.labels && flags.report.empty();
  absl::Status status;
  if (!flags.out.empty() || nothing) {
    status.Update(WriteArray(result.outputs, nothing ? "-" : flags.out, format));
  }
  if (flags.labels) status.Update(WriteFile("-", LabelsText(result.outputs, model)));
  if (!flags.trajectory.empty()) {
    status.Update(WriteArray(result.trajectory, flags.trajectory, format));
  }
  if (!flags.report.empty()) status.Update(WriteFile(flags.report, ReportText(result)));
  if (!flags.keep.empty()) status.Update(WriteFile(flags.keep, FormatKept(result.kept)));
  return status;
}

// Checks that every file has a format, and one that fits, before anything is computed.
absl::Status CheckNames(const ForwardFlags& flags) {
  absl::Status status;
  for (const std::string* path : {&flags.inputs.path, &flags.out}) {
    if (!path->empty()) status.Update(ChooseArrayFormat(*path, flags.inputs.format).status());
  }
  for (const std::string* path : {&flags.trajectory, &flags.previous}) {
    if (!path->empty()) status.Update(CheckHolds(*path, flags.inputs.format, 3));
  }
  return status;
}

absl::Status Run(const ForwardFlags& flags, const GlobalOptions& global) {
  DEEPPCR_RETURN_IF_ERROR(CheckNames(flags));
  DEEPPCR_ASSIGN_OR_RETURN(const v1::SolverOptions solver, flags.solver.Build());
  DEEPPCR_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client,
                           MakeClient(global, absl::Seconds(60)));
  DEEPPCR_ASSIGN_OR_RETURN(const v1::GetModelResponse model, ReadyModel(*client, flags.model));
  DEEPPCR_RETURN_IF_ERROR(CheckTakesInputs(model));
  DEEPPCR_ASSIGN_OR_RETURN(const Array inputs, flags.inputs.Load(model.input_dim()));
  std::atomic<int64_t> done{0};
  BatchedForwardOptions options{.solver = solver, .batch_size = flags.batch_size, .done = &done};
  options.solver.set_return_trajectory(!flags.trajectory.empty());
  options.solver.set_keep_trajectory(!flags.keep.empty());
  Array previous;
  if (!flags.previous.empty()) {
    DEEPPCR_ASSIGN_OR_RETURN(previous, ReadArray(flags.previous, flags.inputs.format));
    options.previous = &previous;
    DEEPPCR_RETURN_IF_ERROR(StartFromPrevious(&options.solver));
  }
  const auto line = [&] { return StrCat(done.load(), " of ", inputs.rows(), " samples"); };
  absl::StatusOr<BatchedForwardResult> result = [&] {
    const ProgressText progress(line);
    return BatchedForward(*client, model, inputs, options);
  }();
  if (!result.ok()) return result.status();
  PrintSummary(*result, flags.quiet);
  return WriteResults(flags, model, *result);
}

}  // namespace

RunCommand AddForward(CLI::App* app, const GlobalOptions* global) {
  const auto flags = std::make_shared<ForwardFlags>();
  AddFlags(app, flags.get());
  return [flags, global] { return Run(*flags, *global); };
}

}  // namespace deeppcr
