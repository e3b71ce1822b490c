// SPDX-License-Identifier: Apache-2.0
// The cost that the service adds to gRPC: requests of one sample, compared with a server that only
// hands them to another thread and answers with as many bytes, and on demand with a plain server in
// Python. All servers are processes of their own; rounds alternate between them; replies are
// checked before anything is timed. With --clocks one client asks for the same in its own process,
// over a UNIX socket and over TCP. Prints a table, and JSON with --json.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/array_file.h"
#include "client/load_generator.h"
#include "client/table.h"
#include "kernels/base/file.h"
#include "tests/bench/child_process.h"
#include "tests/bench/echo_server.h"
#include "tests/bench/in_process_target.h"
#include "tests/bench/rpc_targets.h"

namespace deeppcr::bench {
namespace {

struct Flags {
  std::string protocol = "forward";
  std::string server_binary = "build/release/server/deeppcr-server";
  std::string server;  // address of a running server to use instead
  std::string torch_server;
  std::string repository = "deploy/models/repository";
  std::string model = "digits-resnet";
  std::string inputs = "deploy/models/data/digits_heldout.npy";
  std::string solver = "auto";
  std::vector<int> clients = {1, 8, 32};
  int rounds = 5;
  double seconds = 2;
  bool clocks = false;
  std::string json;
  std::string echo_reply;  // the reply to echo: set when the program starts itself as the echo
  std::string echo_port_file;

