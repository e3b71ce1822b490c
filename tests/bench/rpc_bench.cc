// SPDX-License-Identifier: Apache-2.0
// What the service adds to gRPC: unary Forward of one sample against a server that only hands over
// to another thread and answers with as many bytes. Both run as processes of their own; rounds
// alternate between them; replies are checked before anything is timed. Prints a table, and JSON
// with --json.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/array_file.h"
#include "client/batched_forward.h"
#include "client/client.h"
#include "client/load_generator.h"
#include "client/table.h"
#include "tests/bench/child_process.h"
#include "tests/bench/echo_server.h"

namespace deeppcr {
namespace {

constexpr int kClientsPerConnection = 6;

struct Flags {
  std::string server_binary = "build/release/server/deeppcr-server";
  std::string server;  // use a running one instead
  std::string repository = "deploy/models/repository";
  std::string model = "digits-resnet";
  std::string inputs = "deploy/models/data/digits_heldout.npy";
  std::string solver = "auto";
  std::vector<int> clients = {1, 8, 32};
  int rounds = 5;
  double seconds = 2;
  std::string json;
  std::string echo_reply;  // serve the echo of this reply: how the program starts its other half
  std::string echo_port_file;
};

// One target: a name, and connections to it.
struct Target {
  std::string name;
  std::vector<std::unique_ptr<Client>> connections;
};

absl::StatusOr<Target> ConnectTarget(const std::string& name, const std::string& address,
                                     int clients) {
  Target target{name, {}};
  for (int i = 0; i * kClientsPerConnection < clients; ++i) {
    auto client = Client::Create({.server = address, .connection_index = i});
    if (!client.ok()) return client.status();
    if (absl::Status status = (*client)->Connect(absl::Seconds(10)); !status.ok()) return status;
    target.connections.push_back(*std::move(client));
  }
  return target;
}

// The requests that take turns: one held-out sample each.
std::vector<v1::ForwardRequest> BuildRequests(const Flags& flags, const Array& inputs) {
  std::vector<v1::ForwardRequest> requests(
      static_cast<size_t>(std::min<int64_t>(inputs.rows(), 64)));
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].set_model(flags.model);
    requests[i].mutable_options()->set_solver(flags.solver);
    RowsToTensor(inputs, static_cast<int64_t>(i), 1, requests[i].mutable_inputs());
  }
  return requests;
}

int64_t Largest(const Array& outputs) {
  return std::max_element(outputs.values.begin(), outputs.values.end()) - outputs.values.begin();
}

// Every request must be answered as sequential answers it: same label, outputs within 1e-3 of the
// largest.
absl::Status CheckService(const Target& service, const std::vector<v1::ForwardRequest>& requests) {
  for (size_t i = 0; i < requests.size(); ++i) {
    v1::ForwardRequest plain = requests[i];
    plain.mutable_options()->set_solver("sequential");
    const auto reply = service.connections[0]->Forward(requests[i]);
    if (!reply.ok()) return reply.status();
    const auto oracle = service.connections[0]->Forward(plain);
    if (!oracle.ok()) return oracle.status();
    const auto got = TensorToArray(reply->outputs(), "outputs");
    const auto want = TensorToArray(oracle->outputs(), "outputs");
    if (!got.ok()) return got.status();
    if (!want.ok()) return want.status();
    bool good =
        got->shape == want->shape && !got->values.empty() && Largest(*got) == Largest(*want);
    const float scale = good ? std::abs(want->values[static_cast<size_t>(Largest(*want))]) : 0;
    for (size_t k = 0; good && k < got->values.size(); ++k) {
      good = std::abs(got->values[k] - want->values[k]) <= 1e-3f * scale;
    }
    good = good && reply->report().samples_size() == 1 && reply->report().samples(0).converged();
    if (!good) return absl::InternalError(absl::StrCat("sample ", i, ": not sequential's answer"));
  }
  return absl::OkStatus();
}

