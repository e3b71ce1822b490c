// SPDX-License-Identifier: Apache-2.0
#include "server/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "kernels/model/config.h"
#include "kernels/model/denoiser_tensors.h"
#include "kernels/model/scheduler_config.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<CommandLine> Parse(std::vector<std::string> arguments,
                                  const Environment& variables = {}) {
  return ParseCommandLine(arguments, variables);
}

TEST(ConfigTest, DefaultsAreThoseOfTheStruct) {
  const auto line = Parse({"--model_repository=/models"}).value();

  EXPECT_EQ(line.action, CommandLine::Action::kServe);
  EXPECT_EQ(line.config.model_repository, "/models");
  EXPECT_EQ(line.config.listen, "127.0.0.1:8001");
  EXPECT_EQ(line.config.max_message_bytes, 16 << 20);
  EXPECT_EQ(line.config.max_grpc_memory_bytes, -1);
  EXPECT_EQ(line.config.admin, "auto");
}

TEST(ConfigTest, TakesValuesInEveryForm) {
  const auto line =
      Parse({"--model-repository", "/m", "--max_queue=7", "--allow_empty", "--reflection=false",
             "--max_message_bytes=2MiB", "--shadow_rate", "0.5"});

  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->config.model_repository, "/m");
  EXPECT_EQ(line->config.max_queue, 7);
  EXPECT_TRUE(line->config.allow_empty);
  EXPECT_FALSE(line->config.reflection);
  EXPECT_EQ(line->config.max_message_bytes, 2 << 20);
  EXPECT_EQ(line->config.shadow_rate, 0.5);
}

TEST(ConfigTest, EnvironmentIsBetweenDefaultAndFlag) {
  const auto line = Parse(
      {"--max_queue=5"},
      {{"DEEPPCR_MODEL_REPOSITORY", "/env"}, {"DEEPPCR_MAX_QUEUE", "6"}, {"DEEPPCR_WORKERS", "3"}});

  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->config.model_repository, "/env");
  EXPECT_EQ(line->config.max_queue, 5);
  EXPECT_EQ(ResolvedWorkers(line->config), 3);
}

TEST(ConfigTest, BadEnvironmentNamesTheVariable) {
  ExpectError(Parse({"--model_repository=/m"}, {{"DEEPPCR_WORKERS", "many"}}),
              absl::StatusCode::kInvalidArgument, "DEEPPCR_WORKERS: --workers: expected");
}

TEST(ConfigTest, ActionsNeedNoRepository) {
  EXPECT_EQ(Parse({"--help"})->action, CommandLine::Action::kHelp);
  EXPECT_EQ(Parse({"--version"})->action, CommandLine::Action::kVersion);
  const auto probe = Parse({"--probe=localhost:8001"}).value();
  EXPECT_EQ(probe.action, CommandLine::Action::kProbe);
}

TEST(ConfigTest, HelpForgivesNoBadFlag) {
  ExpectError(Parse({"--bogus", "--help"}), absl::StatusCode::kInvalidArgument, "unknown flag");
  ExpectError(Parse({"--version", "--max_queue=x"}), absl::StatusCode::kInvalidArgument,
              "--max_queue: expected");
}

TEST(ConfigTest, RepositoryIsRequired) {
  ExpectError(Parse({}), absl::StatusCode::kInvalidArgument, "--model_repository: expected");
}

class RefusedFlagTest : public ::testing::TestWithParam<RefusedCase> {};

TEST_P(RefusedFlagTest, NamesTheFlagAndTheValue) {
  ExpectError(Parse({"--model_repository=/m", GetParam().input}), GetParam().code,
              GetParam().message_part);
}

