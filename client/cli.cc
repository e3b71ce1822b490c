// SPDX-License-Identifier: Apache-2.0
#include "client/cli.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "client/commands/command.h"
#include "client/table.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

constexpr int kFailed = 1;
constexpr int kNotUnderstood = 2;

struct Subcommand {
  const char* name;
  const char* help;
  RunCommand (*add)(CLI::App*, const GlobalOptions*);
};

constexpr Subcommand kSubcommands[] = {
    {"forward", "Run inputs through a model", AddForward},
    {"generate", "Draw samples from a diffusion model", AddGenerate},
    {"compare", "Run the same inputs through several solvers and compare them", AddCompare},
    {"grad", "Take cotangents or a loss back through a model", AddGrad},
    {"models", "List models, and their plans", AddModels},
    {"plan", "Write a model's plans for this kind of device to a file", AddPlan},
    {"load", "Load or reload a model", AddLoad},
    {"unload", "Unload a model", AddUnload},
    {"health", "Ask whether the server, or a model, is serving", AddHealth},
    {"train", "Train an mlp or resnet here, and publish it to a model repository", AddTrain},
    {"bench", "Measure throughput and latency under load", AddBench},
};

// The number of single-character edits between two words.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

std::vector<std::string> KnownWords(const CLI::App& app, const CLI::App* subcommand) {
  std::vector<std::string> words;
  for (const CLI::App* level : {&app, subcommand}) {
    if (level == nullptr) continue;
    for (const CLI::Option* option : level->get_options()) {
      for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
    }
  }
  if (subcommand == nullptr) {
    for (const Subcommand& entry : kSubcommands) words.emplace_back(entry.name);
  }
  return words;
}

// A hint after a command line that was not understood: the nearest known word, and where help is.
std::string Hint(const CLI::App& app, const std::string& unknown) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const CLI::App* subcommand = chosen.empty() ? nullptr : chosen.front();
  const std::string word = unknown.substr(0, unknown.find('='));
  std::string nearest;
  size_t distance = word.size() / 2 + 1;  // words farther apart are not alike
  for (const std::string& known : KnownWords(app, subcommand)) {
    if (const size_t d = EditDistance(word, known); d < distance) {
      nearest = known;
      distance = d;
    }
  }
  const std::string help =
      StrCat("deeppcr ", subcommand == nullptr ? "" : subcommand->get_name() + " ", "--help");
  const std::string guess = nearest.empty() ? "" : StrCat("did you mean ", nearest, "? ");
  return StrCat(guess, "see ", help);
}

// The arguments for the parser, with dashes in flag names replaced by underscores, as in the
// server's flags.
std::vector<std::string> NormalizedArguments(int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  // The parser takes the last argument first, and not the program's name.
  for (int i = argc - 1; i > 0; --i) {
    std::string& argument = arguments.emplace_back(argv[i]);
    if (!absl::StartsWith(argument, "--") || argument.size() == 2) continue;
    const auto end = std::find(argument.begin(), argument.end(), '=');
    std::replace(argument.begin() + 2, end, '-', '_');
  }
  return arguments;
}

int ReportParseError(const CLI::App& app, const CLI::ParseError& error, size_t num_arguments) {
  // Subcommands without a --version of their own would print the program's version and exit with 0,
  // as if they had succeeded.
  if (dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr && num_arguments > 1) {
    absl::FPrintF(stderr, "deeppcr: --version stands alone; a model's is --model_version N\n");
    return kNotUnderstood;
  }
  // --help and --version arrive as errors of code 0; app.exit prints their text.
  if (error.get_exit_code() == 0) return app.exit(error);
  const std::vector<std::string> extras = app.remaining(true);
  std::string message = error.what();
  if (!extras.empty()) {
    const bool flag = absl::StartsWith(extras.front(), "-");
    const bool command = !flag && app.get_subcommands().empty();
    message = StrCat("unknown ",
                     flag      ? "flag"
                     : command ? "subcommand"
                               : "argument",
                     " '", extras.front(), "'");
  }
  absl::FPrintF(stderr, "deeppcr: %s; %s\n", message,
                Hint(app, extras.empty() ? "" : extras.front()));
  return kNotUnderstood;
}