absl::Status CheckEcho(const Target& echo, const std::vector<v1::ForwardRequest>& requests,
                       const std::string& expected) {
  for (const v1::ForwardRequest& request : requests) {
    const auto reply = echo.connections[0]->Forward(request);
    if (!reply.ok()) return reply.status();
    if (reply->SerializeAsString() == expected) continue;
    return absl::InternalError("the echo's reply is not the one it was given");
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadResult> Measure(const Target& target, int clients, double seconds,
                                   const std::vector<v1::ForwardRequest>& requests) {
  const SendRequest send = [&](int client, int64_t index) -> absl::StatusOr<RequestOutcome> {
    const size_t connection = static_cast<size_t>(client / kClientsPerConnection);
    const auto reply = target.connections[connection]->Forward(
        requests[static_cast<size_t>(index) % requests.size()]);
    if (!reply.ok()) return reply.status();
    const v1::SolveReport& report = reply->report();
    return RequestOutcome{.solver = report.samples_size() > 0 ? report.samples(0).solver() : "",
                          .samples = report.samples_size(),
                          .queue_seconds = report.queue_seconds(),
                          .solve_seconds = report.solve_seconds()};
  };
  const LoadOptions options{.clients = clients,
                            .duration = absl::Seconds(seconds),
                            .warmup = absl::Seconds(std::min(0.3, seconds / 4))};
  absl::StatusOr<LoadResult> result = GenerateLoad(options, send, nullptr);
  if (!result.ok() || result->errors.empty()) return result;
  const auto& [code, message] = *result->first_error.begin();
  return absl::InternalError(absl::StrCat(target.name, ": ", code, ": ", message));
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return Percentile(values, 50);
}

// Both targets at one number of clients, over all rounds.
struct Pair {
  int clients = 0;
  std::vector<LoadResult> echo = {};
  std::vector<LoadResult> service = {};

  static double Rate(const LoadResult& result) {
    return static_cast<double>(result.ok) / result.seconds;
  }
  template <typename Figure>
  std::vector<double> Each(const Figure& figure) const {
    std::vector<double> values;
    for (size_t i = 0; i < echo.size(); ++i) values.push_back(figure(echo[i], service[i]));
    return values;
  }
  std::vector<double> Ratios() const {
    return Each([](const auto& e, const auto& s) { return Rate(s) / Rate(e); });
  }
  double EchoRate() const {
    return Median(Each([](const auto& e, const auto&) { return Rate(e); }));
  }
  double ServiceRate() const {
    return Median(Each([](const auto&, const auto& s) { return Rate(s); }));
  }
  double EchoP50() const {
    return Median(Each([](const auto& e, const auto&) { return e.latency.p50; }));
  }
  double ServiceP50() const {
    return Median(Each([](const auto&, const auto& s) { return s.latency.p50; }));
  }
  double P50Difference() const {
    return Median(Each([](const auto& e, const auto& s) { return s.latency.p50 - e.latency.p50; }));
  }
  double Solve() const {
    return Median(Each([](const auto&, const auto& s) { return s.mean_solve_seconds; }));
  }
  // What is neither gRPC nor the solve: codec, queue, batching, metrics.
  double Overhead() const {
    return Median(Each([](const auto& e, const auto& s) {
      return s.latency.p50 - e.latency.p50 - s.mean_solve_seconds;
    }));
  }
};

absl::StatusOr<std::vector<Pair>> MeasureAll(const Flags& flags, const Target& echo,
                                             const Target& service,
                                             const std::vector<v1::ForwardRequest>& requests) {
  std::vector<Pair> pairs;
  for (const int clients : flags.clients) pairs.push_back({.clients = clients});
  for (int round = 0; round < flags.rounds; ++round) {
    for (Pair& pair : pairs) {
      // Who goes first changes from round to round, so that a drift of the machine favours neither.
      for (const bool first : {true, false}) {
        const bool echo_turn = first == (round % 2 == 0);
        auto result = Measure(echo_turn ? echo : service, pair.clients, flags.seconds, requests);
        if (!result.ok()) return result.status();
        (echo_turn ? pair.echo : pair.service).push_back(*std::move(result));
      }
    }
    absl::FPrintF(stderr, "round %d of %d\n", round + 1, flags.rounds);
  }
  return pairs;
}

std::string SignedSeconds(double seconds) {
  return (seconds < 0 ? "-" : "") + FormatSeconds(std::abs(seconds));
}

std::string ReportText(const Flags& flags, const std::vector<Pair>& pairs) {
  Table table({{"clients"},
               {"echo/s"},
               {"service/s"},
               {"ratio"},
               {"min..max"},
               {"echo p50"},
               {"service p50"},
               {"difference"},
               {"mean solve"},
               {"beyond solve"}});
  for (const Pair& pair : pairs) {
    const std::vector<double> ratios = pair.Ratios();
    const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    table.AddRow({absl::StrCat(pair.clients), absl::StrFormat("%.0f", pair.EchoRate()),
                  absl::StrFormat("%.0f", pair.ServiceRate()),
                  absl::StrFormat("%.2f", Median(ratios)),
                  absl::StrFormat("%.2f..%.2f", *least, *most), FormatSeconds(pair.EchoP50()),
                  FormatSeconds(pair.ServiceP50()), SignedSeconds(pair.P50Difference()),
                  FormatSeconds(pair.Solve()), SignedSeconds(pair.Overhead())});
  }
  return absl::StrFormat(
      "unary Forward of one sample, %s, solver %s; medians of %d rounds of %g s each, targets in "
      "turns\n%s",
      flags.model, flags.solver, flags.rounds, flags.seconds, table.Format());
}

nlohmann::ordered_json ReportJson(const Flags& flags, const std::vector<Pair>& pairs,
                                  size_t reply_bytes) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Pair& pair : pairs) {
    rows.push_back({{"clients", pair.clients},
                    {"echo_requests_per_second", pair.EchoRate()},
                    {"service_requests_per_second", pair.ServiceRate()},
                    {"throughput_ratio", Median(pair.Ratios())},
                    {"throughput_ratios", pair.Ratios()},
                    {"echo_p50_seconds", pair.EchoP50()},
                    {"service_p50_seconds", pair.ServiceP50()},
                    {"p50_difference_seconds", pair.P50Difference()},
                    {"mean_solve_seconds", pair.Solve()},
                    {"beyond_solve_seconds", pair.Overhead()},
                    {"service_solvers", pair.service.front().solvers}});
  }
  return {{"model", flags.model},     {"solver", flags.solver},     {"rounds", flags.rounds},
          {"seconds", flags.seconds}, {"reply_bytes", reply_bytes}, {"rows", rows}};
}