  Protocol wire() const { return protocol == "infer" ? Protocol::kInfer : Protocol::kForward; }
};

// Limits the held-out samples to as many as are enough to differ.
constexpr int64_t kMaxSamples = 64;

absl::StatusOr<RpcWorkload> ReadWorkload(const Flags& flags) {
  auto inputs = ReadArray(flags.inputs, "");
  if (!inputs.ok()) return inputs.status();
  const int64_t rows = std::min(inputs->rows(), kMaxSamples);
  inputs->values.resize(static_cast<size_t>(rows * inputs->row_size()));
  inputs->shape.front() = rows;
  return RpcWorkload{flags.wire(), flags.model, flags.solver, *std::move(inputs)};
}

// Checks every sample against the sequential solver of the service: same label, outputs within 1e-3
// of the largest.
absl::Status CheckOutputs(const Target& target, const Target& service,
                          const RpcWorkload& workload) {
  const auto largest = [](const std::vector<float>& values) {
    return std::max_element(values.begin(), values.end()) - values.begin();
  };
  for (int64_t i = 0; i < workload.inputs.rows(); ++i) {
    const auto got = target.Outputs(i, workload.solver);
    if (!got.ok()) return got.status();
    const auto want = service.Outputs(i, "sequential");
    if (!want.ok()) return want.status();
    bool good = got->size() == want->size() && !got->empty() && largest(*got) == largest(*want);
    const float scale = good ? std::abs((*want)[static_cast<size_t>(largest(*want))]) : 0;
    for (size_t k = 0; good && k < got->size(); ++k) {
      good = std::abs((*got)[k] - (*want)[k]) <= 1e-3f * scale;
    }
    if (!good) return absl::InternalError(absl::StrCat("sample ", i, ": not sequential's answer"));
  }
  return absl::OkStatus();
}

absl::Status CheckEcho(const Target& echo, int64_t samples, const std::string& expected) {
  for (int64_t i = 0; i < samples; ++i) {
    const auto reply = echo.Reply(i);
    if (!reply.ok()) return reply.status();
    if (*reply == expected) continue;
    return absl::InternalError("the echo's reply is not the one it was given");
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadResult> Measure(const Target& target, int clients, double seconds) {
  const SendRequest send = [&](int client, int64_t index) { return target.Send(client, index); };
  const LoadOptions options{.clients = clients,
                            .duration = absl::Seconds(seconds),
                            .warmup = absl::Seconds(std::min(0.3, seconds / 4))};
  absl::StatusOr<LoadResult> result = GenerateLoad(options, send, nullptr);
  if (!result.ok() || result->errors.empty()) return result;
  const auto& [code, message] = *result->first_error.begin();
  return absl::InternalError(absl::StrCat(code, ": ", message));
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return Percentile(values, 50);
}

// The servers of one run; `torch` is null unless it was asked for.
struct Targets {
  std::unique_ptr<Target> echo, service, torch;
};

// The results of all targets at one number of clients, over all rounds.
struct Row {
  int clients = 0;
  std::vector<LoadResult> echo = {};
  std::vector<LoadResult> service = {};
  std::vector<LoadResult> torch = {};

  static double Rate(const LoadResult& result) {
    return static_cast<double>(result.ok) / result.seconds;
  }
  static double P50(const LoadResult& result) { return result.latency.p50; }
  static double Solve(const LoadResult& result) { return result.mean_solve_seconds; }
  static double Tail(const LoadResult& result) { return result.latency.p99 / result.latency.p50; }
  template <typename Figure>
  static std::vector<double> Each(const std::vector<LoadResult>& rounds, const Figure& figure) {
    std::vector<double> values;
    for (const LoadResult& result : rounds) values.push_back(figure(result));
    return values;
  }
  // Pairs a figure of the service with that of another target in the same round.
  template <typename Figure>
  std::vector<double> Paired(const std::vector<LoadResult>& other, const Figure& figure) const {
    std::vector<double> values;
    for (size_t i = 0; i < other.size(); ++i) values.push_back(figure(other[i], service[i]));
    return values;
  }
  std::vector<double> RatiosOver(const std::vector<LoadResult>& other) const {
    return Paired(other, [](const auto& o, const auto& s) { return Rate(s) / Rate(o); });
  }
  double P50Difference() const {
    return Median(Paired(echo, [](const auto& e, const auto& s) { return P50(s) - P50(e); }));
  }
  // The part that is neither gRPC nor the solve: codec, queue, batching, metrics.
  double Overhead() const {
    return Median(Paired(
        echo, [](const auto& e, const auto& s) { return P50(s) - P50(e) - s.mean_solve_seconds; }));
  }
};

absl::Status MeasureRound(const Flags& flags, const Targets& targets, bool backwards, Row* row) {
  std::vector<std::pair<const Target*, std::vector<LoadResult>*>> turns = {
      {targets.echo.get(), &row->echo}, {targets.service.get(), &row->service}};
  if (targets.torch != nullptr) turns.emplace_back(targets.torch.get(), &row->torch);
  if (backwards) std::reverse(turns.begin(), turns.end());
  for (const auto& [target, results] : turns) {
    auto result = Measure(*target, row->clients, flags.seconds);
    if (!result.ok()) return result.status();
    results->push_back(*std::move(result));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Row>> MeasureAll(const Flags& flags, const Targets& targets) {
  std::vector<Row> rows;
  for (const int clients : flags.clients) rows.push_back({.clients = clients});
  for (int round = 0; round < flags.rounds; ++round) {
    for (Row& row : rows) {
      // The first target changes from round to round, so that a drift of the machine favours
      // nobody.
      const absl::Status status = MeasureRound(flags, targets, round % 2 == 1, &row);
      if (!status.ok()) return status;
    }
    absl::FPrintF(stderr, "round %d of %d\n", round + 1, flags.rounds);
  }
  return rows;
}

std::string SignedSeconds(double seconds) {
  return (seconds < 0 ? "-" : "") + FormatSeconds(std::abs(seconds));
}

std::string RatioText(double ratio) { return absl::StrFormat(ratio < 10 ? "%.2f" : "%.0f", ratio); }

std::vector<std::string> ReportLine(const Row& row) {
  const std::vector<double> ratios = row.RatiosOver(row.echo);
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  std::vector<std::string> cells = {
      absl::StrCat(row.clients),
      absl::StrFormat("%.0f", Median(Row::Each(row.echo, Row::Rate))),
      absl::StrFormat("%.0f", Median(Row::Each(row.service, Row::Rate))),
      RatioText(Median(ratios)),
      absl::StrFormat("%.2f..%.2f", *least, *most),
      FormatSeconds(Median(Row::Each(row.echo, Row::P50))),
      FormatSeconds(Median(Row::Each(row.service, Row::P50))),
      RatioText(Median(Row::Each(row.echo, Row::Tail))),
      RatioText(Median(Row::Each(row.service, Row::Tail))),
      SignedSeconds(row.P50Difference()),
      FormatSeconds(Median(Row::Each(row.service, Row::Solve))),
      SignedSeconds(row.Overhead())};
  if (row.torch.empty()) return cells;
  cells.push_back(absl::StrFormat("%.0f", Median(Row::Each(row.torch, Row::Rate))));
  cells.push_back(FormatSeconds(Median(Row::Each(row.torch, Row::P50))));
  cells.push_back(RatioText(Median(row.RatiosOver(row.torch))));
  return cells;
}

std::string ReportText(const Flags& flags, const std::vector<Row>& rows) {
  std::vector<Table::Column> columns = {{"clients"},     {"echo/s"},       {"service/s"},
                                        {"ratio"},       {"min..max"},     {"echo p50"},
                                        {"service p50"}, {"echo p99/p50"}, {"p99/p50"},
                                        {"difference"},  {"mean solve"},   {"beyond solve"}};
  if (!rows.front().torch.empty()) {
    columns.insert(columns.end(), {{"PyTorch/s"}, {"PyTorch p50"}, {"times PyTorch"}});
  }
  Table table(columns);
  for (const Row& row : rows) table.AddRow(ReportLine(row));
  return absl::StrFormat(
      "%s of one sample, %s, solver %s; medians of %d rounds of %g s each, targets in turns\n%s",
      flags.wire() == Protocol::kInfer ? "ModelInfer" : "unary Forward", flags.model, flags.solver,
      flags.rounds, flags.seconds, table.Format());
}

nlohmann::ordered_json RowJson(const Row& row) {
  nlohmann::ordered_json json = {
      {"clients", row.clients},
      {"echo_requests_per_second", Median(Row::Each(row.echo, Row::Rate))},
      {"service_requests_per_second", Median(Row::Each(row.service, Row::Rate))},
      {"throughput_ratio", Median(row.RatiosOver(row.echo))},
      {"throughput_ratios", row.RatiosOver(row.echo)},
      {"echo_p50_seconds", Median(Row::Each(row.echo, Row::P50))},
      {"service_p50_seconds", Median(Row::Each(row.service, Row::P50))},
      {"echo_p99_over_p50", Median(Row::Each(row.echo, Row::Tail))},
      {"service_p99_over_p50", Median(Row::Each(row.service, Row::Tail))},
      {"p50_difference_seconds", row.P50Difference()},
      {"mean_solve_seconds", Median(Row::Each(row.service, Row::Solve))},
      {"beyond_solve_seconds", row.Overhead()},
      {"service_solvers", row.service.front().solvers}};
  if (row.torch.empty()) return json;
  json["torch_requests_per_second"] = Median(Row::Each(row.torch, Row::Rate));
  json["torch_p50_seconds"] = Median(Row::Each(row.torch, Row::P50));
  json["times_torch"] = Median(row.RatiosOver(row.torch));
  return json;
}

nlohmann::ordered_json ReportJson(const Flags& flags, const std::vector<Row>& rows,
                                  size_t reply_bytes) {
  nlohmann::ordered_json lines = nlohmann::ordered_json::array();
  for (const Row& row : rows) lines.push_back(RowJson(row));
  return {{"protocol", flags.protocol},
          {"model", flags.model},
          {"solver", flags.solver},
          {"rounds", flags.rounds},
          {"seconds", flags.seconds},
          {"reply_bytes", reply_bytes},
          {"rows", lines}};
}

// Serves the echo until SIGTERM, as the second process of the benchmark.
absl::Status ServeEcho(const Flags& flags) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  // Signals are blocked before gRPC starts its threads, which inherit the mask.
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const auto reply = ReadFile(flags.echo_reply, int64_t{1} << 30);
  if (!reply.ok()) return reply.status();
  const auto echo = EchoServer::Start("127.0.0.1:0", *reply);
  if (!echo.ok()) return echo.status();
  const absl::Status status =
      WriteFile(flags.echo_port_file, nlohmann::json({{"grpc_port", (*echo)->port()}}).dump());
  if (!status.ok()) return status;
  int signal = 0;
  sigwait(&signals, &signal);
  return absl::OkStatus();
}

// A temporary folder, removed with its files.
class TempFolder {
 public:
  TempFolder() { valid_ = mkdtemp(path_) != nullptr; }
  ~TempFolder() {
    for (const char* name : {"server.json", "echo.json", "torch.json", "reply.pb", "socket"})
      unlink(Path(name).c_str());
    rmdir(path_);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  bool valid() const { return valid_; }
  std::string Path(const char* name) const { return absl::StrCat(path_, "/", name); }

 private:
  char path_[32] = "/tmp/deeppcr_rpc_bench_XXXXXX";
  bool valid_ = false;
};

// Starts a program that writes its port to a file, and returns its address.
absl::StatusOr<std::string> StartProgram(const std::vector<std::string>& arguments,
                                         const std::string& port_file, absl::Duration patience,
                                         std::vector<ChildProcess>* children) {
  auto child = ChildProcess::Start(arguments);
  if (!child.ok()) return child.status();
  children->push_back(*std::move(child));
  const auto port = children->back().AwaitPort(port_file, "grpc_port", patience);
  if (!port.ok()) return port.status();
  return absl::StrCat("127.0.0.1:", *port);
}

// The servers that a run starts, and the folder for their files.
struct Processes {
  TempFolder folder;
  std::vector<ChildProcess> children;  // stopped before the folder is removed
};

using TargetOr = absl::StatusOr<std::unique_ptr<Target>>;

int MostClients(const Flags& flags) {
  return *std::max_element(flags.clients.begin(), flags.clients.end());
}

TargetOr StartTarget(const Flags& flags, const RpcWorkload& workload,
                     const std::vector<std::string>& arguments, const std::string& port_file,
                     Processes* processes) {
  const auto address = StartProgram(arguments, port_file, absl::Minutes(5), &processes->children);
  if (!address.ok()) return address.status();
  return ConnectTarget(workload, *address, MostClients(flags));
}

TargetOr StartService(const Flags& flags, const RpcWorkload& workload, Processes* processes) {
  if (!flags.server.empty()) return ConnectTarget(workload, flags.server, MostClients(flags));
  const std::string port_file = processes->folder.Path("server.json");
  // Shadow runs would compute while requests are timed.
  return StartTarget(
      flags, workload,
      {flags.server_binary, "--model_repository=" + flags.repository, "--listen=127.0.0.1:0",
       "--http_listen=127.0.0.1:0", "--socket=" + processes->folder.Path("socket"),
       "--port_file=" + port_file, "--shadow_rate=0", "--log_level=warn"},
      port_file, processes);
}

TargetOr StartEcho(const Flags& flags, const RpcWorkload& workload, const std::string& reply,
                   Processes* processes) {
  const std::string reply_file = processes->folder.Path("reply.pb");
  const std::string port_file = processes->folder.Path("echo.json");
  if (absl::Status status = WriteFile(reply_file, reply); !status.ok()) return status;
  return StartTarget(flags, workload,
                     {"/proc/self/exe", "--protocol=" + flags.protocol,
                      "--echo_reply=" + reply_file, "--echo_port_file=" + port_file},
                     port_file, processes);
}

TargetOr StartTorch(const Flags& flags, const RpcWorkload& workload, Processes* processes) {
  if (flags.torch_server.empty()) return nullptr;
  const std::string port_file = processes->folder.Path("torch.json");
  return StartTarget(flags, workload,
                     {"/usr/bin/python3", flags.torch_server,
                      absl::StrCat("--model=", flags.repository, "/", flags.model, "/1"),
                      "--port_file=" + port_file},
                     port_file, processes);
}

// Starts all targets and checks every answer.
absl::Status StartAll(const Flags& flags, const RpcWorkload& workload, Processes* processes,
                      Targets* targets, std::string* reply) {
  auto service = StartService(flags, workload, processes);
  if (!service.ok()) return service.status();
  targets->service = *std::move(service);
  absl::Status status = CheckOutputs(*targets->service, *targets->service, workload);
  if (!status.ok()) return status;
  const auto bytes = targets->service->Reply(0);
  if (!bytes.ok()) return bytes.status();
  *reply = *bytes;
  auto echo = StartEcho(flags, workload, *reply, processes);
  if (!echo.ok()) return echo.status();
  targets->echo = *std::move(echo);
  status = CheckEcho(*targets->echo, workload.inputs.rows(), *reply);
  if (!status.ok()) return status;
  auto torch = StartTorch(flags, workload, processes);
  if (!torch.ok()) return torch.status();
  targets->torch = *std::move(torch);
  if (targets->torch == nullptr) return absl::OkStatus();
  return CheckOutputs(*targets->torch, *targets->service, workload);
}

// One way to the same answers, and what one client got by it.
struct Clock {
  std::string name;
  std::unique_ptr<Target> target;
  std::vector<LoadResult> rounds = {};
};

absl::StatusOr<std::vector<Clock>> StartClocks(const Flags& flags, const RpcWorkload& workload,
                                               Processes* processes) {
  auto in_process = LoadTarget(workload, absl::StrCat(flags.repository, "/", flags.model, "/1"));
  if (!in_process.ok()) return in_process.status();
  auto tcp = StartService(flags, workload, processes);
  if (!tcp.ok()) return tcp.status();
  auto socket = ConnectTarget(workload, absl::StrCat("unix:", processes->folder.Path("socket")), 1);
  if (!socket.ok()) return socket.status();
  std::vector<Clock> clocks;
  clocks.push_back({"in process, libdeeppcr", *std::move(in_process)});
  clocks.push_back({"client, UNIX socket", *std::move(socket)});
  clocks.push_back({"client, TCP on loopback", *std::move(tcp)});
  for (const Clock& clock : clocks) {
    const absl::Status status = CheckOutputs(*clock.target, *clocks.back().target, workload);
    if (!status.ok()) return status;
  }
  return clocks;
}

std::string ClocksText(const Flags& flags, const std::vector<Clock>& clocks) {
  Table table({{"clock", Table::Align::kLeft}, {"p50"}, {"p99/p50"}, {"mean solve"}});
  for (const Clock& clock : clocks) {
    table.AddRow({clock.name, FormatSeconds(Median(Row::Each(clock.rounds, Row::P50))),
                  RatioText(Median(Row::Each(clock.rounds, Row::Tail))),
                  FormatSeconds(Median(Row::Each(clock.rounds, Row::Solve)))});
  }
  return absl::StrFormat(
      "one sample of %s, solver %s, one client; medians of %d rounds of %g s each, in turns\n%s",
      flags.model, flags.solver, flags.rounds, flags.seconds, table.Format());
}

nlohmann::ordered_json ClocksJson(const Flags& flags, const std::vector<Clock>& clocks) {
  nlohmann::ordered_json lines = nlohmann::ordered_json::array();
  for (const Clock& clock : clocks) {
    lines.push_back({{"clock", clock.name},
                     {"p50_seconds", Median(Row::Each(clock.rounds, Row::P50))},
                     {"p99_over_p50", Median(Row::Each(clock.rounds, Row::Tail))},
                     {"mean_solve_seconds", Median(Row::Each(clock.rounds, Row::Solve))}});
  }
  return {{"model", flags.model},
          {"solver", flags.solver},
          {"rounds", flags.rounds},
          {"seconds", flags.seconds},
          {"rows", lines}};
}

absl::Status RunClocks(const Flags& flags) {
  Processes processes;
  if (!processes.folder.valid()) return absl::UnknownError("cannot make a folder under /tmp");
  const auto workload = ReadWorkload(flags);
  if (!workload.ok()) return workload.status();
  auto clocks = StartClocks(flags, *workload, &processes);
  if (!clocks.ok()) return clocks.status();
  for (int round = 0; round < flags.rounds; ++round) {
    for (size_t i = 0; i < clocks->size(); ++i) {
      Clock& clock = (*clocks)[(i + static_cast<size_t>(round)) % clocks->size()];
      auto result = Measure(*clock.target, 1, flags.seconds);
      if (!result.ok()) return result.status();
      clock.rounds.push_back(*std::move(result));
    }
    absl::FPrintF(stderr, "round %d of %d\n", round + 1, flags.rounds);
  }
  if (absl::Status s = WriteFile("-", ClocksText(flags, *clocks)); !s.ok()) return s;
  if (flags.json.empty()) return absl::OkStatus();
  return WriteFile(flags.json, ClocksJson(flags, *clocks).dump(2) + "\n");
}

absl::Status RunBenchmark(const Flags& flags) {
  Processes processes;
  if (!processes.folder.valid()) return absl::UnknownError("cannot make a folder under /tmp");
  const auto workload = ReadWorkload(flags);
  if (!workload.ok()) return workload.status();
  Targets targets;
  std::string reply;
  const absl::Status status = StartAll(flags, *workload, &processes, &targets, &reply);
  if (!status.ok()) return status;
  const auto rows = MeasureAll(flags, targets);
  if (!rows.ok()) return rows.status();
  if (absl::Status s = WriteFile("-", ReportText(flags, *rows)); !s.ok()) return s;
  if (flags.json.empty()) return absl::OkStatus();
  return WriteFile(flags.json, ReportJson(flags, *rows, reply.size()).dump(2) + "\n");
}

int Main(int argc, char** argv) {
  CLI::App app("Requests of one sample against a hand-off echo of equal payload.", "rpc_bench");
  Flags flags;
  app.add_option("--protocol", flags.protocol, "forward (deeppcr.v1) or infer (KServe v2)")
      ->check(CLI::IsMember({"forward", "infer"}))
      ->capture_default_str();
  app.add_option("--server_binary", flags.server_binary, "server to start")->capture_default_str();
  app.add_option("--server", flags.server, "host:port of a running server, instead");
  app.add_option("--torch_server", flags.torch_server,
                 "also measure this Python server (torch_server.py); --protocol infer only");
  app.add_option("--model_repository", flags.repository)->capture_default_str();
  app.add_option("--model", flags.model)->capture_default_str();
  app.add_option("--in", flags.inputs, "inputs of the model")->capture_default_str();
  app.add_option("--solver", flags.solver)->capture_default_str();
  app.add_option("--clients", flags.clients, "numbers of clients")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--rounds", flags.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--seconds", flags.seconds, "per target, number of clients and round")
      ->check(CLI::Range(0.05, 600.0))
      ->capture_default_str();
  app.add_flag("--clocks", flags.clocks, "one client, in process, over a UNIX socket and over TCP");
  app.add_option("--json", flags.json, "also write the figures as JSON");
  app.add_option("--echo_reply", flags.echo_reply)->group("");
  app.add_option("--echo_port_file", flags.echo_port_file)->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::Status status = !flags.echo_reply.empty() ? ServeEcho(flags)
                              : flags.clocks            ? RunClocks(flags)
                                                        : RunBenchmark(flags);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "rpc_bench: %s\n", status.ToString());
  return 1;
}

}  // namespace
}  // namespace deeppcr::bench

int main(int argc, char** argv) { return deeppcr::bench::Main(argc, argv); }