void AddGlobalFlags(CLI::App* app, GlobalOptions* global) {
  app->add_option("--server", global->server,
                  "host:port or unix:file of the server, or dns:///host:port or IP addresses by "
                  "commas of several (default 127.0.0.1:8001)")
      ->envname("DEEPPCR_SERVER")
      ->type_name("HOST:PORT");
  app->add_option("--deadline", global->deadline_seconds,
                  "seconds that one request may take (default: by subcommand, 5 s to 10 min)")
      ->type_name("S")
      ->check(CLI::Range(0.001, 86400.0));
  app->add_option("--tls_ca", global->tls_ca,
                  "PEM file of the CAs that sign the server's certificate (default: no TLS)")
      ->envname("DEEPPCR_TLS_CA")
      ->type_name("FILE");
  app->add_option("--tls_cert", global->tls_cert, "PEM file of this client's own certificate")
      ->envname("DEEPPCR_CLIENT_CERT")
      ->type_name("FILE");
  app->add_option("--tls_key", global->tls_key, "PEM file of the client certificate's private key")
      ->envname("DEEPPCR_CLIENT_KEY")
      ->type_name("FILE");
  app->add_option("--token_file", global->token_file,
                  "file with the token to call with (default: the environment's DEEPPCR_TOKEN)")
      ->type_name("FILE");
  if (const char* token = std::getenv("DEEPPCR_TOKEN"); token != nullptr)
    global->token = std::string(absl::StripAsciiWhitespace(token));
  app->set_version_flag("--version", std::string("deeppcr ") + DEEPPCR_VERSION);
}

}  // namespace

std::string ExplainFailure(const absl::Status& status, const std::string& server) {
  const std::string message = Printable(std::string(status.message()));
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      if (!absl::StartsWith(message, "cannot connect")) return message;
      return StrCat("no server can be reached at ", server,
                    ": start one with deeppcr-server --model_repository DIR, or name another "
                    "with --server or DEEPPCR_SERVER");
    case absl::StatusCode::kDeadlineExceeded:
      return StrCat(message, " (--deadline S gives a request more time)");
    case absl::StatusCode::kResourceExhausted:
      return StrCat(message, " (the server is at a limit: try later, or send smaller requests)");
    case absl::StatusCode::kUnimplemented:
      // A server that knows the call says itself what to do.
      if (absl::StrContains(message, "gradients")) return message;
      return StrCat("what answers at ", server,
                    " does not know this call: is it a DeepPCR "
                    "server of this version? (",
                    message, ")");
    case absl::StatusCode::kNotFound:
      if (!absl::StrContains(message, "model")) return message;
      return StrCat(message, " (deeppcr models lists what there is)");
    default:
      return message.empty() ? absl::StatusCodeToString(status.code()) : message;
  }
}

int RunCli(int argc, const char* const* argv) {
  // So that a closed pipe, or a file at its limit, fails a write, with a message.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app("Client of a DeepPCR server: deep sequential models, solved for all layers at once.",
               "deeppcr");
  GlobalOptions global;
  AddGlobalFlags(&app, &global);
  app.require_subcommand(1);
  app.fallthrough();
  app.footer(
      "Examples:\n"
      "  deeppcr health\n"
      "  deeppcr models --plan\n"
      "  deeppcr forward --model digits-resnet --in digits.npy --labels\n"
      "  deeppcr generate digits-ddpm --num 64 --png digits.png\n"
      "deeppcr SUBCOMMAND --help says more. Flags above work after a subcommand as well.");
  RunCommand run;
  for (const Subcommand& entry : kSubcommands) {
    CLI::App* subcommand = app.add_subcommand(entry.name, entry.help);
    const RunCommand command = entry.add(subcommand, &global);
    subcommand->final_callback([&run, command] { run = command; });
  }
  // Only the parser throws here.
  try {
    app.parse(NormalizedArguments(argc, argv));
  } catch (const CLI::ParseError& error) {
    return ReportParseError(app, error, static_cast<size_t>(argc - 1));
  }
  const absl::Status status = run();
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "deeppcr: %s\n", ExplainFailure(status, global.server));
  // Whoever is at fault finds more in the log; others have been told what to do.
  const bool ours = absl::IsInternal(status) || absl::IsUnknown(status);
  if (const std::string trace = TraceIdOf(status); ours && !trace.empty())
    absl::FPrintF(stderr, "deeppcr: the server's log knows this call by its trace_id %s\n", trace);
  return kFailed;
}

}  // namespace deeppcr
