// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/array_file.h"
#include "client/commands/command.h"
#include "client/table.h"
#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

using nlohmann::json;

// The server's limits on a plan.json.
constexpr int64_t kMaxPlanFileBytes = int64_t{1} << 20;
constexpr size_t kMaxDevices = 64;

struct PlanFlags {
  ModelFlags model;
  std::string path = "-";
  bool any_caches = false;
};

void AddFlags(CLI::App* app, PlanFlags* flags) {
  flags->model.Add(app)->required();
  app->add_option("--export", flags->path,
                  "write the plans to this file, which keeps its plans of other device classes "
                  "(default: standard output)")
      ->type_name("FILE");
  app->add_flag("--any_caches", flags->any_caches,
                "for every device whose answers have the same bits, whatever its caches");
  app->footer(
      "A plan.json beside a model's config.json is taken by every server that loads the model on "
      "a\n"
      "device of that class: nothing is measured, and all of them answer with the same bits.\n"
      "Example:\n"
      "  deeppcr plan digits-resnet --export models/digits-resnet/1/plan.json");
}

// Parses a plan.json: `devices` is an object of arrays of plans with their keys.
absl::StatusOr<json> ParsePlanFile(const std::string& text) {
  DEEPPCR_ASSIGN_OR_RETURN(json root, ParseJson(text, {.max_bytes = kMaxPlanFileBytes}));
  DEEPPCR_RETURN_IF_ERROR(CheckMembers(root, {"format", "devices"}));
  DEEPPCR_RETURN_IF_ERROR(JsonMember(root, "format").status());
  DEEPPCR_ASSIGN_OR_RETURN(const json* devices, JsonMember(root, "devices"));
  if (!devices->is_object()) return InvalidArgument("devices: expected an object");
  for (const json& plans : *devices) {
    if (!plans.is_array() || plans.empty())
      return InvalidArgument("devices: expected arrays of plans");
    for (const json& plan : plans) {
      DEEPPCR_RETURN_IF_ERROR(CheckMembers(plan, {"key", "plan"}));
      DEEPPCR_ASSIGN_OR_RETURN(const json* key, JsonMember(plan, "key"));
      DEEPPCR_ASSIGN_OR_RETURN(const json* device, JsonMember(*key, "device"));
      DEEPPCR_RETURN_IF_ERROR(JsonString(*device, "device").status());
    }
  }
  return root;
}

// The plans by the `device` of their keys, which names all that bits depend on, but no caches.
json WithoutCaches(const json& devices) {
  json renamed = json::object();
  for (const json& plans : devices) {
    for (const json& plan : plans) {
      const auto bits = plan.at("key").at("device").get<std::string>();
      renamed[bits].push_back(plan);  // one server's plans: each for another number of steps
    }
  }
  return renamed;
}

// The device classes of the file, empty if there is no such file. Errors: for files that a load
// would refuse, as far as the client can tell.
absl::StatusOr<json> ExistingDevices(const std::string& path, const json& format) {
  if (path == "-") return json::object();
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxPlanFileBytes);
  if (absl::IsNotFound(text.status())) return json::object();
  if (!text.ok()) return text.status();
  absl::StatusOr<json> file = ParsePlanFile(*text);
  if (!file.ok()) return WithContext(file.status(), path);
  if (file->at("format") != format)
    return InvalidArgument(path, ": format: expected ", format.dump());
  return file->at("devices");
}

absl::Status Run(const PlanFlags& flags, const GlobalOptions& global) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client,
                           MakeClient(global, absl::Seconds(30)));
  DEEPPCR_ASSIGN_OR_RETURN(const v1::GetModelResponse model,
                           client->GetModelWithPlanFile(flags.model.model, flags.model.version));
  if (model.plan_file().empty())
    return absl::FailedPreconditionError(
        StrCat("model '", flags.model.model, "' has no plan: it is not ready"));
  DEEPPCR_ASSIGN_OR_RETURN(json root, ParsePlanFile(model.plan_file()));
  json devices = root.at("devices");
  if (flags.any_caches) devices = WithoutCaches(devices);
  DEEPPCR_ASSIGN_OR_RETURN(json all, ExistingDevices(flags.path, root.at("format")));
  all.update(devices);
  if (all.size() > kMaxDevices)
    return absl::FailedPreconditionError(StrCat(flags.path, ": a plan.json holds at most ",
                                                kMaxDevices, " device classes, this would be ",
                                                all.size(), "; take out some of them"));
  root["devices"] = all;
  const std::string text = root.dump(1) + "\n";
  if (std::ssize(text) > kMaxPlanFileBytes)
    return absl::FailedPreconditionError(StrCat(flags.path, ": a plan.json holds at most ",
                                                kMaxPlanFileBytes, " bytes, this would be ",
                                                text.size(), "; take out some device classes"));
  if (flags.path == "-") return WriteFile("-", text);
  DEEPPCR_RETURN_IF_ERROR(WriteFileAtomically(flags.path, text));
  std::string names;
  for (const auto& [name, plans] : devices.items())
    absl::StrAppend(&names, names.empty() ? "" : ", ", Printable(name));
  return WriteFile("-", StrCat("wrote the plans for ", names, " to ", flags.path, "\n"));
}

}  // namespace

RunCommand AddPlan(CLI::App* app, const GlobalOptions* global) {
  const auto flags = std::make_shared<PlanFlags>();
  AddFlags(app, flags.get());
  return [flags, global] { return Run(*flags, *global); };
}

}  // namespace deeppcr