INSTANTIATE_TEST_SUITE_P(
    Flags, RefusedFlagTest,
    ::testing::Values(
        RefusedCase{"Unknown", "--max_que=3", "unknown flag \"--max_que=3\""},
        RefusedCase{"Positional", "models", "unexpected argument \"models\""},
        RefusedCase{"SingleDash", "-v", "unexpected argument \"-v\""},
        RefusedCase{"BareDashes", "--", "unexpected argument"},
        RefusedCase{"Twice", "--model-repository=/n", "--model_repository is given twice"},
        RefusedCase{"MissingValue", "--backend", "--backend: expected"},
        RefusedCase{"Backend", "--backend=tpu",
                    "--backend: expected one of auto, cuda, cpu, reference"},
        RefusedCase{"ListenWithoutPort", "--listen=localhost", "--listen: expected host:port"},
        RefusedCase{"ListenPort", "--listen=localhost:65536", "--listen: expected host:port"},
        RefusedCase{"ListenPortSign", "--listen=localhost:+1", "--listen: expected host:port"},
        RefusedCase{"ListenHost", "--listen=:8001", "--listen: expected host:port"},
        RefusedCase{"ListenV6", "--listen=::1:8001", "--listen: expected host:port"},
        RefusedCase{"HttpListen", "--http_listen=x", "--http_listen: expected host:port"},
        RefusedCase{"Probe", "--probe=x", "--probe: expected host:port"},
        RefusedCase{"Threads", "--threads=-1", "--threads: expected threads in [0, 1024]"},
        RefusedCase{"ThreadsText", "--threads=two", "got \"two\""},
        RefusedCase{"Workers", "--workers=257", "--workers: expected"},
        RefusedCase{"Versions", "--versions=newest", "--versions: expected latest"},
        RefusedCase{"MaxInstances", "--max_instances=-1", "--max_instances: expected batches"},
        RefusedCase{"BusyPoll", "--busy_poll_seconds=2",
                    "--busy_poll_seconds: expected -1 | seconds in [0, 1], got \"2\""},
        RefusedCase{"BusyPollNaN", "--busy_poll_seconds=nan", "--busy_poll_seconds: expected -1"},
        RefusedCase{"BusyPollBelowZero", "--busy_poll_seconds=-0.5",
                    "--busy_poll_seconds: expected -1 | seconds in [0, 1], got \"-0.5\""},
        RefusedCase{"BatchDelay", "--batch_delay_seconds=2", "--batch_delay_seconds: expected"},
        RefusedCase{"Plan", "--plan=guess",
                    "--plan: expected one of measure, prefer, require, got \"guess\""},
        RefusedCase{"PlanCacheDir", "--plan_cache_dir=", "--plan_cache_dir: expected directory"},
        RefusedCase{"PortFile", "--port_file=", "--port_file: expected file"},
        RefusedCase{"Socket", "--socket=", "--socket: expected file"},
        RefusedCase{"TlsCert", "--tls_cert=", "--tls_cert: expected file"},
        RefusedCase{"TlsCertAlone", "--tls_cert=a", "expected both or none"},
        RefusedCase{"TlsKey", "--tls_key=", "--tls_key: expected file"},
        RefusedCase{"TlsKeyAlone", "--tls_key=a", "expected both or none"},
        RefusedCase{"TlsClientCa", "--tls_client_ca=", "--tls_client_ca: expected file"},
        RefusedCase{"TlsClientCaAlone", "--tls_client_ca=a",
                    "--tls_client_ca: expected --tls_cert"},
        RefusedCase{"TokenFile", "--token_file=", "--token_file: expected file"},
        RefusedCase{"ProbeSocket", "--probe=unix:", "or unix:file"},
        RefusedCase{"ProbeHttp", "--probe=http://x", "--probe: expected host:port or http://"},
        RefusedCase{"MaxQueue", "--max_queue=0", "--max_queue: expected samples in [1,"},
        RefusedCase{"MaxQueueBytes", "--max_queue_bytes=1", "--max_queue_bytes: expected bytes"},
        RefusedCase{"MaxMessageBytes", "--max_message_bytes=2048MiB",
                    "--max_message_bytes: expected bytes"},
        RefusedCase{"GrpcMemory", "--max_grpc_memory_bytes=1",
                    "--max_grpc_memory_bytes: expected bytes"},
        RefusedCase{"BytesOverflow", "--max_message_bytes=9223372036854775807GiB",
                    "--max_message_bytes: expected bytes"},
        RefusedCase{"Streams", "--max_concurrent_streams=0", "--max_concurrent_streams: expected"},
        RefusedCase{"ModelBytes", "--max_model_bytes=x", "--max_model_bytes: expected"},
        RefusedCase{"WorkspaceBytes", "--max_workspace_bytes=0", "--max_workspace_bytes: expected"},
        RefusedCase{"UnplannedBytes", "--max_unplanned_bytes=-2",
                    "--max_unplanned_bytes: expected bytes"},
        RefusedCase{"Gradients", "--gradients=on", "--gradients: expected true or false"},
        RefusedCase{"TrajectoryBytes", "--max_trajectory_bytes=-1",
                    "--max_trajectory_bytes: expected bytes in [0,"},
        RefusedCase{"TrajectorySeconds", "--trajectory_seconds=0",
                    "--trajectory_seconds: expected seconds in [0.1,"},
        RefusedCase{"Connections", "--max_connections=0",
                    "--max_connections: expected connections in [1,"},
        RefusedCase{"ListenSocket", "--listen=unix:", "--listen: expected host:port"},
        RefusedCase{"Keepalive", "--keepalive_seconds=0", "--keepalive_seconds: expected"},
        RefusedCase{"KeepaliveTimeout", "--keepalive_timeout_seconds=no",
                    "--keepalive_timeout_seconds: expected"},
        RefusedCase{"PingInterval", "--min_ping_interval_seconds=0",
                    "--min_ping_interval_seconds: expected"},
        RefusedCase{"ConnectionAge", "--max_connection_age_seconds=-1",
                    "--max_connection_age_seconds: expected"},
        RefusedCase{"ConnectionGrace", "--max_connection_age_grace_seconds=1e9",
                    "--max_connection_age_grace_seconds: expected"},
        RefusedCase{"ConnectionIdle", "--max_connection_idle_seconds=nan",
                    "--max_connection_idle_seconds: expected"},
        RefusedCase{"AllowEmpty", "--allow_empty=1", "--allow_empty: expected true or false"},
        RefusedCase{"AllowFailed", "--allow_failed=no", "--allow_failed: expected true or false"},
        RefusedCase{"Admin", "--admin=yes", "--admin: expected one of auto, proved"},
        RefusedCase{"AdminListen", "--admin_listen=127.0.0.1:1",
                    "--admin_listen: expected unix:file"},
        RefusedCase{"AdminListenEmpty",
                    "--admin_listen=unix:", "--admin_listen: expected unix:file"},
        RefusedCase{"AdminNames", "--admin_names=a,,b", "--admin_names: expected names, by commas"},
        RefusedCase{"AdminNamesAlone", "--admin_names=a",
                    "--admin_names: expected --tls_client_ca"},
        RefusedCase{"Reflection", "--reflection=1", "--reflection: expected true or false"},
        RefusedCase{"Drain", "--drain_seconds=-1", "--drain_seconds: expected"},
        RefusedCase{"ReplySeconds", "--reply_seconds=0", "--reply_seconds: expected"},
        RefusedCase{"ModelControl", "--model_control=none",
                    "--model_control: expected one of explicit, poll"},
        RefusedCase{"PollSeconds", "--poll_seconds=0.5", "--poll_seconds: expected seconds in [1,"},
        RefusedCase{"Compare", "--compare=yes", "--compare: expected one of infer, admin, off"},
        RefusedCase{"RestListen", "--rest_listen=8000", "--rest_listen: expected host:port"},
        RefusedCase{"AccessLogRate", "--access_log_rate=2", "--access_log_rate: expected share"},
        RefusedCase{"SlowSeconds", "--slow_seconds=x", "--slow_seconds: expected seconds"},
        RefusedCase{"ModelDir", "--model_dir=", "--model_dir: expected directory"},
        RefusedCase{"ModelDirToo", "--model_dir=d", "--model_dir: expected no --model_repository"},
        RefusedCase{"ModelName", "--model_name=a/b", "--model_name: expected 1 to 128 letters"},
        RefusedCase{"ModelNameAlone", "--model_name=a",
                    "--model_dir: expected beside --model_name, got none"},
        RefusedCase{"MaxQueueSeconds", "--max_queue_seconds=-1",
                    "--max_queue_seconds: expected seconds in [0, 86400], got"},
        RefusedCase{"CompareSeconds", "--compare_seconds=0", "--compare_seconds: expected"},
        RefusedCase{"PrintConfig", "--print_config=1", "--print_config: expected true or false"},
        RefusedCase{"Stuck", "--stuck_seconds=-1", "--stuck_seconds: expected seconds in [0,"},
        RefusedCase{"StopWithStdin", "--stop_with_stdin=1",
                    "--stop_with_stdin: expected true or false"},
        RefusedCase{"DrainPause", "--drain_pause_seconds=1e9", "--drain_pause_seconds: expected"},
        RefusedCase{"ShadowRate", "--shadow_rate=1.5", "--shadow_rate: expected share in [0, 1]"},
        RefusedCase{"ShadowRateNan", "--shadow_rate=nan", "--shadow_rate: expected share"},
        RefusedCase{"TraceFile", "--trace_file=", "--trace_file: expected file"},
        RefusedCase{"TraceRate", "--trace_rate=2", "--trace_rate: expected share in [0, 1]"},
        RefusedCase{"Collector", "--otlp_traces_endpoint=",
                    "--otlp_traces_endpoint: expected http://HOST:PORT/PATH"},
        RefusedCase{"CollectorPassword", "--otlp_traces_endpoint=http://u:secret@collector/",
                    "without user, password and query; what came may be secret"},
        RefusedCase{"CollectorQuery", "--otlp_traces_endpoint=http://collector/?key=secret",
                    "without user, password and query"},
        RefusedCase{"TraceBytes", "--max_trace_bytes=1", "--max_trace_bytes: expected bytes"},
        RefusedCase{"LogFormat", "--log_format=xml", "--log_format: expected one of json, text"},
        RefusedCase{"LogLevel", "--log_level=loud", "--log_level: expected one of debug"},
        RefusedCase{"Check", "--check=", "--check: expected folder"},
        RefusedCase{"Verbose", "--verbose=1", "--verbose: expected true or false"}),
    CaseName);

