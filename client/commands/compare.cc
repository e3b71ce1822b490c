// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <map>
#include <optional>

#include "absl/strings/str_format.h"
#include "client/array_file.h"
#include "client/batched_forward.h"
#include "client/batched_generate.h"
#include "client/commands/command.h"
#include "client/commands/control_flags.h"
#include "client/commands/generation_flags.h"
#include "client/progress.h"
#include "client/solver_options.h"
#include "client/table.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "proto/message_json.h"

namespace deeppcr {
namespace {

struct CompareFlags {
  ModelFlags model;
  InputFlags inputs;
  GenerationFlags generation;
  ControlFlags controls;
  SolverFlags solver;
  std::vector<std::string> rows;
  int repetitions = 0;
  std::string json;
};

void AddFlags(CLI::App* app, CompareFlags* flags) {
  flags->model.Add(app)->required();
  flags->inputs.AddPath(app, false);
  flags->inputs.AddDrawing(app);
  app->add_option("--samples,--num", flags->inputs.samples,
                  "samples compared (default: all of --in that one request takes; 1 without --in)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  flags->generation.Add(app);
  flags->controls.Add(app, false);
  app->add_option("--row", flags->rows,
                  "a solver to compare, with options of its own: SOLVER[,option=value]...; may be "
                  "repeated (default: sequential, newton, auto)")
      ->type_name("ROW")
      ->check([](const std::string& row) {
        return std::string(ParseSolverRow(row, {}).status().message());
      });
  app->add_option("--repetitions", flags->repetitions, "timed runs per row, 1 to 100 (default 5)")
      ->type_name("N")
      ->check(CLI::Range(1, 100));
  app->add_option("--json", flags->json, "also write the figures as JSON; - is standard output")
      ->type_name("FILE");
  flags->solver.Add(app, false);
  app->footer(
      "Options under Solver hold for every row. Times are the server's, of the solve alone.\n"
      "Examples:\n"
      "  deeppcr compare --model digits-resnet --in digits.npy --samples 1\n"
      "  deeppcr compare --model digits-class --num 16 --seed 7 --steps 100 --class all\n"
      "  deeppcr compare --model digits-resnet --repetitions 20 --row sequential --row picard \\\n"
      "      --row newton,shooting_interval=1 --row newton,shooting_interval=16,warm_sweeps=3");
}

// The number of samples to compare: at most `limit`, with a message if that is fewer than `wanted`.
int64_t LimitSamples(int64_t wanted, int64_t limit) {
  if (wanted <= limit) return wanted;
  absl::FPrintF(stderr, "comparing the first %d of %d samples, which one request takes\n", limit,
                wanted);
  return limit;
}

absl::Status AddInputs(const CompareFlags& flags, const v1::GetModelResponse& model,
                       v1::CompareRequest* request) {
  DEEPPCR_RETURN_IF_ERROR(flags.generation.CheckUnset());
  DEEPPCR_RETURN_IF_ERROR(flags.controls.CheckUnset());
  DEEPPCR_ASSIGN_OR_RETURN(const Array inputs, flags.inputs.Load(model.input_dim()));
  const int64_t wanted = flags.inputs.samples > 0 ? flags.inputs.samples : inputs.rows();
  if (wanted > inputs.rows()) {
    return InvalidArgument(flags.inputs.path, ": expected at least ", wanted,
                           " rows for --samples, got ", inputs.rows());
  }
  RowsToTensor(inputs, 0, LimitSamples(wanted, LargestBatch(model, false)),
               request->mutable_inputs());
  return absl::OkStatus();
}

absl::Status AddGeneration(const CompareFlags& flags, const v1::GetModelResponse& model,
                           v1::CompareRequest* request) {
  if (!flags.inputs.path.empty()) {
    return InvalidArgument(
        "in: a diffusion model takes no inputs: give --num, --seed, --steps and --class instead");
  }
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t steps,
                           ResolveInferenceSteps(model, flags.generation.steps));
  DEEPPCR_ASSIGN_OR_RETURN(Array conditioning,
                           flags.generation.LoadConditioning(model, flags.inputs.format));
  ControlFlags controls = flags.controls;
  DEEPPCR_RETURN_IF_ERROR(controls.ReadFiles(model, flags.inputs.format));
  const int64_t given =
      conditioning.shape.empty() ? std::max<int64_t>(1, controls.rows()) : conditioning.rows();
  const int64_t wanted = flags.inputs.samples > 0 ? flags.inputs.samples : given;
  Generation generation{.seed = flags.inputs.seed, .num_inference_steps = steps};
  generation.num_samples = LimitSamples(wanted, LargestGeneration(model, generation, steps, false));
  DEEPPCR_ASSIGN_OR_RETURN(generation.class_labels,
                           flags.generation.Labels(model, 0, generation.num_samples));
  if (!conditioning.shape.empty()) {
    DEEPPCR_RETURN_IF_ERROR(SpreadRows(wanted, "conditioning", &conditioning));
    generation.conditioning = &conditioning;
  }
  DEEPPCR_RETURN_IF_ERROR(controls.Take(&generation));
  FillGenerationInput(generation, 0, generation.num_samples, request->mutable_generation());
  return absl::OkStatus();
}

absl::StatusOr<v1::CompareRequest> BuildRequest(const CompareFlags& flags,
                                                const v1::GetModelResponse& model) {
  v1::CompareRequest request;
  request.set_model(flags.model.model);
  request.set_version(flags.model.version);
  request.set_repetitions(flags.repetitions);
  const bool generates = !model.num_inference_steps().empty();
  DEEPPCR_RETURN_IF_ERROR(generates ? AddGeneration(flags, model, &request)
                                    : AddInputs(flags, model, &request));
  DEEPPCR_ASSIGN_OR_RETURN(const v1::SolverOptions base, flags.solver.Build());
  std::vector<std::string> rows = flags.rows;
  if (rows.empty()) rows = {"sequential", "newton", "auto"};
  for (const std::string& row : rows) {
    DEEPPCR_ASSIGN_OR_RETURN(*request.add_options(), ParseSolverRow(row, base));
  }
  return request;
}

using Reasons = google::protobuf::RepeatedPtrField<v1::TerminationCount>;

std::string ReasonsText(const Reasons& reasons) {
  std::map<std::string, int64_t> counts;
  for (const v1::TerminationCount& reason : reasons)
    counts[reason.termination()] += reason.samples();
  return CountsText(counts);
}

std::string ConvergedText(const v1::CompareRow& row) {
  return row.converged() ? "yes" : StrCat("no: ", ReasonsText(row.unconverged_reasons()));
}

std::optional<double> EstimateOf(const v1::CompareRow& row) {
  if (!row.has_error_estimate()) return std::nullopt;
  return row.error_estimate();
}

std::vector<std::string> RowCells(const v1::CompareRow& row) {
  if (!row.error().empty()) {
    std::vector<std::string> cells(11);
    cells[0] = row.requested_solver();
    cells.push_back(StrCat("cannot run: ", row.error()));
    return cells;
  }
  const bool same = row.requested_solver() == row.solver();
  std::vector<std::string> cells = {
      same ? row.solver() : StrCat(row.requested_solver(), " -> ", row.solver()),
      row.shooting_interval() > 0 ? StrCat(row.shooting_interval()) : "-",
      IterationsText(row.max_iterations(), row.warm_sweeps(), row.chord_corrections()),
      StrCat(row.dependent_stages()),
      FormatSeconds(row.median_seconds()),
      FormatSeconds(row.p99_seconds()),
      FormatRatio(row.speedup()),
      FormatError(row.max_output_difference()),
      FormatError(row.max_state_error()),
      FormatEstimate(EstimateOf(row)),
      ConvergedText(row),
  };
  if (row.fallbacks() > 0) {
    cells.push_back(
        StrCat(row.fallbacks(), " fell back (", ReasonsText(row.fallback_reasons()), ")"));
  }
  return cells;
}

std::string CompareText(const v1::CompareResponse& reply) {
  using Align = Table::Align;
  Table table({{"solver", Align::kLeft},
               {"C"},
               {"iterations"},
               {"dependent stages"},
               {"median"},
               {"p99"},
               {"speed-up"},
               {"max difference"},
               {"state error"},
               {"error estimate"},
               {"converged", Align::kLeft}});
  for (const v1::CompareRow& row : reply.rows()) table.AddRow(RowCells(row));
  return StrCat(table.Format(), "\non ", Printable(reply.device()), ", plan ",
                Printable(reply.plan_id()),
                "; differences are against sequential (outputs absolute, states relative)\n");
}

absl::Status Run(const CompareFlags& flags, const GlobalOptions& global) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client,
                           MakeClient(global, absl::Minutes(10)));
  DEEPPCR_ASSIGN_OR_RETURN(const v1::GetModelResponse model, ReadyModel(*client, flags.model));
  DEEPPCR_ASSIGN_OR_RETURN(const v1::CompareRequest request, BuildRequest(flags, model));
  const absl::StatusOr<v1::CompareResponse> reply = [&] {
    const ProgressText progress([] { return std::string("comparing"); });
    return client->Compare(request);
  }();
  if (!reply.ok()) return reply.status();
  if (flags.json != "-") {
    const absl::Status status = WriteFile("-", CompareText(*reply));
    if (!status.ok() || flags.json.empty()) return status;
  }
  return WriteFile(flags.json, DumpJson(MessageToJson(*reply)));
}

}  // namespace

RunCommand AddCompare(CLI::App* app, const GlobalOptions* global) {
  const auto flags = std::make_shared<CompareFlags>();
  AddFlags(app, flags.get());
  return [flags, global] { return Run(*flags, *global); };
}

}  // namespace deeppcr
