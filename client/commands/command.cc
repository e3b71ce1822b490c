// SPDX-License-Identifier: Apache-2.0
#include "client/commands/command.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/array_file.h"
#include "client/solver_options.h"

namespace deeppcr {

absl::StatusOr<std::unique_ptr<Client>> MakeClient(const GlobalOptions& global,
                                                   absl::Duration default_deadline,
                                                   int connection_index) {
  ClientOptions options;
  options.server = global.server;
  options.deadline =
      global.deadline_seconds > 0 ? absl::Seconds(global.deadline_seconds) : default_deadline;
  options.connection_index = connection_index;
  return Client::Create(options);
}

CLI::Option* ModelFlags::Add(CLI::App* app) {
  app->add_option("--model_version", version, "version of the model (default: the latest)")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N");
  return app->add_option("--model", model, "name of the model")->type_name("NAME");
}

void SolverFlags::Add(CLI::App* app, bool with_solver) {
  const std::span<const SolverOptionText> texts = SolverOptionTexts();
  values_.resize(texts.size());  // before addresses are taken
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string name = texts[i].name;
    if (name == "solver" && !with_solver) continue;
    app->add_option("--" + name, values_[i], texts[i].help)
        ->type_name("VALUE")
        ->group("Solver")
        ->check([name](const std::string& value) {
          v1::SolverOptions scratch;
          const std::string message(SetSolverOption(name, value, &scratch).message());
          // The parser puts the flag's name in front.
          return message.substr(std::min(message.size(), message.find("expected")));
        });
  }
}

absl::StatusOr<v1::SolverOptions> SolverFlags::Build() const {
  v1::SolverOptions options;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].empty()) continue;
    const absl::Status status = SetSolverOption(SolverOptionTexts()[i].name, values_[i], &options);
    if (!status.ok()) return status;
  }
  return options;
}

void InputFlags::AddPath(CLI::App* app, bool required) {
  app->add_option("--in", path, "inputs [n, input_dim]: .npy, .csv or .json; - is standard input")
      ->required(required)
      ->type_name("FILE");
  app->add_option("--format", format,
                  "npy, csv or json, where a name does not tell (default for -: csv)")
      ->type_name("NAME")
      ->check([](const std::string& name) {
        return std::string(ParseArrayFormat(name).status().message());
      });
}

void InputFlags::AddDrawing(CLI::App* app) {
  app->add_option("--seed", seed, "seed of inputs drawn from N(0, 1), without --in (default 1)")
      ->type_name("N");
}

absl::StatusOr<Array> InputFlags::Load(int64_t input_dim) const {
  if (path.empty()) {
    Array drawn{{std::max<int64_t>(samples, 1), input_dim}, {}};
    const absl::StatusOr<int64_t> count = CountElements(drawn.shape, kMaxArrayBytes / 4, "inputs");
    if (!count.ok()) return count.status();
    std::mt19937_64 generator(static_cast<uint64_t>(seed));
    std::normal_distribution<float> normal;
    drawn.values.resize(static_cast<size_t>(*count));
    for (float& value : drawn.values) value = normal(generator);
    return drawn;
  }
  absl::StatusOr<Array> array = ReadArray(path, format);
  if (!array.ok()) return array;
  // A single sample may come as a plain vector.
  if (array->shape.size() == 1 && array->rows() == input_dim) array->shape = {1, input_dim};
  if (array->shape.size() != 2 || array->shape[1] != input_dim || array->rows() < 1) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected shape [n, ", input_dim,
                                                   "] with n at least 1 for this model, got ",
                                                   ShapeToString(array->shape)));
  }
  return array;
}

void SolveTotals::Add(const v1::SolveReport& report) {
  for (const v1::SampleReport& sample : report.samples()) {
    ++samples;
    if (!sample.converged()) ++unconverged;
    if (!sample.fallback()) continue;
    if (++fallbacks == 1) first_fallback_reason = sample.termination();
  }
}

std::string IterationsText(double iterations, int64_t warm_sweeps, int64_t chord_corrections) {
  std::string text = absl::StrFormat("%.0f", iterations);
  if (warm_sweeps > 0) absl::StrAppend(&text, " +", warm_sweeps, " warm");
  if (chord_corrections > 0) absl::StrAppend(&text, " +", chord_corrections, " chord");
  return text;
}

}  // namespace deeppcr
