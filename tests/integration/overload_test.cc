// SPDX-License-Identifier: Apache-2.0
// A server under three times as many requests as it can answer: accepted requests must not wait
// longer than the limit, the others are refused at once, nothing grows, nobody works less for it,
// and afterwards the server is as fast as before. The loop is open: requests leave when they are
// due, whatever has become of the earlier ones. The overload takes turns with the capacity that it
// is compared with, as the speed of a machine that others use changes by a third within seconds.
// Both are taken per processor that the generator, which runs beside the server, left to it.
// Exit status 1 if a bound is missed.
//   overload_test --server_binary FILE [--models DIR] [--seconds S] [--turns N] [--load X]
//                 [--times=false]

#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/client.h"
#include "client/latency.h"
#include "client/load_generator.h"
#include "kernels/base/control_group.h"
#include "tests/bench/child_process.h"

namespace deeppcr {
namespace {

struct Flags {
  std::string server_binary = "build/release/server/deeppcr-server";
  std::string models = "deploy/models/repository";
  std::string model = "digits-ddpm";
  int samples = 16;              // per request
  int max_queue = 1 << 20;       // samples, --max_queue of the server: more than ever come
  double max_queue_seconds = 1;  // --max_queue_seconds
  double seconds = 60;           // duration of the overload
  int turns = 1;                 // in so many parts
  double load = 3;               // multiple of the capacity
  bool times = true;             // whether bounds on times count
};

constexpr int kSaturating = 48;  // clients that keep every batch full
constexpr int kOpen = 512;       // requests that may be under way in the open loop
constexpr int kConnections = 8;
constexpr double kCapacitySeconds = 8;

// What the generator measured, and the processors that it took for itself.
struct Load : LoadResult {
  double generator_processors = 0;

