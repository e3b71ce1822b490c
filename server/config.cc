// SPDX-License-Identifier: Apache-2.0
#include "server/config.h"

#include <arpa/inet.h>

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "kernels/base/control_group.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "server/flag_kinds.h"

namespace deeppcr {
namespace {

constexpr int64_t kMostDefaultBudget = 512 * flags::kMiB;

const FlagSpec* FindFlag(std::string_view name) {
  for (const FlagSpec& spec : FlagSpecs()) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

// True for variables with our prefix that others read: the client, the engine, the tests.
// Kubernetes makes DEEPPCR_SERVICE_HOST, DEEPPCR_CANARY_PORT_8001_TCP and the like of services that
// are called deeppcr or deeppcr-canary.
bool IsOfOthers(std::string_view variable) {
  const std::string_view name = variable.substr(kVariablePrefix.size());
  for (const std::string_view prefix : {"SERVICE_", "PORT_", "TEST_", "CLIENT_", "FAKE_GPU_"})
    if (name.starts_with(prefix)) return true;
  if (name.ends_with("_SERVICE_HOST") || name.ends_with("_PORT")) return true;
  for (const std::string_view part : {"_SERVICE_PORT", "_PORT_"})
    if (name.find(part) != name.npos) return true;
  constexpr std::string_view kNames[] = {"CPU_ISA", "FORCE_BACKEND", "MODULE_DIR", "NVCC", "PORT",
                                         "SERVER",  "SERVER_BINARY", "TLS_CA",     "TOKEN"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

absl::Status ReadEnvironment(const Environment& environment, ServerConfig& config) {
  std::set<std::string> known;
  for (const FlagSpec& spec : FlagSpecs()) {
    const std::string variable = StrCat(kVariablePrefix, absl::AsciiStrToUpper(spec.name));
    known.insert(variable);
    const auto found = environment.find(variable);
    if (found == environment.end()) continue;
    if (absl::Status status = spec.set(found->second, config); !status.ok()) {
      return InvalidArgument(variable, ": ", status.message());
    }
  }
  for (const auto& [variable, value] : environment) {
    if (!variable.starts_with(kVariablePrefix) || known.contains(variable) || IsOfOthers(variable))
      continue;
    return InvalidArgument(variable, ": no flag has this name; --help lists all");
  }
  return absl::OkStatus();
}

// Reads `--name[=value]` at arguments[*index]; moves *index on if the value is the next argument.
absl::Status ReadFlag(std::span<const std::string> arguments, size_t* index,
                      std::set<std::string>& seen, ServerConfig& config) {
  const std::string_view argument = arguments[*index];
  if (!argument.starts_with("--") || argument == "--") {
    return InvalidArgument("unexpected argument ", Quoted(argument), "; flags are --name=value");
  }
  const size_t equals = argument.find('=');
  std::string name(argument.substr(0, equals).substr(2));
  std::replace(name.begin(), name.end(), '-', '_');
  const FlagSpec* spec = FindFlag(name);
  if (spec == nullptr) {
    return InvalidArgument("unknown flag ", Quoted(argument), "; --help lists all");
  }
  if (!seen.insert(name).second) {
    return InvalidArgument("--", name, " is given twice");
  }
  if (equals != std::string_view::npos) return spec->set(argument.substr(equals + 1), config);
  if (spec->is_switch) return spec->set("true", config);
  if (*index + 1 >= arguments.size()) return flags::Mismatch(name, spec->unit, "");
  return spec->set(arguments[++*index], config);
}

// True for the addresses that gRPC's credentials for this machine know as such.
bool IsLocal(const std::string& listen) {
  const auto address = ParseHostPort(listen);
  return listen.starts_with(kUnixScheme) ||
         (address.ok() && (address->host == "127.0.0.1" || address->host == "localhost" ||
                           address->host == "[::1]"));
}

bool IsLoopback(const std::string& listen) {
  if (listen.starts_with(kUnixScheme)) return true;
  const auto address = ParseHostPort(listen);
  if (!address.ok()) return false;
  in_addr v4 = {};
  if (inet_pton(AF_INET, address->host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  return address->host == "localhost" || address->host == "[::1]";
}

absl::Status CheckSecurity(const ServerConfig& config) {
  if (config.tls_cert.empty() != config.tls_key.empty())
    return InvalidArgument("--tls_cert and --tls_key: expected both or none");
  if (config.tls_cert.empty() && !config.tls_client_ca.empty())
    return InvalidArgument("--tls_client_ca: expected --tls_cert beside it, got none");
  if (config.tls_cert.empty() && !config.token_file.empty() && !IsLoopback(config.listen))
    return InvalidArgument("--token_file: expected --tls_cert beside it where --listen is not ",
                           "loopback: tokens would cross the network in plain text");
  if (config.tls_cert.empty() && !config.token_file.empty() && !IsLocal(config.listen))
    return InvalidArgument(
        "--token_file: expected --listen at 127.0.0.1, [::1] or localhost where ",
        "there is no --tls_cert, got ", Quoted(config.listen, 200));
  const bool guarded = !config.tls_cert.empty() || !config.token_file.empty();
  if (guarded && !config.rest_listen.empty() && !IsLocal(config.rest_listen))
    return InvalidArgument(
        "--rest_listen: expected an address at 127.0.0.1, [::1] or localhost, or unix:FILE, where ",
        "there is --tls_cert or --token_file: it speaks plain text, got ",
        Quoted(config.rest_listen, 200));
  if (config.tls_client_ca.empty() && !config.admin_names.empty())
    return InvalidArgument("--admin_names: expected --tls_client_ca beside it, got none");
  return absl::OkStatus();
}

absl::Status CheckWhole(const ServerConfig& config) {
  if (config.model_repository.empty() && config.model_dir.empty())
    return InvalidArgument("--model_repository: expected a directory, got none");
  if (!config.model_repository.empty() && !config.model_dir.empty())
    return InvalidArgument("--model_dir: expected no --model_repository beside it, got ",
                           Quoted(config.model_repository, 200));
  if (config.model_dir.empty() != config.model_name.empty())
    return InvalidArgument(config.model_dir.empty() ? "--model_dir" : "--model_name",
                           ": expected beside --model_", config.model_dir.empty() ? "name" : "dir",
                           ", got none");
  if (!config.socket.empty() && config.socket == config.admin_listen) {
    return InvalidArgument("--admin_listen: expected another file than that of --socket, got ",
                           Quoted(config.socket, 200));
  }
  return CheckSecurity(config);
}

int64_t TrajectoryBytes(const ServerConfig& config) {
  return config.gradients ? config.max_trajectory_bytes : 0;
}

int64_t BodiesBytes(const ServerConfig& config) {
  return config.rest_listen.empty() ? 0 : RestBodiesBytes(config);
}

}  // namespace

int64_t BudgetBytes(const ServerConfig& config) {
  return config.max_queue_bytes + config.max_grpc_memory_bytes + TrajectoryBytes(config) +
         BodiesBytes(config);
}

absl::Status FitToMemory(std::optional<int64_t> limit, ServerConfig& config) {
  // An eighth leaves the most for models and their workspaces.
  const int64_t budget =
      std::min(kMostDefaultBudget, std::max(flags::kMiB, limit.value_or(INT64_MAX) / 8));
  for (int64_t* const each : {&config.max_queue_bytes, &config.max_grpc_memory_bytes})
    if (*each < 0) *each = budget;
  if (!limit.has_value()) return absl::OkStatus();
  if (BudgetBytes(config) < *limit) return absl::OkStatus();
  return InvalidArgument(
      "--max_queue_bytes: expected less than the ", *limit, " bytes of memory that this process ",
      "may have, together with what follows, got ", config.max_queue_bytes, " + ",
      config.max_grpc_memory_bytes, " (--max_grpc_memory_bytes) + ", TrajectoryBytes(config),
      " (--max_trajectory_bytes, with --gradients) + ", BodiesBytes(config),
      " (bodies over HTTP, a quarter of --max_queue_bytes, with --rest_listen)");
}

int64_t RestBodiesBytes(const ServerConfig& config) { return config.max_queue_bytes / 4; }

absl::StatusOr<CommandLine> ParseCommandLine(std::span<const std::string> arguments,
                                             const Environment& environment) {
  CommandLine line;
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") line.action = CommandLine::Action::kHelp;
    if (argument == "--version") line.action = CommandLine::Action::kVersion;
  }
  const bool serve = line.action == CommandLine::Action::kServe;
  if (serve) DEEPPCR_RETURN_IF_ERROR(ReadEnvironment(environment, line.config));
  std::set<std::string> seen;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--help" || arguments[i] == "-h" || arguments[i] == "--version") continue;
    DEEPPCR_RETURN_IF_ERROR(ReadFlag(arguments, &i, seen, line.config));
  }
  if (!serve) return line;
  if (!line.config.probe.empty() || !line.config.check.empty()) {
    line.action =
        line.config.probe.empty() ? CommandLine::Action::kCheck : CommandLine::Action::kProbe;
    return line;
  }
  if (line.config.print_config) line.action = CommandLine::Action::kPrintConfig;
  DEEPPCR_RETURN_IF_ERROR(CheckWhole(line.config));
  return line;
}

absl::StatusOr<HostPort> ParseHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  HostPort result;
  int port = -1;
  if (colon == std::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(ToAbsl(text.substr(colon + 1)), &port) || port < 0 || port > 65535 ||
      !absl::ascii_isdigit(static_cast<unsigned char>(text[colon + 1]))) {
    return InvalidArgument("expected host:port, got ", Quoted(text));
  }
  result.host = std::string(text.substr(0, colon));
  result.port = port;
  // An IPv6 address without brackets would lose its last group to the port.
  const bool bracketed = result.host.front() == '[' && result.host.back() == ']';
  if (!bracketed && result.host.find(':') != std::string::npos) {
    return InvalidArgument("an IPv6 address needs brackets: [::1]:8001");
  }
  return result;
}

bool IsAdminOpen(const ServerConfig& config) {
  return config.admin == "auto" && config.token_file.empty() && config.admin_names.empty() &&
         IsLoopback(config.listen) &&
         (config.rest_listen.empty() || IsLoopback(config.rest_listen));
}

int ResolvedWorkers(const ServerConfig& config) {
  if (config.workers > 0) return static_cast<int>(config.workers);
  return std::clamp(AvailableCores() / 2, 2, 16);
}

}  // namespace deeppcr
