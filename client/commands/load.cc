// SPDX-License-Identifier: Apache-2.0
#include "client/array_file.h"
#include "client/commands/command.h"
#include "client/progress.h"
#include "client/table.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

absl::Status Run(const ModelFlags& flags, const GlobalOptions& global) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client,
                           MakeClient(global, absl::Minutes(10)));
  const absl::StatusOr<v1::LoadModelResponse> reply = [&] {
    const ProgressText progress([&] { return StrCat("loading ", flags.model); });
    return client->LoadModel(flags.model, flags.version);
  }();
  if (!reply.ok()) return reply.status();
  const v1::ModelSummary& summary = reply->summary();
  return WriteFile(
      "-", StrCat("loaded ", Printable(summary.name()), " version ", summary.version(), " (",
                  Printable(summary.model_type()), ", ", summary.num_layers(), " layers, width ",
                  summary.state_dim(), ") in ", FormatSeconds(reply->seconds()), "\n"));
}

}  // namespace

RunCommand AddLoad(CLI::App* app, const GlobalOptions* global) {
  const auto flags = std::make_shared<ModelFlags>();
  flags->Add(app)->required();
  app->footer(
      "Loads or reloads a model of the server's repository. Servers take this from their own "
      "machine\n"
      "only, unless they were told otherwise.\n"
      "Example:\n"
      "  deeppcr load --model digits-resnet --model_version 2");
  return [flags, global] { return Run(*flags, *global); };
}

}  // namespace deeppcr