// gRPC's credentials for this machine, which look at headers, know no other loopback addresses.
TEST(ConfigTest, TokensInPlainTextNeedAnAddressThatIsKnownAsLocal) {
  for (const char* listen : {"127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/tmp/x"})
    EXPECT_TRUE(
        Parse({"--model_repository=/m", "--token_file=t", std::string("--listen=") + listen}).ok())
        << listen;
  ExpectError(Parse({"--model_repository=/m", "--token_file=t", "--listen=127.0.0.2:1"}),
              absl::StatusCode::kInvalidArgument, "--token_file: expected --listen at 127.0.0.1");
}

TEST(ConfigTest, VariablesThatNobodyReadsAreErrors) {
  const std::vector<std::string> flags = {"--model_repository=/m"};
  for (const char* variable : {"DEEPPCR_MAX_QUEU", "DEEPPCR_", "DEEPPCR_max_queue"})
    ExpectError(Parse(flags, {{variable, "7"}}), absl::StatusCode::kInvalidArgument,
                std::string(variable) + ": no flag has this name");
  for (const char* variable :
       {"DEEPPCR_CPU_ISA", "DEEPPCR_TOKEN", "DEEPPCR_SERVICE_HOST", "DEEPPCR_PORT",
        "DEEPPCR_PORT_8001_TCP", "DEEPPCR_CANARY_SERVICE_HOST", "DEEPPCR_CANARY_PORT_8001_TCP_ADDR",
        "DEEPPCR_CANARY_PORT", "DEEPPCR_CANARY_SERVICE_PORT_GRPC", "DEEPPCR_TEST_CYCLES",
        "DEEPPCR_SERVER_BINARY", "OTHER_MAX_QUEU"})
    EXPECT_TRUE(Parse(flags, {{variable, "7"}}).ok()) << variable;
}

