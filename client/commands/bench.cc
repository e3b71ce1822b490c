// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/array_file.h"
#include "client/batched_forward.h"
#include "client/commands/command.h"
#include "client/load_generator.h"
#include "client/progress.h"
#include "client/table.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "proto/message_json.h"

namespace deeppcr {
namespace {

// Streams beyond a few on one connection wait for each other's frames.
constexpr int kClientsPerConnection = 6;
// The most requests that are built before the clock starts; clients send these in turn.
constexpr int64_t kMaxDistinctRequests = 64;

struct BenchFlags {
  ModelFlags model;
  InputFlags inputs;
  SolverFlags solver;
  LoadOptions load;
  double seconds = 10;
  double warmup_seconds = 1;
  std::string json;
};

void AddLoadFlags(CLI::App* app, BenchFlags* flags) {
  app->add_option("--clients", flags->load.clients,
                  "clients, each with one request under way (default 1; 64 with --rate)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  app->add_option("--rate", flags->load.rate,
                  "requests per second started in all, whether or not earlier ones were answered "
                  "(default: each client sends when its answer came)")
      ->type_name("R")
      ->check(CLI::PositiveNumber);
  CLI::Option* seconds =
      app->add_option("--seconds", flags->seconds, "measured time (default 10)")->type_name("S");
  seconds->check(CLI::Range(0.001, 3600.0));
  app->add_option("--requests", flags->load.requests, "measured requests, instead of --seconds")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}))
      ->excludes(seconds);
  app->add_option("--warmup", flags->warmup_seconds, "seconds of load before (default 1)")
      ->type_name("S")
      ->check(CLI::Range(0.0, 3600.0));
}

void AddFlags(CLI::App* app, BenchFlags* flags) {
  flags->model.Add(app)->required();
  AddLoadFlags(app, flags);
  flags->inputs.AddPath(app, false);
  flags->inputs.AddDrawing(app);
  app->add_option("--samples", flags->inputs.samples, "samples per request (default 1)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app->add_option("--json", flags->json, "also write the figures as JSON; - is standard output")
      ->type_name("FILE");
  flags->solver.Add(app, true);
  app->footer(
      "With --rate, latency counts from the moment a request was meant to be sent, so a stall "
      "shows in\n"
      "every request that it delayed. Percentiles are nearest-rank. Run it away from the server's "
      "cores\n"
      "where you can: the load takes its share of the machine.\n"
      "Examples:\n"
      "  deeppcr bench --model digits-resnet --clients 8 --seconds 10\n"
      "  deeppcr bench --model digits-resnet --rate 500 --solver newton --json bench.json");
}

absl::StatusOr<std::vector<v1::ForwardRequest>> BuildRequests(const BenchFlags& flags,
                                                              const v1::GetModelResponse& model) {
  const int64_t samples = std::max<int64_t>(flags.inputs.samples, 1);
  if (samples > model.max_batch_size()) {
    return InvalidArgument("samples: expected at most ", model.max_batch_size(),
                           ", the model's limit, got ", samples);
  }
  DEEPPCR_ASSIGN_OR_RETURN(const v1::SolverOptions solver, flags.solver.Build());
  InputFlags inputs = flags.inputs;
  // The number of drawn inputs: some variety, so that no branch predictor learns one input.
  inputs.samples = samples * 16;
  DEEPPCR_ASSIGN_OR_RETURN(const Array array, inputs.Load(model.input_dim()));
  if (array.rows() < samples) {
    return InvalidArgument(flags.inputs.path, ": expected at least ", samples,
                           " rows for --samples, got ", array.rows());
  }
  const int64_t count = std::min(array.rows() / samples, kMaxDistinctRequests);
  std::vector<v1::ForwardRequest> requests(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    v1::ForwardRequest& request = requests[static_cast<size_t>(i)];
    request.set_model(model.summary().name());
    request.set_version(model.summary().version());
    *request.mutable_options() = solver;
    RowsToTensor(array, i * samples, samples, request.mutable_inputs());
  }
  return requests;
}

RequestOutcome ToOutcome(const v1::ForwardResponse& reply) {
  const v1::SolveReport& report = reply.report();
  SolveTotals totals;
  totals.Add(report);
  return {.solver = report.samples().empty() ? "" : report.samples(0).solver(),
          .samples = totals.samples,
          .fallbacks = totals.fallbacks,
          .unconverged = totals.unconverged,
          .queue_seconds = report.queue_seconds(),
          .solve_seconds = report.solve_seconds()};
}

std::string LatencyLine(const char* name, const LatencySummary& latency) {
  return absl::StrFormat("%-11s p50 %s  p90 %s  p99 %s  p99.9 %s  max %s  mean %s\n", name,
                         FormatSeconds(latency.p50), FormatSeconds(latency.p90),
                         FormatSeconds(latency.p99), FormatSeconds(latency.p999),
                         FormatSeconds(latency.max), FormatSeconds(latency.mean));
}

std::string ResultText(const BenchFlags& flags, const LoadResult& result) {
  const double rate = static_cast<double>(result.ok) / result.seconds;
  std::string text = absl::StrFormat(
      "%d requests in %.2f s from %d clients%s: %.1f requests/s, %.1f samples/s answered\n",
      result.requests, result.seconds, flags.load.clients,
      flags.load.rate > 0 ? absl::StrFormat(" at %g requests/s", flags.load.rate) : "", rate,
      static_cast<double>(result.samples) / result.seconds);
  absl::StrAppend(&text, LatencyLine("latency", result.latency));
  if (flags.load.rate > 0) absl::StrAppend(&text, LatencyLine("sent late", result.send_lag));
  absl::StrAppend(&text, "server      mean queue ", FormatSeconds(result.mean_queue_seconds),
                  "  mean solve ", FormatSeconds(result.mean_solve_seconds), "\nsolved by   ",
                  CountsText(result.solvers), "; ", result.fallbacks, " fallbacks, ",
                  result.unconverged, " unconverged samples\n");
  if (result.errors.empty()) return text + "errors      none\n";
  absl::StrAppend(&text, "errors      ", CountsText(result.errors), "\n");
  for (const auto& [code, message] : result.first_error) {
    absl::StrAppend(&text, "  ", code, ": ", Printable(message), "\n");
  }
  return text;
}

nlohmann::ordered_json LatencyJson(const LatencySummary& latency) {
  return {{"count", latency.count}, {"mean", latency.mean}, {"min", latency.min},
          {"p50", latency.p50},     {"p90", latency.p90},   {"p99", latency.p99},
          {"p99_9", latency.p999},  {"max", latency.max}};
}

nlohmann::ordered_json ResultJson(const BenchFlags& flags, const v1::GetModelResponse& model,
                                  const LoadResult& result) {
  return {{"model", model.summary().name()},
          {"version", model.summary().version()},
          {"device", model.plan().device()},
          {"plan_id", model.plan().id()},
          {"mode", flags.load.rate > 0 ? "fixed_rate" : "closed_loop"},
          {"rate", flags.load.rate},
          {"clients", flags.load.clients},
          {"samples_per_request", std::max<int64_t>(flags.inputs.samples, 1)},
          {"seconds", result.seconds},
          {"requests", result.requests},
          {"ok", result.ok},
          {"requests_per_second", static_cast<double>(result.ok) / result.seconds},
          {"samples_per_second", static_cast<double>(result.samples) / result.seconds},
          {"latency_seconds", LatencyJson(result.latency)},
          {"send_lag_seconds", LatencyJson(result.send_lag)},
          {"mean_queue_seconds", result.mean_queue_seconds},
          {"mean_solve_seconds", result.mean_solve_seconds},
          {"solvers", result.solvers},
          {"fallbacks", result.fallbacks},
          {"unconverged", result.unconverged},
          {"errors", result.errors}};
}

absl::StatusOr<std::vector<std::unique_ptr<Client>>> Connect(const BenchFlags& flags,
                                                             const GlobalOptions& global) {
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i * kClientsPerConnection < flags.load.clients; ++i) {
    DEEPPCR_ASSIGN_OR_RETURN(std::unique_ptr<Client> client,
                             MakeClient(global, absl::Seconds(60), i));
    DEEPPCR_RETURN_IF_ERROR(client->Connect(absl::Seconds(10)));
    clients.push_back(std::move(client));
  }
  return clients;
}

