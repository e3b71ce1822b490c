// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_COMMANDS_COMMAND_H_
#define DEEPPCR_CLIENT_COMMANDS_COMMAND_H_

// What the subcommands of `deeppcr` share. Each lives in a file of its own and is one row of the
// table in cli.cc.

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/array.h"
#include "client/client.h"

namespace deeppcr {

// Flags that every subcommand takes.
struct GlobalOptions {
  std::string server = "127.0.0.1:8001";
  double deadline_seconds = 0;  // 0: the subcommand's own default
  std::string tls_ca, tls_cert, tls_key;
  std::string token_file, token;  // a file with a token, or one
};

// Runs a subcommand after its flags were read into what it captured.
using RunCommand = std::function<absl::Status()>;

RunCommand AddForward(CLI::App* app, const GlobalOptions* global);
RunCommand AddGenerate(CLI::App* app, const GlobalOptions* global);
RunCommand AddCompare(CLI::App* app, const GlobalOptions* global);
RunCommand AddModels(CLI::App* app, const GlobalOptions* global);
RunCommand AddPlan(CLI::App* app, const GlobalOptions* global);
RunCommand AddLoad(CLI::App* app, const GlobalOptions* global);
RunCommand AddUnload(CLI::App* app, const GlobalOptions* global);
RunCommand AddHealth(CLI::App* app, const GlobalOptions* global);
RunCommand AddBench(CLI::App* app, const GlobalOptions* global);

// A client of the server that the flags name.
absl::StatusOr<std::unique_ptr<Client>> MakeClient(const GlobalOptions& global,
                                                   absl::Duration default_deadline,
                                                   int connection_index = 0);

// The model, by --model or on its own, and --model_version.
struct ModelFlags {
  std::string model;
  int64_t version = 0;
  CLI::Option* Add(CLI::App* app);  // returns --model's option
};

// The flags of SolverOptions but --solver, and --solver itself where wanted. Values are checked as
// they are read.
class SolverFlags {
 public:
  void Add(CLI::App* app, bool with_solver);
  absl::StatusOr<v1::SolverOptions> Build() const;

 private:
  std::vector<std::string> values_;  // by index of SolverOptionTexts()
};

// --format, of files whose name does not tell.
void AddFormatFlag(CLI::App* app, std::string* format);

// --in, --format, --samples and --seed: inputs from a file, or drawn from N(0, 1).
struct InputFlags {
  std::string path;
  std::string format;
  int64_t samples = 0;
  uint64_t seed = 1;
  void AddPath(CLI::App* app, bool required);
  void AddDrawing(CLI::App* app);

  // [n, input_dim]. Without a path, max(samples, 1) rows are drawn.
  // Errors: of the file; kInvalidArgument if its shape does not fit the model.
  absl::StatusOr<Array> Load(int64_t input_dim) const;
};

// A check for flags of 64 bits without sign: the parser itself would take -1 as 2^64 - 1, and read
// a leading 0 as octal. Empty if the text is such a number, else what was expected.
std::string CheckUnsigned(const std::string& text);

// Reads an array [n, row_shape...], n at least 1; a single row may come without its n.
// Errors: of the file; kInvalidArgument naming it for another shape.
absl::StatusOr<Array> ReadRows(const std::string& path, const std::string& format,
                               const std::vector<int64_t>& row_shape);

// "ready", "failed", ...
std::string StateName(v1::ModelState state);

// The description of a model that is ready. Errors: of the call; kFailedPrecondition with the
// server's reason for one that failed; kUnavailable while it is loaded or unloaded.
absl::StatusOr<v1::GetModelResponse> ReadyModel(const Client& client, const ModelFlags& flags);

// Errors: kInvalidArgument for a model that draws samples instead.
absl::Status CheckTakesInputs(const v1::GetModelResponse& model);

// How many samples of a reply fell back or did not converge; for the warning that none of it stays
// silent.
struct SolveTotals {
  int64_t samples = 0;
  int64_t fallbacks = 0;
  int64_t unconverged = 0;
  std::map<std::string, int64_t> fallback_reasons;
  std::map<std::string, int64_t> unconverged_reasons;
  void Add(const v1::SolveReport& report);
};

// A line each for samples that fell back and samples that did not converge, by reason; else empty.
std::string WarningsText(const SolveTotals& totals);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_COMMANDS_COMMAND_H_