TEST(ConfigTest, WhatIsPrintedGivesTheSameSettings) {
  const std::vector<std::string> flags = {
      "--model_repository=/m",  "--versions=latest:2,net=1+3",  "--listen=unix:/tmp/a",
      "--admin_listen=unix:/b", "--max_queue_bytes=2MiB",       "--shadow_rate=0.25",
      "--reflection=false",     "--stuck_seconds=123.45678901", "--plan=measure"};
  const std::string text = ConfigText(Parse(flags)->config);

  std::vector<std::string> printed;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) printed.push_back(line);
  const auto again = Parse(printed);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ConfigText(again->config), text);
  EXPECT_THAT(printed, ::testing::IsSupersetOf(
                           {"--versions=latest:2,net=1+3", "--listen=unix:/tmp/a",
                            "--admin_listen=unix:/b", "--max_queue_bytes=2097152",
                            "--stuck_seconds=123.45678901", "--reflection=false", "--workers=0"}));
  std::vector<std::string> asked = flags;
  asked.emplace_back("--print_config");
  EXPECT_EQ(Parse(asked)->action, CommandLine::Action::kPrintConfig);
  EXPECT_EQ(ConfigText(Parse(asked)->config), text) << "what was printed may be run";
}

TEST(ConfigTest, BudgetsFollowFromTheMemoryThatThereIs) {
  constexpr int64_t kMiB = 1 << 20;
  const auto fitted = [](std::optional<int64_t> limit) {
    ServerConfig config;
    EXPECT_TRUE(FitToMemory(limit, config).ok());
    EXPECT_EQ(config.max_queue_bytes, config.max_grpc_memory_bytes);
    return config.max_queue_bytes;
  };
  EXPECT_EQ(fitted(std::nullopt), 512 * kMiB);
  EXPECT_EQ(fitted(64 * 1024 * kMiB), 512 * kMiB);
  EXPECT_EQ(fitted(1024 * kMiB), 128 * kMiB);

  ServerConfig wide;
  wide.gradients = true;
  wide.max_queue_bytes = 900 * kMiB;
  const absl::Status status = FitToMemory(1024 * kMiB, wide);
  ExpectError(status, absl::StatusCode::kInvalidArgument,
              "less than the 1073741824 bytes of memory that this process may have, together with "
              "what follows, got 943718400 + 134217728 (--max_grpc_memory_bytes) + 67108864 (");
  EXPECT_TRUE(FitToMemory(std::nullopt, wide).ok());

  ServerConfig over_http;
  over_http.max_queue_bytes = 720 * kMiB;
  EXPECT_TRUE(FitToMemory(1024 * kMiB, over_http).ok());
  over_http.rest_listen = "127.0.0.1:8000";
  ExpectError(FitToMemory(1024 * kMiB, over_http), absl::StatusCode::kInvalidArgument,
              "got 754974720 + 134217728 (--max_grpc_memory_bytes) + 0 (--max_trajectory_bytes, "
              "with --gradients) + 188743680 (bodies over HTTP");
}

