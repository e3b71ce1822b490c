// SPDX-License-Identifier: Apache-2.0
// The table of flags: `--help`, the environment, --print_config and README.md follow from it.
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/strings.h"
#include "kernels/engine.h"
#include "server/config.h"
#include "server/flag_kinds.h"

namespace deeppcr {
namespace {

using namespace flags;  // NOLINT: the names of this table's cells

FlagSpec VersionsFlag() {
  FlagSpec spec{"versions", "rules, by commas", "latest",
                "Versions to load at start: latest, latest:N or all, and for single models "
                "MODEL=latest:2, MODEL=all or MODEL=1+3.",
                false};
  spec.get = [](const ServerConfig& config) { return config.versions.text(); };
  spec.set = [](std::string_view text, ServerConfig& config) -> absl::Status {
    absl::StatusOr<VersionPolicies> versions = VersionPolicies::Parse(text);
    if (!versions.ok()) return InvalidArgument("--versions: ", versions.status().message());
    config.versions = *std::move(versions);
    return absl::OkStatus();
  };
  return spec;
}

void AddModelFlags(std::vector<FlagSpec>& specs) {
  using C = ServerConfig;
  specs.push_back(Text("model_repository", "directory", &C::model_repository,
                       "Models, as <model>/<integer version>/{config.json,model.safetensors}."));
  specs.push_back(
      Text("model_dir", "directory", &C::model_dir,
           "In place of --model_repository: the only model, as "
           "<integer version>/{config.json,model.safetensors}, or these files "
           "themselves, as model hubs hand them out, which are version 1, beside later ones."));
  specs.push_back(
      Name("model_name", &C::model_name, "The name under which --model_dir is served."));
  specs.push_back(VersionsFlag());
  specs.push_back(
      Choice("model_control", {"explicit", "poll"}, &C::model_control,
             "explicit: models are loaded at start and when asked for. poll: also when "
             "the repository changes; a version is taken once nothing of it has changed "
             "between two looks, and unloaded when it is gone."));
  specs.push_back(Real("poll_seconds", "seconds", 1, 86400, &C::poll_seconds,
                       "The time between two looks at the repository."));
  specs.push_back(Switch("allow_empty", &C::allow_empty,
                         "Ready also while no model is; otherwise an empty repository, or the last "
                         "model's unload, is not ready."));
  specs.push_back(Switch("allow_failed", &C::allow_failed,
                         "Ready also if models failed to load, as long as one is served."));
  specs.push_back(Choice(
      "backend", {BackendNames().begin(), BackendNames().end()}, &C::backend,
      "Where models run. auto: the CPU, until a GPU has passed the tests of this very code; a "
      "model that the CPU backend has no code for runs on the reference backend, with a "
      "warning."));
  specs.push_back(Integer("threads", "threads", 0, 1024, &C::threads,
                          "Threads that share the samples of one batch. 0: one per core."));
  specs.push_back(
      Integer("workers", "threads", 0, 256, &C::workers,
              "Batches computed at a time. 0: half the cores, at least 2, at most 16."));
  specs.push_back(Choice("plan", {"measure", "prefer", "require"}, &C::plan,
                         "measure at every load; prefer a plan.json, or an older plan, that fits; "
                         "require a plan.json that fits, or the load fails."));
  specs.push_back(Text("plan_cache_dir", "directory", &C::plan_cache_dir,
                       "Measured plans are kept here, and code that a GPU runs of step programs. "
                       "Without it they end with the server."));
  specs.push_back(Integer("max_model_bytes", "bytes", 1024, int64_t{1} << 40, &C::max_model_bytes,
                          "Largest weights file that is loaded."));
  specs.push_back(
      Integer("max_workspace_bytes", "bytes", kMiB, int64_t{1} << 40, &C::max_workspace_bytes,
              "Scratch memory of one thread; bounds how short a shooting interval may be."));
  specs.push_back(
      Integer("max_unplanned_bytes", "bytes", -1, int64_t{1} << 40, &C::max_unplanned_bytes,
              "Memory that a model may take for numbers of inference steps beside those of "
              "config.json, guidance, beginnings and known elements, made when first asked for. "
              "0: requests choose among the numbers of config.json. -1: five times the weights, "
              "at least 512 MiB."));
  specs.push_back(Switch("gradients", &C::gradients,
                         "Answer Gradient. Models take the weights of their recurrence once more, "
                         "and a second workspace of up to --max_workspace_bytes per thread."));
  specs.push_back(Integer("max_trajectory_bytes", "bytes", 0, int64_t{1} << 40,
                          &C::max_trajectory_bytes,
                          "With --gradients: memory for trajectories that requests keep for a "
                          "following Gradient; the oldest make room. 0: none are kept."));
  specs.push_back(Real("trajectory_seconds", "seconds", 0.1, 86400, &C::trajectory_seconds,
                       "How long a trajectory is kept at most."));
}

void AddNetworkFlags(std::vector<FlagSpec>& specs) {
  using C = ServerConfig;
  specs.push_back(
      Address("listen", &C::listen, "Address of the gRPC service. Port 0: any free one."));
  specs.push_back(Text("socket", "file", &C::socket,
                       "UNIX socket on which gRPC is served too, in plain text, to those of this "
                       "machine whom the permissions of the file and its folder let in."));
  specs.push_back(Address("http_listen", &C::http_listen,
                          "Address of /metrics, /livez and /readyz. Port 0: any free one."));
  specs.push_back(Address("rest_listen", &C::rest_listen,
                          "Address of the v2 protocol over HTTP, in plain text. Port 0: any free "
                          "one. Without it: only gRPC."));
  specs.push_back(
      Text("port_file", "file", &C::port_file,
           "Written once every model was tried: the bound ports and readiness as JSON."));
  specs.push_back(Integer("max_message_bytes", "bytes", 1024, int64_t{2047} * kMiB,
                          &C::max_message_bytes, "Largest request and reply."));
  specs.push_back(Budget("max_grpc_memory_bytes", &C::max_grpc_memory_bytes,
                         "What gRPC may hold for messages in transit; calls that a hostile peer "
                         "opens by the thousand are not in it (SECURITY.md)."));
  specs.push_back(Integer("max_connections", "connections", 1, 1 << 20, &C::max_connections,
                          "Connections to the gRPC service, on all its addresses; more are closed "
                          "as they come."));
  specs.push_back(Integer("max_concurrent_streams", "calls", 1, 1 << 20, &C::max_concurrent_streams,
                          "Calls in progress on one connection."));
  specs.push_back(Real("keepalive_seconds", "seconds", 1, 86400, &C::keepalive_seconds,
                       "Silence on a connection before the server pings it."));
  specs.push_back(Real("keepalive_timeout_seconds", "seconds", 1, 3600,
                       &C::keepalive_timeout_seconds, "Wait for the answer to that ping."));
  specs.push_back(Real("min_ping_interval_seconds", "seconds", 0.01, 86400,
                       &C::min_ping_interval_seconds,
                       "Clients that ping more often than this lose their connection."));
  specs.push_back(Real("max_connection_age_seconds", "seconds", 0, 86400,
                       &C::max_connection_age_seconds,
                       "Clients are told to connect anew after this long, give or take a tenth, so "
                       "that they see servers that have come and certificates that have changed. "
                       "0: never."));
  specs.push_back(Real("max_connection_age_grace_seconds", "seconds", 0, 86400,
                       &C::max_connection_age_grace_seconds,
                       "Time that calls on such a connection have to end. 0: as long as they "
                       "take."));
  specs.push_back(Real("max_connection_idle_seconds", "seconds", 0, 86400,
                       &C::max_connection_idle_seconds,
                       "Connections without a call for this long are closed. 0: never."));
  specs.push_back(
      Text("tls_cert", "file", &C::tls_cert,
           "PEM certificate (chain) of the gRPC service; taken again when it and the key have "
           "changed and fit. "
           "Without it: plain text."));
  specs.push_back(Text("tls_key", "file", &C::tls_key, "PEM private key of --tls_cert."));
  specs.push_back(Text("tls_client_ca", "file", &C::tls_client_ca,
                       "PEM certificates of those who sign client certificates, which clients "
                       "then need."));
  specs.push_back(
      Text("token_file", "file", &C::token_file,
           "Lines \"infer TOKEN\" and \"admin TOKEN\", followed by \"name=NAME share=S\" where "
           "a client has a name, and a share of the queues; calls need the metadata "
           "\"authorization: Bearer TOKEN\"; read again when it changes."));
  specs.push_back(Choice("admin", {"auto", "proved"}, &C::admin,
                         "Who may load and unload models. proved: who shows the role admin, by "
                         "--admin_listen, --token_file or --admin_names. auto: everybody, while "
                         "--listen is loopback and neither tokens nor names are set, else as "
                         "proved."));
  specs.push_back(Socket("admin_listen", &C::admin_listen,
                         "UNIX socket, of mode 0600, whose callers have the role admin."));
  specs.push_back(Names("admin_names", &C::admin_names,
                        "Client certificates with one of these names, as --tls_client_ca verifies "
                        "them, have the role admin: a subject alternative name, or the common name "
                        "where there is none."));
  specs.push_back(Switch("reflection", &C::reflection, "Serve gRPC reflection."));
}

// A flag that takes the address of either of a server's ports.
FlagSpec Probed(std::string name) {
  using C = ServerConfig;
  FlagSpec spec = Text(std::move(name), "host:port | unix:file | http://host:port", &C::probe,
                       "Serve nothing: exit 0 if the server at this address is ready, else 1. With "
                       "http:// that of --http_listen, where gRPC has TLS.");
  spec.set = [](std::string_view text, ServerConfig& config) {
    std::string_view address = text;
    if (address.starts_with(kHttpScheme)) address.remove_prefix(kHttpScheme.size());
    const bool is_socket = text.starts_with(kUnixScheme) && text.size() > kUnixScheme.size();
    if (!is_socket && !ParseHostPort(address).ok())
      return Mismatch(
          "probe", "host:port or http://host:port with a port in [0, 65535], or unix:file", text);
    config.probe = std::string(text);
    return absl::OkStatus();
  };
  return spec;
}

FlagSpec BusyPollFlag() {
  FlagSpec spec =
      Real("busy_poll_seconds", "seconds", -1, 1, &ServerConfig::busy_poll_seconds,
           "While requests come one by one, the thread that waits for them looks for the next one "
           "for this long before it sleeps: one that comes within that time is answered sooner, "
           "for which a core is kept busy. Above 0: always, and one thread at a time waits. -1: "
           "for 100 us, as long as requests come sooner for it, where one thread waits anyway: on "
           "2 to 7 cores without TLS.");
  spec.unit = "-1 | seconds in [0, 1]";
  spec.set = [set_real = spec.set, unit = spec.unit](std::string_view text, ServerConfig& config) {
    ServerConfig read;
    const double& seconds = read.busy_poll_seconds;
    if (!set_real(text, read).ok() || (seconds < 0 && seconds != -1))
      return Mismatch("busy_poll_seconds", unit, text);
    config.busy_poll_seconds = seconds;
    return absl::OkStatus();
  };
  return spec;
}

void AddServingFlags(std::vector<FlagSpec>& specs) {
  using C = ServerConfig;
  specs.push_back(Integer("max_instances", "batches", 0, 256, &C::max_instances,
                          "Batches of one model version that are computed at a time. 0: as many as "
                          "workers are free."));
  specs.push_back(Real("batch_delay_seconds", "seconds", 0, 1, &C::batch_delay_seconds,
                       "A batch that is not full waits this long for more requests to come. 0: "
                       "take all that wait."));
  specs.push_back(BusyPollFlag());
  specs.push_back(Integer("max_queue", "samples", 1, 1 << 20, &C::max_queue,
                          "Samples that may wait, per model version; more are refused."));
  specs.push_back(Real("max_queue_seconds", "seconds", 0, 86400, &C::max_queue_seconds,
                       "Requests that would wait longer than this are refused as they come, as "
                       "are those that would wait beyond their deadline. 0: only these."));
  specs.push_back(Budget("max_queue_bytes", &C::max_queue_bytes,
                         "Bytes of accepted requests and their replies, all models together."));
  specs.push_back(
      Real("reply_seconds", "seconds", 0.1, 86400, &C::reply_seconds,
           "A reply that its client has not read after this long, and a second for every "
           "128 KiB, is dropped."));
  specs.push_back(Real("stuck_seconds", "seconds", 0, 86400, &C::stuck_seconds,
                       "/livez says no while a batch has been computed for this long. 0: never."));
  specs.push_back(Switch("stop_with_stdin", &C::stop_with_stdin,
                         "Stop, as at SIGTERM, once standard input ends: for a parent that holds "
                         "its other end, and may be killed."));
  specs.push_back(Real("drain_pause_seconds", "seconds", 0, 3600, &C::drain_pause_seconds,
                       "After SIGTERM: not ready, but still serving, so that balancers notice; "
                       "in the second half without new connections."));
  specs.push_back(Real("drain_seconds", "seconds", 0, 3600, &C::drain_seconds,
                       "After that: new calls are refused, those in progress get this long."));
  specs.push_back(
      Choice("compare", {"infer", "admin", "off"}, &C::compare,
             "Who may call Compare: everybody who may infer, callers of the role admin, "
             "or nobody."));
  specs.push_back(Real("compare_seconds", "seconds", 0.1, 86400, &C::compare_seconds,
                       "The time of one comparison: repetitions that do not fit are left out, and "
                       "it is refused where not even one does."));
  specs.push_back(Real("shadow_rate", "share", 0, 1, &C::shadow_rate,
                       "Share of Forward, Generate and Gradient requests repeated after the reply "
                       "by the other kind of solver, or the other way back, to measure speed-up "
                       "and error. While nothing waits, and under load within a hundredth of a "
                       "worker's time."));
  specs.push_back(Real("access_log_rate", "share", 0, 1, &C::access_log_rate,
                       "Share of requests that have a line in the log."));
  specs.push_back(Real("slow_seconds", "seconds", 0, 86400, &C::slow_seconds,
                       "A request that took this long has a warning in the log. 0: none has."));
  specs.push_back(Text("trace_file", "file", &C::trace_file,
                       "What requests spent their time on, for Perfetto (ui.perfetto.dev)."));
  specs.push_back(Real("trace_rate", "share", 0, 1, &C::trace_rate,
                       "Share of requests that are traced, beside those whose traceparent says "
                       "sampled."));
  specs.push_back(Integer("max_trace_bytes", "bytes", 1024, int64_t{1} << 40, &C::max_trace_bytes,
                          "Size at which --trace_file becomes FILE.1, in place of the one before, "
                          "and begins anew."));
  specs.push_back(Url("otlp_traces_endpoint", &C::otlp_traces_endpoint,
                      "Collector of OpenTelemetry that gets the same as spans by OTLP over HTTP "
                      "in JSON, as http://collector:4318/v1/traces."));
  specs.push_back(Choice("log_format", {"json", "text"}, &C::log_format, "One line per event."));
  specs.push_back(Choice("log_level", {"debug", "info", "warn", "error"}, &C::log_level,
                         "debug writes one line per request."));
  specs.push_back(Probed("probe"));
  specs.push_back(Text("check", "folder", &C::check,
                       "Serve nothing: list all that is wrong with the model in this folder, or "
                       "with the models below it, and exit 0 if nothing is, else 1."));
  specs.push_back(Switch("verbose", &C::verbose,
                         "With --check: print the step programs too, and what their steps cost."));
  specs.push_back(Switch("print_config", &C::print_config,
                         "Serve nothing: print the settings that these flags and the environment "
                         "come to, and exit."));
}

std::vector<FlagSpec> BuildFlagSpecs() {
  std::vector<FlagSpec> specs;
  AddModelFlags(specs);
  AddNetworkFlags(specs);
  AddServingFlags(specs);
  return specs;
}

}  // namespace

std::span<const FlagSpec> FlagSpecs() {
  static const std::vector<FlagSpec>& specs = *new std::vector<FlagSpec>(BuildFlagSpecs());
  return specs;
}

std::string ConfigText(const ServerConfig& config) {
  std::string text;
  for (const FlagSpec& spec : FlagSpecs()) {
    if (spec.name == "print_config") continue;
    const std::string value = spec.get(config);
    if (!value.empty()) text += StrCat("--", spec.name, "=", value, "\n");
  }
  return text;
}

std::string HelpText(std::string_view program) {
  std::string text = StrCat(
      "Usage: ", program, " {--model_repository=DIR | --model_dir=DIR --model_name=NAME} [flags]\n",
      "Serves deep sequential models over gRPC, solved step by step or for all steps at once.\n\n",
      "Every flag may also be set by the environment variable DEEPPCR_<NAME IN CAPITALS>.\n",
      "Exit codes: 0 stopped cleanly, 1 failed or stopped before all calls were answered, 2 bad "
      "flags.\n\n");
  for (const FlagSpec& spec : FlagSpecs()) {
    text += StrCat("  --", spec.name, "  (", spec.unit);
    if (!spec.default_value.empty()) text += StrCat("; default ", spec.default_value);
    text += StrCat(")\n      ", spec.help, "\n");
  }
  text += "  --help, --version\n";
  return text;
}

}  // namespace deeppcr