// The program's other half: the echo, until SIGTERM.
absl::Status ServeEcho(const Flags& flags) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  // Before gRPC's threads exist, so that they inherit it.
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::ifstream file(flags.echo_reply, std::ios::binary);
  v1::ForwardResponse reply;
  if (!reply.ParseFromIstream(&file)) {
    return absl::InvalidArgumentError(absl::StrCat(flags.echo_reply, ": expected a reply"));
  }
  const auto echo = bench::EchoServer::Start("127.0.0.1:0", reply);
  if (!echo.ok()) return echo.status();
  const absl::Status status =
      WriteFile(flags.echo_port_file, nlohmann::json({{"grpc_port", (*echo)->port()}}).dump());
  if (!status.ok()) return status;
  int signal = 0;
  sigwait(&signals, &signal);
  return absl::OkStatus();
}

// A folder of its own, removed with what is in it.
class TempFolder {
 public:
  TempFolder() { valid_ = mkdtemp(path_) != nullptr; }
  ~TempFolder() {
    for (const char* name : {"server.json", "echo.json", "reply.pb"}) unlink(Path(name).c_str());
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

// Starts a program that writes its port, and gives its address.
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

absl::StatusOr<Target> StartService(const Flags& flags, int clients, const TempFolder& folder,
                                    std::vector<ChildProcess>* children) {
  if (!flags.server.empty()) return ConnectTarget("service", flags.server, clients);
  const std::string port_file = folder.Path("server.json");
  // Shadow runs would compute beside what is timed.
  const auto address =
      StartProgram({flags.server_binary, "--model_repository=" + flags.repository,
                    "--listen=127.0.0.1:0", "--http_listen=127.0.0.1:0", "--port_file=" + port_file,
                    "--shadow_rate=0", "--log_level=warn"},
                   port_file, absl::Minutes(5), children);
  if (!address.ok()) return address.status();
  return ConnectTarget("service", *address, clients);
}

absl::StatusOr<Target> StartEcho(const std::string& reply, int clients, const TempFolder& folder,
                                 std::vector<ChildProcess>* children) {
  const std::string reply_file = folder.Path("reply.pb");
  const std::string port_file = folder.Path("echo.json");
  if (absl::Status status = WriteFile(reply_file, reply); !status.ok()) return status;
  const auto address = StartProgram(
      {"/proc/self/exe", "--echo_reply=" + reply_file, "--echo_port_file=" + port_file}, port_file,
      absl::Seconds(10), children);
  if (!address.ok()) return address.status();
  return ConnectTarget("echo", *address, clients);
}

absl::Status RunBenchmark(const Flags& flags) {
  const TempFolder folder;
  if (!folder.valid()) return absl::UnknownError("cannot make a folder under /tmp");
  const int most = *std::max_element(flags.clients.begin(), flags.clients.end());
  const auto inputs = ReadArray(flags.inputs, "");
  if (!inputs.ok()) return inputs.status();
  const std::vector<v1::ForwardRequest> requests = BuildRequests(flags, *inputs);
  std::vector<ChildProcess> children;
  const auto service = StartService(flags, most, folder, &children);
  if (!service.ok()) return service.status();
  if (absl::Status status = CheckService(*service, requests); !status.ok()) return status;
  const auto reply = service->connections[0]->Forward(requests.front());
  if (!reply.ok()) return reply.status();
  const std::string bytes = reply->SerializeAsString();
  const auto echo = StartEcho(bytes, most, folder, &children);
  if (!echo.ok()) return echo.status();
  if (absl::Status status = CheckEcho(*echo, requests, bytes); !status.ok()) return status;
  const auto pairs = MeasureAll(flags, *echo, *service, requests);
  if (!pairs.ok()) return pairs.status();
  if (absl::Status s = WriteFile("-", ReportText(flags, *pairs)); !s.ok()) return s;
  if (flags.json.empty()) return absl::OkStatus();
  return WriteFile(flags.json, ReportJson(flags, *pairs, bytes.size()).dump(2) + "\n");
}

int Main(int argc, char** argv) {
  CLI::App app("Forward of one sample against a hand-off echo of equal payload.", "rpc_bench");
  Flags flags;
  app.add_option("--server_binary", flags.server_binary, "server to start")->capture_default_str();
  app.add_option("--server", flags.server, "host:port of a running server, instead");
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
  app.add_option("--json", flags.json, "also write the figures as JSON");
  app.add_option("--echo_reply", flags.echo_reply)->group("");
  app.add_option("--echo_port_file", flags.echo_port_file)->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::Status status = flags.echo_reply.empty() ? RunBenchmark(flags) : ServeEcho(flags);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "rpc_bench: %s\n", status.ToString());
  return 1;
}

}  // namespace
}  // namespace deeppcr

int main(int argc, char** argv) { return deeppcr::Main(argc, argv); }
