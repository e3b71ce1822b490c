// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/array_file.h"
#include "client/commands/command.h"
#include "client/table.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "proto/message_json.h"

namespace deeppcr {
namespace {

struct ListFlags {
  ModelFlags model;
  bool plan = false;
  std::string json;
};

void AddFlags(CLI::App* app, ListFlags* flags) {
  flags->model.Add(app);
  app->add_flag(
      "--plan", flags->plan,
      "also print the plans, one per number of steps, and every candidate that was tried");
  app->add_option("--json", flags->json, "write everything as JSON instead; - is standard output")
      ->type_name("FILE");
  app->footer(
      "Examples:\n"
      "  deeppcr models\n"
      "  deeppcr models --model digits-resnet --plan");
}

std::string ModelsText(const std::vector<v1::ModelSummary>& models) {
  using Align = Table::Align;
  Table table({{"model", Align::kLeft},
               {"version"},
               {"state", Align::kLeft},
               {"type", Align::kLeft},
               {"layers"},
               {"width"}});
  for (const v1::ModelSummary& model : models) {
    std::vector<std::string> cells = {
        model.name(),       StrCat(model.version()),    StateName(model.state()),
        model.model_type(), StrCat(model.num_layers()), StrCat(model.state_dim())};
    if (!model.reason().empty()) cells.push_back(model.reason());
    table.AddRow(std::move(cells));
  }
  return models.empty() ? "no models\n" : table.Format();
}

// The sample counts that an entry is for: "1", "2-4".
std::string SamplesText(int64_t previous, int64_t last) {
  return last > previous + 1 ? StrCat(previous + 1, "-", last) : StrCat(last);
}

// The options that each solver runs with unless a request names others.
std::string ChoicesText(const v1::Plan& plan) {
  if (plan.choices().empty()) return "";
  using Align = Table::Align;
  Table table({{"solver", Align::kLeft},
               {"C"},
               {"guess", Align::kLeft},
               {"warm sweeps"},
               {"refresh", Align::kLeft},
               {"max iterations"},
               {"chosen", Align::kLeft}});
  for (const v1::SolverChoice& choice : plan.choices()) {
    table.AddRow({choice.solver(), StrCat(choice.shooting_interval()), choice.initial_guess(),
                  StrCat(choice.warm_sweeps()), choice.jacobian_refresh(),
                  StrCat(choice.max_iterations()),
                  choice.measured() ? "by measurement" : "by default"});
  }
  return StrCat("\na request that names a solver runs, where it leaves options out:\n",
                table.Format());
}

std::string SourceText(const v1::Plan& plan) {
  if (!plan.from_cache()) return "measured in " + FormatSeconds(plan.measured_seconds());
  return StrCat("from: ", Printable(plan.source()));
}

// One row of a plan, with dashes in place of a parallel configuration if there is none.
std::vector<std::string> EntryCells(const v1::PlanEntry& entry, int64_t previous) {
  const double sequential = entry.sequential_seconds(), parallel = entry.parallel_seconds();
  std::vector<std::string> cells = {SamplesText(previous, entry.max_samples()),
                                    entry.solver(),
                                    FormatSeconds(entry.seconds()),
                                    FormatSeconds(sequential),
                                    FormatSeconds(parallel),
                                    FormatRatio(parallel > 0 ? sequential / parallel : 0),
                                    StrCat(entry.shooting_interval()),
                                    entry.initial_guess(),
                                    StrCat(entry.warm_sweeps()),
                                    entry.jacobian_refresh(),
                                    absl::StrFormat("%.1f", entry.parallel_iterations()),
                                    StrCat(entry.parallel_stages()),
                                    FormatError(entry.parallel_error())};
  if (!entry.has_parallel_error()) std::fill(cells.begin() + 6, cells.end(), "-");
  return cells;
}

// The ways back by numbers of samples; empty for a plan without any.
std::string WaysText(const v1::Plan& plan) {
  using Align = Table::Align;
  Table table({{"samples"}, {"auto goes back", Align::kLeft}, {"sequential"}, {"parallel"}});
  int64_t previous = 0;
  bool any = false;
  for (const v1::PlanEntry& entry : plan.entries()) {
    any = any || !entry.way().empty();
    table.AddRow({SamplesText(previous, entry.max_samples()), Printable(entry.way()),
                  FormatSeconds(entry.sequential_way_seconds()),
                  FormatSeconds(entry.parallel_way_seconds())});
    previous = entry.max_samples();
  }
  return any ? StrCat("\n", table.Format()) : "";
}

// steps: the inference steps that the plan was measured for; 0 if the model has no such choice.
std::string PlanText(const v1::Plan& plan, int64_t steps) {
  using Align = Table::Align;
  Table table({{"samples"},
               {"auto runs", Align::kLeft},
               {"time"},
               {"sequential"},
               {"best parallel"},
               {"ratio"},
               {"C"},
               {"guess", Align::kLeft},
               {"warm sweeps"},
               {"refresh", Align::kLeft},
               {"iterations"},
               {"stages"},
               {"error"}});
  int64_t previous = 0;
  for (const v1::PlanEntry& entry : plan.entries()) {
    table.AddRow(EntryCells(entry, previous));
    previous = entry.max_samples();
  }
  std::string text = absl::StrFormat(
      "plan %s on %s for %srtol %g, %s\n%s", Printable(plan.id()), Printable(plan.device_class()),
      steps > 0 ? StrCat(steps, " steps, ") : "", plan.rtol(), SourceText(plan), table.Format());
  absl::StrAppend(&text, WaysText(plan));
  if (plan.least_rtol() > 0)
    absl::StrAppendFormat(&text, "auto is sequential below rtol %.2g\n", plan.least_rtol());
  absl::StrAppend(&text, ChoicesText(plan));
  if (plan.candidates_size() > 0) absl::StrAppend(&text, "\ncandidates:\n");
  for (const std::string& line : plan.candidates()) {
    absl::StrAppend(&text, "  ", Printable(line), "\n");
  }
  return text;
}

std::string PrintableList(const google::protobuf::RepeatedPtrField<std::string>& texts) {
  return absl::StrJoin(texts, ", ", [](std::string* out, const std::string& text) {
    absl::StrAppend(out, Printable(text));
  });
}

// Adds the plans of one backend, in the order of the numbers of steps.
void AddPlans(const google::protobuf::RepeatedPtrField<v1::Plan>& plans,
              const v1::GetModelResponse& model, std::string* text) {
  for (int i = 0; i < plans.size(); ++i) {
    const bool known = i < model.num_inference_steps_size();
    absl::StrAppend(text, text->empty() ? "" : "\n",
                    PlanText(plans[i], known ? model.num_inference_steps(i) : 0));
  }
}

std::string PlansText(const v1::GetModelResponse& model) {
  std::string text = model.plans_size() == 0 ? PlanText(model.plan(), 0) : "";
  AddPlans(model.plans(), model, &text);
  AddPlans(model.other_plans(), model, &text);
  return text;
}

// The choices that a diffusion model offers; empty for other models.
std::string GenerationText(const v1::GetModelResponse& model) {
  if (model.num_inference_steps_size() == 0) return "";
  std::string text = StrCat("inference steps: ", model.num_inference_steps(0), " (default)");
  for (int i = 1; i < model.num_inference_steps_size(); ++i) {
    absl::StrAppend(&text, ", ", model.num_inference_steps(i));
  }
  if (model.max_inference_steps() > 0)
    absl::StrAppend(&text, "; any up to ", model.max_inference_steps());
  absl::StrAppend(&text,
                  "; classes: ", model.num_classes() > 0 ? StrCat(model.num_classes()) : "none");
  if (model.image_shape_size() > 0) {
    absl::StrAppend(&text, "; images: ", absl::StrJoin(model.image_shape(), " x "));
  }
  return text + "\n";
}

std::string DetailText(const v1::GetModelResponse& model) {
  const std::string labels =
      model.labels_size() == 0 ? "" : StrCat("labels: ", PrintableList(model.labels()), "\n");
  std::string backends = Printable(model.backend());
  if (!model.backend_reason().empty())
    absl::StrAppend(&backends, " (", Printable(model.backend_reason()), ")");
  if (!model.other_backend().empty())
    absl::StrAppend(&backends, ", and on ", Printable(model.other_backend()),
                    " where its plan is faster");
  return StrCat("\n", Printable(model.summary().name()), " version ", model.summary().version(),
                ": ", model.input_dim(), " inputs, ", model.output_dim(), " outputs, at most ",
                model.max_batch_size(), " samples per request, ", FormatBytes(model.memory_bytes()),
                "\nruns on: ", backends, "\nsolvers: ", PrintableList(model.solvers()), "\n",
                model.gradients() ? "gradients: deeppcr grad\n" : "", GenerationText(model),
                labels);
}

absl::Status Run(const ListFlags& flags, const GlobalOptions& global) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client,
                           MakeClient(global, absl::Seconds(30)));
  DEEPPCR_ASSIGN_OR_RETURN(const v1::ListModelsResponse list, client->ListModels());
  std::vector<v1::ModelSummary> models;
  for (const v1::ModelSummary& model : list.models()) {
    const bool named = flags.model.model.empty() || flags.model.model == model.name();
    const bool version = flags.model.version == 0 || flags.model.version == model.version();
    if (named && version) models.push_back(model);
  }
  if (models.empty() && !flags.model.model.empty()) {
    return absl::NotFoundError(StrCat("model: the server has no '", flags.model.model, "'"));
  }
  std::string text = ModelsText(models);
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const v1::ModelSummary& summary : models) {
    const bool ready = summary.state() == v1::MODEL_STATE_READY;
    json.push_back(MessageToJson(summary));
    if (!ready || !(flags.plan || !flags.model.model.empty() || !flags.json.empty())) continue;
    DEEPPCR_ASSIGN_OR_RETURN(const v1::GetModelResponse model,
                             client->GetModel(summary.name(), summary.version()));
    json.back() = MessageToJson(model);
    absl::StrAppend(&text, DetailText(model));
    if (flags.plan) absl::StrAppend(&text, PlansText(model));
  }
  if (flags.json.empty()) return WriteFile("-", text);
  return WriteFile(flags.json, DumpJson({{"models", json}}));
}

}  // namespace

RunCommand AddModels(CLI::App* app, const GlobalOptions* global) {
  const auto flags = std::make_shared<ListFlags>();
  AddFlags(app, flags.get());
  return [flags, global] { return Run(*flags, *global); };
}

}  // namespace deeppcr
