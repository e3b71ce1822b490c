// SPDX-License-Identifier: Apache-2.0
#include "client/array_file.h"
#include "client/commands/command.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

absl::Status Unload(const ModelFlags& flags, const GlobalOptions& global) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client,
                           MakeClient(global, absl::Minutes(1)));
  DEEPPCR_RETURN_IF_ERROR(client->UnloadModel(flags.model, flags.version));
  const std::string version =
      flags.version > 0 ? StrCat("version ", flags.version) : std::string("every version");
  return WriteFile("-", StrCat("unloaded ", flags.model, ", ", version, "\n"));
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
  return [flags, global] { return Unload(*flags, *global); };
}

}  // namespace deeppcr
