// SPDX-License-Identifier: Apache-2.0
// deeppcr-server: flags, signals, wiring. No logic.
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "google/protobuf/stubs/logging.h"
#include "kernels/base/control_group.h"
#include "kernels/base/strings.h"
#include "server/check.h"
#include "server/config.h"
#include "server/observe/log.h"
#include "server/server.h"

namespace {

using deeppcr::CommandLine;
using deeppcr::LogLevel;

constexpr int kExitFailed = 1;
constexpr int kExitBadFlags = 2;

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "deeppcr-server: %s\n", std::string(status.message()).c_str());
  return code;
}

sigset_t SignalSet(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : signals) sigaddset(&set, number);
  return set;
}

// Blocks the signals that the server handles, in this thread and, by inheritance, in all others, so
// that one place waits for them.
void BlockSignals() {
  signal(SIGPIPE, SIG_IGN);
  const sigset_t all = SignalSet({SIGTERM, SIGINT, SIGHUP});
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

// Waits for a signal that means stop and returns it; on SIGHUP reads the tokens again
// at once.
int AwaitStop(deeppcr::Server& server) {
  const sigset_t all = SignalSet({SIGTERM, SIGINT, SIGHUP});
  int number = 0;
  while (sigwait(&all, &number) == 0 && number == SIGHUP) server.ReloadTokens();
  return number;
}

// Stops this process once standard input ends. A thread of its own waits in read() for as long as
// the process lives.
void StopWithStdin() {
  // Where there is none, its number may be that of a descriptor which a library has opened: one of
  // no kind of file.
  struct stat about = {};
  if (fstat(STDIN_FILENO, &about) != 0 || (about.st_mode & S_IFMT) == 0) {
    kill(getpid(), SIGTERM);
    return;
  }
  std::thread([] {
    char ignored[256];
    pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    for (ssize_t got = 1; got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN));) {
      poll(&input, 1, -1);  // also where others have made it one that does not wait
      got = read(STDIN_FILENO, ignored, sizeof ignored);
    }
    kill(getpid(), SIGTERM);
  }).detach();
}

// Takes as many descriptors as may be had: the limits on connections are meant to act first.
void RaiseDescriptors() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Makes every block of 1 MiB and more a mapping of its own, which its free gives back. By default
// each such free raises that bound, up to 32 MiB, and what an unloaded model held stays at the end
// of some thread's heap, where malloc_trim does not look.
void MapLargeBlocks() {
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 4 << 20);
}

