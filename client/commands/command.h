// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_COMMANDS_COMMAND_H_
#define DEEPPCR_CLIENT_COMMANDS_COMMAND_H_

// What the subcommands of `deeppcr` share. Each lives in a file of its own and is one row of the
// table in cli.cc.

#include <CLI/CLI.hpp>
#include <functional>
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
};

// Runs a subcommand after its flags were read into what it captured.
using RunCommand = std::function<absl::Status()>;

RunCommand AddForward(CLI::App* app, const GlobalOptions* global);
RunCommand AddCompare(CLI::App* app, const GlobalOptions* global);
RunCommand AddModels(CLI::App* app, const GlobalOptions* global);
RunCommand AddLoad(CLI::App* app, const GlobalOptions* global);
RunCommand AddUnload(CLI::App* app, const GlobalOptions* global);
RunCommand AddHealth(CLI::App* app, const GlobalOptions* global);
RunCommand AddBench(CLI::App* app, const GlobalOptions* global);

// A client of the server that the flags name.
absl::StatusOr<std::unique_ptr<Client>> MakeClient(const GlobalOptions& global,
                                                   absl::Duration default_deadline,
                                                   int connection_index = 0);

// --model and --version.
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

// --in, --format, --samples and --seed: inputs from a file, or drawn from N(0, 1).
struct InputFlags {
  std::string path;
  std::string format;
  int64_t samples = 0;
  int64_t seed = 1;
  void AddPath(CLI::App* app, bool required);
  void AddDrawing(CLI::App* app);

  // [n, input_dim]. Without a path, max(samples, 1) rows are drawn.
  // Errors: of the file; kInvalidArgument if its shape does not fit the model.
  absl::StatusOr<Array> Load(int64_t input_dim) const;
};

// How many samples of a reply fell back or did not converge; for the warning that none of it stays
// silent.
struct SolveTotals {
  int64_t samples = 0;
  int64_t fallbacks = 0;
  int64_t unconverged = 0;
  std::string first_fallback_reason;
  void Add(const v1::SolveReport& report);
};

// "4", "4 +2 warm +1 chord".
std::string IterationsText(double iterations, int64_t warm_sweeps, int64_t chord_corrections);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_COMMANDS_COMMAND_H_
