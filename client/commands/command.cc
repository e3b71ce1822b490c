// SPDX-License-Identifier: Apache-2.0
#include "client/commands/command.h"

#include <algorithm>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/array_file.h"
#include "client/solver_options.h"
#include "client/table.h"
#include "kernels/base/file.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {

absl::StatusOr<std::unique_ptr<Client>> MakeClient(const GlobalOptions& global,
                                                   absl::Duration default_deadline,
                                                   int connection_index) {
  ClientOptions options;
  options.server = global.server;
  options.deadline =
      global.deadline_seconds > 0 ? absl::Seconds(global.deadline_seconds) : default_deadline;
  options.connection_index = connection_index;
  options.tls_ca = global.tls_ca;
  options.tls_cert = global.tls_cert;
  options.tls_key = global.tls_key;
  options.token = global.token;
  if (!global.token_file.empty()) {
    DEEPPCR_ASSIGN_OR_RETURN(const std::string token, ReadFile(global.token_file, 4096));
    options.token = std::string(absl::StripAsciiWhitespace(token));
  }
  return Client::Create(options);
}

CLI::Option* ModelFlags::Add(CLI::App* app) {
  app->add_option("--model_version,--version", version,
                  "version of the model (default: the latest)")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N");
  return app->add_option("--model,model", model, "name of the model")->type_name("NAME");
}

void SolverFlags::Add(CLI::App* app, bool with_solver) {
  const std::span<const SolverOptionText> texts = SolverOptionTexts();
  values_.resize(texts.size());  // before add_option takes addresses
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
    DEEPPCR_RETURN_IF_ERROR(SetSolverOption(SolverOptionTexts()[i].name, values_[i], &options));
  }
  return options;
}

void AddBatchSizeFlag(CLI::App* app, int64_t* batch_size) {
  app->add_option("--batch_size", *batch_size,
                  "samples per request (default: as many as the model takes)")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
}

void AddKeepFlag(CLI::App* app, std::string* path) {
  app->add_option("--keep", *path,
                  "leave the states on the server for a while, and write what grad --kept FILE "
                  "takes")
      ->type_name("FILE");
}

void AddFormatFlag(CLI::App* app, std::string* format) {
  app->add_option("--format", *format,
                  "npy, csv or json, for files whose name does not tell (default for -: csv)")
      ->type_name("NAME")
      ->check([](const std::string& name) {
        return std::string(ParseArrayFormat(name).status().message());
      });
}

void InputFlags::AddPath(CLI::App* app, bool required) {
  app->add_option("--in", path, "inputs [n, input_dim]: .npy, .csv or .json; - is standard input")
      ->required(required)
      ->type_name("FILE");
  AddFormatFlag(app, &format);
}

void InputFlags::AddDrawing(CLI::App* app) {
  app->add_option("--seed", seed, "seed of inputs drawn from N(0, 1), without --in (default 1)")
      ->type_name("N")
      ->check(CheckUnsigned);
}

std::string CheckUnsigned(const std::string& text) {
  uint64_t value = 0;
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  const bool octal = text.size() > 1 && text.front() == '0';
  if (digits && !octal && absl::SimpleAtoi(text, &value)) return "";
  return StrCat("expected a whole number from 0 to 18446744073709551615, got '", text, "'");
}

absl::StatusOr<Array> InputFlags::Load(int64_t input_dim) const {
  if (path.empty()) {
    Array drawn{{std::max<int64_t>(samples, 1), input_dim}, {}};
    DEEPPCR_ASSIGN_OR_RETURN(const int64_t count,
                             CountElements(drawn.shape, kMaxArrayBytes / 4, "inputs"));
    std::mt19937_64 generator(seed);
    std::normal_distribution<float> normal;
    drawn.values.resize(static_cast<size_t>(count));
    for (float& value : drawn.values) value = normal(generator);
    return drawn;
  }
  return ReadRows(path, format, {input_dim});
}

absl::StatusOr<Array> ReadRows(const std::string& path, const std::string& format,
                               const std::vector<int64_t>& row_shape) {
  absl::StatusOr<Array> array = ReadArray(path, format);
  if (!array.ok()) return array;
  std::vector<int64_t>& shape = array->shape;
  if (shape == row_shape) shape.insert(shape.begin(), 1);
  const bool fits = shape.size() == row_shape.size() + 1 && shape.front() >= 1 &&
                    std::equal(row_shape.begin(), row_shape.end(), shape.begin() + 1);
  if (fits) return array;
  return InvalidArgument(path, ": expected shape [n, ", absl::StrJoin(row_shape, ", "),
                         "] with n at least 1 for this model, got ", ShapeToString(shape));
}

std::string StateName(v1::ModelState state) {
  constexpr size_t kPrefix = std::string_view("MODEL_STATE_").size();
  const std::string name = v1::ModelState_Name(state);
  return name.size() > kPrefix ? absl::AsciiStrToLower(name.substr(kPrefix)) : "unknown";
}

absl::StatusOr<v1::GetModelResponse> ReadyModel(const Client& client, const ModelFlags& flags) {
  absl::StatusOr<v1::GetModelResponse> model = client.GetModel(flags.model, flags.version);
  if (!model.ok() || model->summary().state() == v1::MODEL_STATE_READY) return model;
  const v1::ModelSummary& summary = model->summary();
  const bool failed = summary.state() == v1::MODEL_STATE_FAILED;
  return absl::Status(
      failed ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kUnavailable,
      StrCat("model '", Printable(summary.name()), "' version ", summary.version(), " is ",
             StateName(summary.state()), summary.reason().empty() ? "" : ": ",
             Printable(summary.reason())));
}

absl::Status CheckTakesInputs(const v1::GetModelResponse& model) {
  if (model.num_inference_steps().empty()) return absl::OkStatus();
  return InvalidArgument(
      "model: '", model.summary().name(),
      "' is a diffusion model: it takes no inputs; deeppcr generate draws samples");
}

void SolveTotals::Add(const v1::SolveReport& report) {
  for (const v1::SampleReport& sample : report.samples()) {
    ++samples;
    if (!sample.converged()) {
      ++unconverged;
      ++unconverged_reasons[sample.termination()];
    }
    if (!sample.fallback()) continue;
    ++fallbacks;
    ++fallback_reasons[sample.attempt().termination()];
  }
}

std::string WarningsText(const SolveTotals& totals) {
  std::string text;
  if (totals.fallbacks > 0) {
    absl::StrAppend(&text, "warning: ", totals.fallbacks, " of ", totals.samples,
                    " samples fell back to sequential (", CountsText(totals.fallback_reasons),
                    ")\n");
  }
  if (totals.unconverged > 0) {
    absl::StrAppend(&text, "warning: ", totals.unconverged, " of ", totals.samples,
                    " samples did not converge (", CountsText(totals.unconverged_reasons), ")\n");
  }
  return text;
}

}  // namespace deeppcr
