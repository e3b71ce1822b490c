// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "client/array_file.h"
#include "client/commands/command.h"

namespace deeppcr {
namespace {

absl::Status Run(const ModelFlags& flags, const GlobalOptions& global) {
  const absl::StatusOr<std::unique_ptr<Client>> client = MakeClient(global, absl::Minutes(1));
  if (!client.ok()) return client.status();
  const absl::Status status = (*client)->UnloadModel(flags.model, flags.version);
  if (!status.ok()) return status;
  const std::string version =
      flags.version > 0 ? absl::StrCat("version ", flags.version) : std::string("every version");
  return WriteFile("-", absl::StrCat("unloaded ", flags.model, ", ", version, "\n"));
}

}  // namespace

RunCommand AddUnload(CLI::App* app, const GlobalOptions* global) {
  const auto flags = std::make_shared<ModelFlags>();
  flags->Add(app)->required();
  app->footer(
      "Without --model_version every version goes. Servers take this from their own machine only,\n"
      "unless they were told otherwise.\n"
      "Example:\n"
      "  deeppcr unload --model digits-resnet --model_version 1");
  return [flags, global] { return Run(*flags, *global); };
}

}  // namespace deeppcr
