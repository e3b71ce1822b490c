// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CONFIG_H_
#define DEEPPCR_SERVER_CONFIG_H_

// The server's settings: typed, validated, and described by one table from which parsing, `--help`
// and the check of server/README.md all follow.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/models/version_policy.h"

namespace deeppcr {

// The prefix of an HTTP address in --probe.
inline constexpr std::string_view kHttpScheme = "http://";
// The prefix of a UNIX socket's address, as gRPC writes it.
inline constexpr std::string_view kUnixScheme = "unix:";

// Settings; the initialisers are the defaults. Units: seconds, bytes, samples.
struct ServerConfig {
  std::string model_repository;                // this, or the next two
  std::string model_dir, model_name;           // the folder and the name of the only model
  std::string listen = "127.0.0.1:8001";       // gRPC; port 0: any free one; or unix:file
  std::string socket;                          // path of a UNIX socket for gRPC too; empty: none
  std::string admin_listen;                    // the same for administrators; empty: none
  std::string http_listen = "127.0.0.1:8002";  // metrics and probes
  std::string rest_listen;                     // v2 over HTTP; empty: none
  std::string port_file;                       // bound ports as JSON, once models were tried
  VersionPolicies versions;                    // loaded at start
  std::string model_control = "explicit";      // explicit, poll
  double poll_seconds = 15;
  bool allow_empty = false;   // ready also without a ready model
  bool allow_failed = false;  // ready also if models failed
  std::string backend = "auto";
  int64_t threads = 0;        // threads that share a batch; 0: one per core
  int64_t workers = 0;        // batches at a time; 0: half the cores, in [2, 16]
  int64_t max_instances = 0;  // batches of one model version at a time; 0: one per worker
  double batch_delay_seconds = 0;
  double busy_poll_seconds = -1;  // -1: 100 us while that pays
  std::string plan_cache_dir;
  std::string plan = "prefer";  // measure, prefer, require
  int64_t max_model_bytes = int64_t{1} << 30;
  int64_t max_workspace_bytes = int64_t{256} << 20;
  int64_t max_unplanned_bytes = -1;                  // per model; see EngineOptions
  bool gradients = false;                            // load models with their backward passes
  int64_t max_trajectory_bytes = int64_t{64} << 20;  // kept for gradients; 0: none
  double trajectory_seconds = 60;
  int64_t max_queue = 1024;       // samples that wait, per model version
  double max_queue_seconds = 30;  // that requests may be expected to wait; 0: no limit
  int64_t max_queue_bytes = -1;   // -1: by FitToMemory
  int64_t max_message_bytes = int64_t{16} << 20;
  int64_t max_grpc_memory_bytes = -1;  // -1: by FitToMemory
  int64_t max_connections = 1024;
  int64_t max_concurrent_streams = 1024;
  double keepalive_seconds = 7200;
  double keepalive_timeout_seconds = 20;
  double min_ping_interval_seconds = 300;
  double max_connection_age_seconds = 300;      // 0: no limit
  double max_connection_age_grace_seconds = 0;  // for calls in progress after that; 0: no limit
  double max_connection_idle_seconds = 900;     // 0: no limit
  std::string tls_cert, tls_key;                // PEM files; empty: plain text
  std::string tls_client_ca;             // PEM file; set: clients need a certificate that it signed
  std::string token_file;                // see authorizer.h; empty: no tokens
  std::string admin = "auto";            // auto, proved
  std::vector<std::string> admin_names;  // of client certificates
  bool reflection = true;
  double reply_seconds = 30;
  double stuck_seconds = 600;    // 0: nothing is ever stuck
  bool stop_with_stdin = false;  // stop once standard input ends
  double drain_pause_seconds = 0;
  double drain_seconds = 30;
  std::string compare = "infer";  // infer, admin, off
  double compare_seconds = 10;
  double shadow_rate = 0.01;
  double access_log_rate = 0;  // share of requests
  double slow_seconds = 10;    // of a request that the log tells of; 0: none
  std::string trace_file;      // empty: no traces
  double trace_rate = 1;
  std::string otlp_traces_endpoint;  // empty: traces go nowhere else
  int64_t max_trace_bytes = int64_t{256} << 20;
  std::string log_format = "json";
  std::string log_level = "info";
  std::string check;  // set: say what is wrong with the model in this folder, and exit
  bool verbose = false;
  bool print_config = false;
  std::string probe;  // set: ask that server (host:port, unix:path, http://host:port) and exit
};

// One setting. Its environment variable is DEEPPCR_ and the upper-case name.
struct FlagSpec {
  std::string name;
  std::string unit;           // kind of value, e.g. "seconds in [0, 3600]"
  std::string default_value;  // as it would be typed; empty: none
  std::string help;
  bool is_switch = false;  // may stand without a value
  std::function<absl::Status(std::string_view, ServerConfig&)> set;
  std::function<std::string(const ServerConfig&)> get;  // as it would be typed
};

// Every flag, in the order of `--help`. Built once; thread-safe.
std::span<const FlagSpec> FlagSpecs();

// The settings as --print_config prints them, a line --name=value for each.
std::string ConfigText(const ServerConfig& config);

// Fills in what follows from the memory that the process may have (none: as much as there is), and
// checks that the budgets fit into it together. Errors: kInvalidArgument with the sum.
absl::Status FitToMemory(std::optional<int64_t> limit, ServerConfig& config);

// What queues, gRPC, kept trajectories and bodies over HTTP may hold together; after FitToMemory.
int64_t BudgetBytes(const ServerConfig& config);

// The budget of bodies over HTTP; max_queue_bytes is known.
int64_t RestBodiesBytes(const ServerConfig& config);

// The text that `--help` prints.
std::string HelpText(std::string_view program);

struct CommandLine {
  enum class Action { kServe, kHelp, kVersion, kProbe, kCheck, kPrintConfig };
  Action action = Action::kServe;
  ServerConfig config;
};

// The environment variables by name, those with the prefix kVariablePrefix at least.
using Environment = std::map<std::string, std::string>;
inline constexpr std::string_view kVariablePrefix = "DEEPPCR_";

// Parses `--name=value`, `--name value` and `--switch`; dashes within a name count as underscores.
// The command line wins over the environment, which wins over the defaults. Errors:
// kInvalidArgument naming the flag, what was expected and what came, or a variable with the prefix
// that nobody reads.
absl::StatusOr<CommandLine> ParseCommandLine(std::span<const std::string> arguments,
                                             const Environment& environment);

// True if every caller may load and unload models, without showing anything.
bool IsAdminOpen(const ServerConfig& config);

// A host and port, e.g. from "127.0.0.1:8001" or "[::1]:0". The host keeps its brackets.
struct HostPort {
  std::string host;
  int port = 0;
};
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);

// The number of workers: config.workers, or, if that is 0, the rule in the struct above.
int ResolvedWorkers(const ServerConfig& config);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CONFIG_H_
