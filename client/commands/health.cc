// SPDX-License-Identifier: Apache-2.0
#include "client/array_file.h"
#include "client/commands/command.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

absl::Status Run(const std::string& model, const GlobalOptions& global) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client,
                           MakeClient(global, absl::Seconds(5)));
  const absl::StatusOr<Health> health = client->CheckHealth(model);
  if (absl::IsNotFound(health.status())) {
    return absl::NotFoundError(StrCat("model: the server has no '", model, "'"));
  }
  if (!health.ok()) return health.status();
  const std::string what =
      model.empty() ? StrCat("server at ", global.server) : StrCat("model ", model);
  if (*health == Health::kServing) return WriteFile("-", StrCat(what, ": serving\n"));
  return absl::FailedPreconditionError(StrCat(what, ": not serving"));
}

}  // namespace

RunCommand AddHealth(CLI::App* app, const GlobalOptions* global) {
  const auto model = std::make_shared<std::string>();
  app->add_option("--model", *model, "ask for one model (default: the server)")->type_name("NAME");
  app->footer(
      "Exit code 0 if it serves, 1 if not.\n"
      "Examples:\n"
      "  deeppcr health\n"
      "  deeppcr health --model digits-resnet");
  return [model, global] { return Run(*model, *global); };
}

}  // namespace deeppcr