TEST(ConfigTest, EveryFlagHasARefusedValueAbove) {
  // model_repository accepts any path; another test covers its absence.
  constexpr size_t kFlags = 68;
  EXPECT_EQ(FlagSpecs().size(), kFlags) << "a new flag needs its bad values in RefusedFlagTest";
}

TEST(ConfigTest, HelpShowsEveryFlagWithUnitAndDefault) {
  const std::string help = HelpText("deeppcr-server");

  for (const FlagSpec& spec : FlagSpecs()) {
    EXPECT_THAT(help, HasSubstr("--" + spec.name + "  (" + spec.unit));
    EXPECT_THAT(help, HasSubstr(spec.help));
  }
  EXPECT_THAT(help, HasSubstr("default 127.0.0.1:8001"));
}

TEST(ParseHostPortTest, KeepsBracketsOfV6) {
  const auto address = ParseHostPort("[::1]:80").value();

  EXPECT_EQ(address.host, "[::1]");
  EXPECT_EQ(address.port, 80);
}

// The rows of the table in a section of the README, "| `name` | ... |", by name.
std::map<std::string, std::string> ReadmeRows(const std::string& heading) {
  std::ifstream file(DEEPPCR_SOURCE_DIR "/server/README.md");
  std::map<std::string, std::string> rows;
  bool within = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) within = line == "## " + heading;
    if (!within || !line.starts_with("| `")) continue;
    const std::string name = line.substr(3, line.find('`', 3) - 3);
    EXPECT_TRUE(rows.emplace(name, line).second) << name << " is there twice";
  }
  return rows;
}