absl::Status Report(const BenchFlags& flags, const v1::GetModelResponse& model,
                    const LoadResult& result) {
  if (flags.json != "-") DEEPPCR_RETURN_IF_ERROR(WriteFile("-", ResultText(flags, result)));
  if (!flags.json.empty()) {
    DEEPPCR_RETURN_IF_ERROR(WriteFile(flags.json, DumpJson(ResultJson(flags, model, result))));
  }
  if (result.ok > 0) return absl::OkStatus();
  const std::string why =
      result.first_error.empty() ? "nothing was sent" : result.first_error.begin()->second;
  return absl::UnknownError(StrCat("no request succeeded: ", why));
}

absl::Status Run(BenchFlags flags, const GlobalOptions& global) {
  flags.load.duration = absl::Seconds(flags.seconds);
  flags.load.warmup = absl::Seconds(flags.warmup_seconds);
  DEEPPCR_ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<Client>> clients,
                           Connect(flags, global));
  DEEPPCR_ASSIGN_OR_RETURN(const v1::GetModelResponse model,
                           ReadyModel(*clients.front(), flags.model));
  DEEPPCR_RETURN_IF_ERROR(CheckTakesInputs(model));
  DEEPPCR_ASSIGN_OR_RETURN(const std::vector<v1::ForwardRequest> requests,
                           BuildRequests(flags, model));
  const SendRequest send = [&](int client, int64_t index) -> absl::StatusOr<RequestOutcome> {
    const size_t connection = static_cast<size_t>(client / kClientsPerConnection);
    const size_t which = static_cast<size_t>(index) % requests.size();
    DEEPPCR_ASSIGN_OR_RETURN(const v1::ForwardResponse reply,
                             clients[connection]->Forward(requests[which]));
    return ToOutcome(reply);
  };
  std::atomic<int64_t> done{0};
  const absl::StatusOr<LoadResult> result = [&] {
    const ProgressText progress([&] { return StrCat(done.load(), " requests answered"); });
    return GenerateLoad(flags.load, send, &done);
  }();
  if (!result.ok()) return result.status();
  return Report(flags, model, *result);
}

}  // namespace

RunCommand AddBench(CLI::App* app, const GlobalOptions* global) {
  const auto flags = std::make_shared<BenchFlags>();
  AddFlags(app, flags.get());
  const CLI::Option* clients = app->get_option("--clients");
  return [flags, global, clients] {
    if (clients->count() == 0 && flags->load.rate > 0) flags->load.clients = 64;
    return Run(*flags, *global);
  };
}

}  // namespace deeppcr