  double per_second() const { return static_cast<double>(ok) / seconds; }
  // Per processor that the generator left to the server.
  double per_processor_second() const {
    return per_second() / (AvailableCores() - generator_processors);
  }
  int64_t refused() const { return requests - ok; }
};

// The processor time of this process, in seconds.
double OwnProcessorSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class Overload {
 public:
  explicit Overload(const Flags& flags) : flags_(flags) {
    request_.set_model(flags.model);
    request_.mutable_input()->set_num_samples(flags.samples);
    request_.mutable_options()->set_solver("sequential");
  }

  // Starts the server and opens connections.
  absl::Status Start() {
    const std::string folder =
        std::filesystem::temp_directory_path() / absl::StrCat("deeppcr_overload.", getpid());
    std::filesystem::create_directories(folder);
    const std::string ports = folder + "/ports";
    auto server = ChildProcess::Start(
        {flags_.server_binary, "--model_repository", flags_.models, "--listen", "127.0.0.1:0",
         "--http_listen", "127.0.0.1:0", "--port_file", ports, "--max_queue",
         absl::StrCat(flags_.max_queue), "--max_queue_seconds",
         absl::StrCat(flags_.max_queue_seconds), "--shadow_rate", "0", "--log_level", "error"});
    if (!server.ok()) return server.status();
    server_ = std::make_unique<ChildProcess>(*std::move(server));
    const auto port = server_->AwaitPort(ports, "grpc_port", absl::Seconds(120));
    if (!port.ok()) return port.status();
    const auto pid = server_->AwaitPort(ports, "pid", absl::Seconds(1));
    if (!pid.ok()) return pid.status();
    pid_ = *pid;
    std::filesystem::remove_all(folder);
    return Connect(absl::StrCat("127.0.0.1:", *port));
  }

  absl::StatusOr<Load> Saturate() {
    return Run({.clients = kSaturating,
                .duration = absl::Seconds(kCapacitySeconds),
                .warmup = absl::Seconds(2)});
  }
  absl::StatusOr<Load> Flood(double rate) {
    return Run(
        {.clients = kOpen, .rate = rate, .duration = absl::Seconds(flags_.seconds / flags_.turns)});
  }

  // The seconds that each refusal took, and that each accepted request waited, since the last call.
  std::vector<double> TakeRefusals() {
    const std::lock_guard lock(mutex_);
    return std::exchange(refusals_, {});
  }
  std::vector<double> TakeWaits() {
    const std::lock_guard lock(mutex_);
    return std::exchange(waits_, {});
  }
  int64_t ResidentBytes() const {
    std::ifstream file(absl::StrCat("/proc/", pid_, "/statm"));
    int64_t total = 0, resident = 0;
    file >> total >> resident;
    return resident * sysconf(_SC_PAGESIZE);
  }

 private:
  absl::Status Connect(const std::string& address) {
    for (int i = 0; i < kConnections; ++i) {
      auto client = Client::Create({.server = address, .connection_index = i});
      if (!client.ok()) return client.status();
      if (absl::Status status = (*client)->Connect(absl::Seconds(10)); !status.ok()) return status;
      clients_.push_back(*std::move(client));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Load> Run(const LoadOptions& options) {
    const auto start = std::chrono::steady_clock::now();
    const double own = OwnProcessorSeconds();
    auto result = GenerateLoad(
        options, [&](int client, int64_t index) { return Send(client, index); }, nullptr);
    if (!result.ok()) return result.status();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return Load{*std::move(result), (OwnProcessorSeconds() - own) / took.count()};
  }

  absl::StatusOr<RequestOutcome> Send(int client, int64_t index) {
    v1::GenerateRequest request = request_;
    request.mutable_input()->set_first_sample(static_cast<uint64_t>(index * flags_.samples));
    const auto start = std::chrono::steady_clock::now();
    const auto reply = clients_[static_cast<size_t>(client % kConnections)]->Generate(request);
    if (!reply.ok()) {
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      const std::lock_guard lock(mutex_);
      if (absl::IsResourceExhausted(reply.status())) refusals_.push_back(took.count());
      return reply.status();
    }
    const std::lock_guard lock(mutex_);
    waits_.push_back(reply->report().queue_seconds());
    return RequestOutcome{.samples = reply->report().samples_size(),
                          .queue_seconds = reply->report().queue_seconds(),
                          .solve_seconds = reply->report().solve_seconds()};
  }

  const Flags& flags_;
  v1::GenerateRequest request_;
  std::unique_ptr<ChildProcess> server_;
  int pid_ = 0;
  std::vector<std::unique_ptr<Client>> clients_;
  std::mutex mutex_;
  std::vector<double> refusals_, waits_;
};

// Watches for the largest resident size until it is stopped.
class PeakWatch {
 public:
  explicit PeakWatch(const Overload& overload)
      : thread_([this, &overload] {
          while (!done_.load()) {
            peak_ = std::max(peak_, overload.ResidentBytes());
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
          }
        }) {}
  int64_t Stop() {
    done_.store(true);
    thread_.join();
    return peak_;
  }

 private:
  std::atomic<bool> done_{false};
  int64_t peak_ = 0;
  std::thread thread_;
};

// Prints bounds, and records whether they were met.
class Verdicts {
 public:
  explicit Verdicts(bool times) : times_(times) {}

  // Adds a bound on a time or rate, which counts only if `times` is set.
  void AddTime(const std::string& what, double got, double bound, bool at_most, const char* unit) {
    const bool met = met_;
    Add(what, got, bound, at_most, unit);
    if (!times_) met_ = met;
  }
  void Add(const std::string& what, double got, double bound, bool at_most, const char* unit) {
    const bool good = at_most ? got <= bound : got >= bound;
    met_ = met_ && good;
    absl::PrintF("%-34s %10.4g %-9s wanted %s %.4g  %s\n", what, got, unit,
                 at_most ? "<=" : ">=", bound, good ? "ok" : "MISSED");
  }
  bool met() const { return met_; }

 private:
  const bool times_;
  bool met_ = true;
};

// Requests may be refused for the wait that they would have had, and for nothing else.
absl::Status CheckRefusals(const Load& load) {
  for (const auto& [code, message] : load.first_error) {
    if (code != "RESOURCE_EXHAUSTED")
      return absl::InternalError(absl::StrCat("a request ended as ", code, ": ", message));
  }
  return absl::OkStatus();
}

// One part of the overload, and the capacity in front of it and behind it.
struct Turn {
  Load before, flood, after;
  std::vector<double> waits, refusals;  // seconds, of the flood

  double goodput_over_capacity() const {
    return 2 * flood.per_processor_second() /
           (before.per_processor_second() + after.per_processor_second());
  }
  double batch_seconds() const {
    return (before.mean_solve_seconds + after.mean_solve_seconds) / 2;
  }
};

template <class Figure>
double MedianOf(const std::vector<Turn>& turns, const Figure& figure) {
  std::vector<double> values;
  for (const Turn& turn : turns) values.push_back(figure(turn));
  return Summarize(values).p50;
}

absl::StatusOr<std::vector<Turn>> TakeTurns(const Flags& flags, const Load& start,
                                            Overload* overload) {
  std::vector<Turn> turns;
  Load before = start;
  for (int i = 0; i < flags.turns; ++i) {
    overload->TakeWaits();
    overload->TakeRefusals();
    const auto flood = overload->Flood(flags.load * before.per_second());
    if (!flood.ok()) return flood.status();
    if (absl::Status status = CheckRefusals(*flood); !status.ok()) return status;
    std::vector<double> waits = overload->TakeWaits(), refusals = overload->TakeRefusals();
    const auto after = overload->Saturate();
    if (!after.ok()) return after.status();
    if (absl::Status status = CheckRefusals(*after); !status.ok()) return status;
    turns.push_back({before, *flood, *after, std::move(waits), std::move(refusals)});
    before = *after;
    const Turn& turn = turns.back();
    absl::FPrintF(stderr,
                  "%d requests in %.1f s: %d answered, %d refused; the "
                  "generator took %.3f processors; %.3f of the capacity\n",
                  flood->requests, flood->seconds, flood->ok, flood->refused(),
                  flood->generator_processors, turn.goodput_over_capacity());
  }
  return turns;
}

absl::StatusOr<bool> Measure(const Flags& flags) {
  Overload overload(flags);
  if (absl::Status status = overload.Start(); !status.ok()) return status;
  const auto start = overload.Saturate();
  if (!start.ok()) return start.status();
  if (absl::Status status = CheckRefusals(*start); !status.ok()) return status;
  absl::FPrintF(stderr, "capacity %.1f requests/s of %d samples, a batch takes %.1f ms\n",
                start->per_second(), flags.samples, 1e3 * start->mean_solve_seconds);
  // The first flood fills the queue, so that its memory is in place before the measurement.
  if (const auto fill = overload.Flood(flags.load * start->per_second()); !fill.ok())
    return fill.status();
  const int64_t resident = overload.ResidentBytes();

  PeakWatch watch(overload);
  const auto turns = TakeTurns(flags, *start, &overload);
  const int64_t peak = watch.Stop();
  if (!turns.ok()) return turns.status();
  std::vector<double> waits, refusals;
  int64_t refused = 0, refused_at_capacity = start->refused();
  for (const Turn& turn : *turns) {
    waits.insert(waits.end(), turn.waits.begin(), turn.waits.end());
    refusals.insert(refusals.end(), turn.refusals.begin(), turn.refusals.end());
    refused += turn.flood.refused();
    refused_at_capacity += turn.after.refused();
  }

  Verdicts verdicts(flags.times);
  verdicts.AddTime("p99 of waits in the queue", Summarize(waits).p99, flags.max_queue_seconds, true,
                   "s");
  verdicts.AddTime("p99 of accepted requests",
                   MedianOf(*turns, [](const Turn& turn) { return turn.flood.latency.p99; }),
                   flags.max_queue_seconds +
                       3 * MedianOf(*turns, [](const Turn& turn) { return turn.batch_seconds(); }),
                   true, "s");
  verdicts.AddTime("goodput over capacity",
                   MedianOf(*turns, [](const Turn& turn) { return turn.goodput_over_capacity(); }),
                   0.95, false, "");
  verdicts.AddTime("p99 of refusals", Summarize(refusals).p99, 0.05, true, "s");
  verdicts.Add("resident memory, peak over start",
               static_cast<double>(peak) / static_cast<double>(resident), 1.05, true, "");
  verdicts.AddTime(
      "throughput afterwards over before",
      MedianOf(*turns,
               [](const Turn& turn) { return turn.after.per_second() / turn.before.per_second(); }),
      0.9, false, "");
  // Clients that wait for their replies meet the limit only where the machine has slowed down.
  verdicts.AddTime("requests refused at capacity", static_cast<double>(refused_at_capacity), 0,
                   true, "");
  // A run without refusals has tested nothing.
  verdicts.Add("requests refused", static_cast<double>(refused), 1, false, "");
  return verdicts.met();
}

int Main(int argc, char** argv) {
  CLI::App app("A server under several times the load that it can answer.", "overload_test");
  Flags flags;
  app.add_option("--server_binary", flags.server_binary)->capture_default_str();
  app.add_option("--models", flags.models)->capture_default_str();
  app.add_option("--seconds", flags.seconds, "of overload, twice")->capture_default_str();
  app.add_option("--turns", flags.turns,
                 "parts of the overload, between which capacity is measured")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--load", flags.load, "times the capacity")->capture_default_str();
  app.add_option("--max_queue_seconds", flags.max_queue_seconds, "the server's")
      ->capture_default_str();
  app.add_option("--times", flags.times, "bounds on times and rates count")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  // A debugging aid that distributions leave on: the generator takes the processors of the server.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const auto met = Measure(flags);
  if (met.ok()) return *met ? 0 : 1;
  absl::FPrintF(stderr, "overload_test: %s\n", met.status().ToString());
  return 1;
}

}  // namespace
}  // namespace deeppcr

int main(int argc, char** argv) { return deeppcr::Main(argc, argv); }