// Expects the rows to be those of the table of keys; scope_of(key) is the last cell but one.
template <typename Keys, typename ScopeOf>
void ExpectTableOf(const Keys& keys, ScopeOf scope_of, const std::string& heading) {
  std::map<std::string, std::string> rows = ReadmeRows(heading);

  EXPECT_EQ(rows.size(), keys.size());
  for (const auto& key : keys) {
    std::string expected = "| `" + std::string(key.name) + "` |";
    for (const std::string_view cell : {key.type, key.default_value, scope_of(key), key.meaning}) {
      expected += " " + std::string(cell) + " |";
    }
    EXPECT_EQ(rows[std::string(key.name)], expected);
  }
}

TEST(ReadmeTest, TableOfFlagsIsThatOfTheCode) {
  std::map<std::string, std::string> rows = ReadmeRows("Flags");

  EXPECT_EQ(rows.size(), FlagSpecs().size());
  for (const FlagSpec& spec : FlagSpecs()) {
    const std::string expected = "| `--" + spec.name + "` | " + spec.unit + " | " +
                                 (spec.default_value.empty() ? "" : "`" + spec.default_value + "`");
    std::string row = rows["--" + spec.name];
    // A table escapes a bar within a cell.
    for (size_t at; (at = row.find("\\|")) != std::string::npos;) row.erase(at, 1);
    EXPECT_THAT(row, ::testing::StartsWith(expected));
  }
}

TEST(ReadmeTest, NamesEveryActivation) {
  std::ifstream file(DEEPPCR_SOURCE_DIR "/server/README.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string list = text.substr(text.find("\nActivations: "));
  const std::string sentence = list.substr(0, list.find("\n\n"));
  for (const ActivationName& row : kActivationNames)
    EXPECT_THAT(sentence, ::testing::HasSubstr("`" + std::string(row.name) + "`"));
}

TEST(ReadmeTest, TableOfConfigKeysIsThatOfTheCode) {
  ExpectTableOf(
      ConfigKeys(), [](const ConfigKey& key) { return key.families; }, "config.json");
}

TEST(ReadmeTest, TableOfSchedulerConfigKeysIsThatOfTheCode) {
  ExpectTableOf(
      SchedulerConfigKeys(), [](const SchedulerConfigKey& key) { return key.classes; },
      "scheduler_config.json");
}

TEST(ReadmeTest, TableOfTensorsIsThatOfTheCode) {
  std::map<std::string, std::string> rows = ReadmeRows("Tensors of a diffusion model");

  EXPECT_EQ(rows.size(), DenoiserTensors().size());
  for (const TensorRow& row : DenoiserTensors()) {
    const std::string name = std::string(row.name) + (row.has_bias ? ".{weight,bias}" : ".weight");
    EXPECT_EQ(rows[name], "| `" + name + "` | " + ShapeText(row) + " | " + std::string(row.when) +
                              " | " + std::string(row.meaning) + " |");
  }
}

}  // namespace
}  // namespace deeppcr::testing
