// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_COMMANDS_COMMAND_H_
#define DEEPPCR_CLIENT_COMMANDS_COMMAND_H_

// Shared parts of the subcommands of `deeppcr`. Each subcommand has a file of its own and a row in
// the table of cli.cc.

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
  std::string token_file, token;  // a file with a token, or a token
};

// Runs a subcommand, whose flags have been read into captured variables.
using RunCommand = std::function<absl::Status()>;

RunCommand AddForward(CLI::App* app, const GlobalOptions* global);
RunCommand AddGenerate(CLI::App* app, const GlobalOptions* global);
RunCommand AddCompare(CLI::App* app, const GlobalOptions* global);
RunCommand AddGrad(CLI::App* app, const GlobalOptions* global);
RunCommand AddModels(CLI::App* app, const GlobalOptions* global);
RunCommand AddPlan(CLI::App* app, const GlobalOptions* global);
RunCommand AddLoad(CLI::App* app, const GlobalOptions* global);
RunCommand AddTrain(CLI::App* app, const GlobalOptions* global);
RunCommand AddUnload(CLI::App* app, const GlobalOptions* global);
RunCommand AddHealth(CLI::App* app, const GlobalOptions* global);
RunCommand AddBench(CLI::App* app, const GlobalOptions* global);

// A client of the server that the flags name.
absl::StatusOr<std::unique_ptr<Client>> MakeClient(const GlobalOptions& global,
                                                   absl::Duration default_deadline,
                                                   int connection_index = 0);

// The model, by --model or as a positional argument, and --model_version.
struct ModelFlags {
  std::string model;
  int64_t version = 0;
  CLI::Option* Add(CLI::App* app);  // returns --model's option
};

// The flags of SolverOptions; --solver only if with_solver. Values are checked as they are read.
class SolverFlags {
 public:
  void Add(CLI::App* app, bool with_solver);
  absl::StatusOr<v1::SolverOptions> Build() const;

 private:
  std::vector<std::string> values_;  // indexed like SolverOptionTexts()
};

// Adds --batch_size, samples per request; 0 for as many as fit.
void AddBatchSizeFlag(CLI::App* app, int64_t* batch_size);

// Adds --keep FILE, for commands whose trajectories may stay on the server.
void AddKeepFlag(CLI::App* app, std::string* path);

// Adds --format, for files whose name does not tell their format.
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
  // Errors: as ReadArray; kInvalidArgument if the file's shape does not fit the model.
  absl::StatusOr<Array> Load(int64_t input_dim) const;
};

// Checks the value of an unsigned 64-bit flag: the parser itself would take -1 as 2^64 - 1, and
// read a leading 0 as octal. Returns an empty string for a valid number, else an error message.
std::string CheckUnsigned(const std::string& text);

// Reads an array [n, row_shape...], n at least 1; a single row may lack the first axis.
// Errors: as ReadArray; kInvalidArgument naming the file for another shape.
absl::StatusOr<Array> ReadRows(const std::string& path, const std::string& format,
                               const std::vector<int64_t>& row_shape);

// The name of a state: "ready", "failed", ...
std::string StateName(v1::ModelState state);

// The description of a ready model. Errors: as Client::GetModel; kFailedPrecondition with the
// server's reason for a failed model; kUnavailable while the model is loaded or unloaded.
absl::StatusOr<v1::GetModelResponse> ReadyModel(const Client& client, const ModelFlags& flags);

// Errors: kInvalidArgument for a diffusion model, which takes no inputs.
absl::Status CheckTakesInputs(const v1::GetModelResponse& model);

// Counts of samples that fell back or did not converge, for the warnings about these samples.
struct SolveTotals {
  int64_t samples = 0;
  int64_t fallbacks = 0;
  int64_t unconverged = 0;
  std::map<std::string, int64_t> fallback_reasons;
  std::map<std::string, int64_t> unconverged_reasons;
  void Add(const v1::SolveReport& report);
};

// A line for samples that fell back and a line for samples that did not converge, with the reasons;
// empty if there are no such samples.
std::string WarningsText(const SolveTotals& totals);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_COMMANDS_COMMAND_H_