deeppcr::Environment OurVariables() {
  deeppcr::Environment variables;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view text = *each;
    const size_t equals = text.find('=');
    if (!text.starts_with(deeppcr::kVariablePrefix) || equals == text.npos) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

bool AnotherSignal() {
  const sigset_t stop = SignalSet({SIGTERM, SIGINT});
  const timespec no_time = {};
  return sigtimedwait(&stop, nullptr, &no_time) > 0;
}

deeppcr::PlanMode PlanModeOf(const std::string& name) {
  if (name == "measure") return deeppcr::PlanMode::kMeasure;
  return name == "require" ? deeppcr::PlanMode::kRequire : deeppcr::PlanMode::kPrefer;
}

deeppcr::EngineOptions EngineOptionsOf(const deeppcr::ServerConfig& config) {
  deeppcr::EngineOptions options;
  options.backend = config.backend;
  options.num_threads = static_cast<int>(config.threads);
  // The workers, a handler that computes a request inline, and a comparison.
  options.max_concurrent_runs = deeppcr::ResolvedWorkers(config) + 2;
  options.plan_cache_dir = config.plan_cache_dir;
  options.plan_mode = PlanModeOf(config.plan);
  options.max_model_bytes = config.max_model_bytes;
  options.max_workspace_bytes = config.max_workspace_bytes;
  options.max_unplanned_bytes = config.max_unplanned_bytes;
  // What is left of the memory that this process may have.
  if (const std::optional<int64_t> limit = deeppcr::ReadControlGroup().bytes)
    options.max_memory_bytes = *limit - deeppcr::BudgetBytes(config);
  options.gradients = config.gradients;
  return options;
}

int Serve(const deeppcr::ServerConfig& config) {
  BlockSignals();
  if (config.stop_with_stdin) StopWithStdin();
  RaiseDescriptors();
  MapLargeBlocks();
  // Distributions leave this debugging aid on; it costs every call of gRPC some per cent.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // Protobuf would write a line of its own for every malformed request.
  google::protobuf::SetLogHandler(nullptr);
  deeppcr::Logger logger(
      config.log_format == "json" ? deeppcr::LogFormat::kJson : deeppcr::LogFormat::kText,
      deeppcr::ParseLogLevel(config.log_level));
  // A device that has failed answers nobody again: stop as if told to, and say so in the exit code.
  std::atomic<bool> device_failed{false};
  deeppcr::EngineOptions options = EngineOptionsOf(config);
  options.device_failed = [&](const absl::Status& status) {
    if (device_failed.exchange(true)) return;
    logger.Log(LogLevel::kError, "device failed", {{"error", deeppcr::ToStd(status.message())}});
    kill(getpid(), SIGTERM);
  };
  auto engine = deeppcr::Engine::Create(options);
  if (!engine.ok()) return Fail(engine.status(), kExitFailed);
  std::string settings = deeppcr::ConfigText(config);
  std::replace(settings.begin(), settings.end(), '\n', ' ');
  logger.Log(LogLevel::kInfo, "configuration",
             {{"flags", settings},
              {"cores", int64_t{deeppcr::AvailableCores()}},
              {"workers", int64_t{deeppcr::ResolvedWorkers(config)}},
              {"memory_limit", deeppcr::ReadControlGroup().bytes.value_or(-1)}});
  logger.Log(LogLevel::kInfo, "backend",
             {{"backend", (*engine)->backend()},
              {"device", (*engine)->device()},
              {"reason", (*engine)->backend_reason()}});
  auto server = deeppcr::Server::Start(config, *std::move(engine), logger);
  if (!server.ok()) return Fail(server.status(), kExitFailed);
  logger.Log(LogLevel::kInfo, "listening",
             {{"version", DEEPPCR_VERSION},
              {"listen", config.listen},
              {"grpc_port", int64_t{(*server)->grpc_port()}},
              {"http_port", int64_t{(*server)->http_port()}}});
  const int signal_number = AwaitStop(**server);
  logger.Log(LogLevel::kInfo, "draining", {{"signal", int64_t{signal_number}}});
  bool hurry = false;  // one more signal ends every wait from then on
  const auto result = (*server)->Drain([&] { return hurry = hurry || AnotherSignal(); });
  const bool clean = result == deeppcr::Server::DrainResult::kClean;
  const bool stuck = result == deeppcr::Server::DrainResult::kStuck;
  // The server's ports are free before the log says that it has stopped.
  if (!stuck) server->reset();
  logger.Log(LogLevel::kInfo, "stopped", {{"clean", int64_t{clean}}});
  // A call that ignores its cancellation would hang the destructors too.
  if (stuck) {
    logger.Flush();
    std::_Exit(kExitFailed);
  }
  return clean && !device_failed ? 0 : kExitFailed;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  auto line = deeppcr::ParseCommandLine(arguments, OurVariables());
  if (!line.ok()) return Fail(line.status(), kExitBadFlags);
  const absl::Status fits = deeppcr::FitToMemory(deeppcr::ReadControlGroup().bytes, line->config);
  switch (line->action) {
    case CommandLine::Action::kHelp:
      std::fputs(deeppcr::HelpText("deeppcr-server").c_str(), stdout);
      return 0;
    case CommandLine::Action::kVersion:
      std::printf("deeppcr-server %s\n", DEEPPCR_VERSION);
      return 0;
    case CommandLine::Action::kProbe: {
      const absl::Status status = deeppcr::Probe(line->config.probe);
      return status.ok() ? 0 : Fail(status, kExitFailed);
    }
    case CommandLine::Action::kCheck:
      return deeppcr::CheckModels(line->config, stdout) ? 0 : kExitFailed;
    case CommandLine::Action::kPrintConfig:
      std::fputs(deeppcr::ConfigText(line->config).c_str(), stdout);
      return fits.ok() ? 0 : Fail(fits, kExitBadFlags);
    case CommandLine::Action::kServe:
      return fits.ok() ? Serve(line->config) : Fail(fits, kExitBadFlags);
  }
  return kExitFailed;
}
