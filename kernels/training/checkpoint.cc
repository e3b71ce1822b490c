// SPDX-License-Identifier: Apache-2.0
#include "kernels/training/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "kernels/base/file.h"
#include "kernels/base/finite.h"
#include "kernels/base/json.h"
#include "kernels/base/sha256.h"
#include "kernels/base/shape.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/weights.h"
#include "kernels/model/weights_writer.h"

namespace deeppcr::training {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "deeppcr checkpoint 1";
constexpr std::string_view kChecksumName = "sha256";
constexpr int64_t kMaxStateBytes = int64_t{256} << 20;
constexpr int64_t kMaxCheckpointBytes =
    3 * kMostParameters * int64_t{sizeof(float)} + 2 * kMaxStateBytes + 2 * kMostWarmStartBytes;

// JSON has no number for what is not finite: null.
json NumberOrNull(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

absl::StatusOr<double> ReadNumberOrNull(const json& value, std::string_view field) {
  if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
  return JsonNumber(value, field);
}

// [step, loss, accuracy or null]
json ToJson(const EvaluationRecord& record) {
  const std::optional<double>& accuracy = record.evaluation.accuracy;
  return {record.step, NumberOrNull(record.evaluation.loss),
          accuracy.has_value() ? json(*accuracy) : json(nullptr)};
}

absl::StatusOr<EvaluationRecord> ReadEvaluation(const json& value, int64_t steps) {
  constexpr std::string_view kField = "state: evaluations";
  if (!value.is_array() || value.size() != 3)
    return InvalidArgument(kField, ": expected [step, loss, accuracy], got ", DescribeJson(value));
  EvaluationRecord record;
  DEEPPCR_ASSIGN_OR_RETURN(record.step, JsonInteger(value[0], kField, 0, steps));
  DEEPPCR_ASSIGN_OR_RETURN(record.evaluation.loss, ReadNumberOrNull(value[1], kField));
  if (value[2].is_null()) return record;
  DEEPPCR_ASSIGN_OR_RETURN(record.evaluation.accuracy, JsonNumber(value[2], kField));
  return record;
}

json StateJson(const Checkpoint& checkpoint) {
  const TrainerState& state = checkpoint.state;
  json evaluations = json::array();
  for (const EvaluationRecord& record : checkpoint.evaluations)
    evaluations.push_back(ToJson(record));
  return {{"format", std::string(kFormat)},
          {"run", checkpoint.run},
          {"step", state.step},
          {"updates", state.optimizer.updates},
          {"skips_in_a_row", state.skips_in_a_row},
          {"evaluations", std::move(evaluations)}};
}

absl::StatusOr<int64_t> Count(const json& root, std::string_view key) {
  DEEPPCR_ASSIGN_OR_RETURN(const json* value, JsonMember(root, key));
  return JsonInteger(*value, StrCat("state: ", key), 0, kMostSteps);
}

absl::Status CheckRun(const json& run) {
  if (!run.is_object())
    return InvalidArgument("state: run: expected an object, got ", DescribeJson(run));
  for (const auto& [key, value] : run.items())
    if (!value.is_primitive())
      return InvalidArgument("state: run: ", Quoted(key), ": expected a scalar, got ",
                             DescribeJson(value));
  return absl::OkStatus();
}

absl::Status ReadState(std::string_view text, Checkpoint* checkpoint) {
  DEEPPCR_ASSIGN_OR_RETURN(const json root, ParseJson(text, {.max_bytes = kMaxStateBytes}));
  DEEPPCR_RETURN_IF_ERROR(
      CheckMembers(root, {"format", "run", "step", "updates", "skips_in_a_row", "evaluations"}));
  DEEPPCR_ASSIGN_OR_RETURN(const json* format, JsonMember(root, "format"));
  if (*format != std::string(kFormat))
    return InvalidArgument("state: format: expected \"", kFormat, "\", got ",
                           DescribeJson(*format));
  DEEPPCR_ASSIGN_OR_RETURN(const json* run, JsonMember(root, "run"));
  DEEPPCR_RETURN_IF_ERROR(CheckRun(*run));
  checkpoint->run = *run;
  TrainerState& state = checkpoint->state;
  DEEPPCR_ASSIGN_OR_RETURN(state.step, Count(root, "step"));
  DEEPPCR_ASSIGN_OR_RETURN(state.optimizer.updates, Count(root, "updates"));
  DEEPPCR_ASSIGN_OR_RETURN(state.skips_in_a_row, Count(root, "skips_in_a_row"));
  DEEPPCR_ASSIGN_OR_RETURN(const json* evaluations, JsonMember(root, "evaluations"));
  if (!evaluations->is_array())
    return InvalidArgument("state: evaluations: expected an array, got ",
                           DescribeJson(*evaluations));
  for (const json& value : *evaluations) {
    DEEPPCR_ASSIGN_OR_RETURN(EvaluationRecord record, ReadEvaluation(value, state.step));
    checkpoint->evaluations.push_back(record);
  }
  return absl::OkStatus();
}

absl::StatusOr<const TensorEntry*> Find(const Tensors& tensors, std::string_view name,
                                        Dtype dtype) {
  const TensorEntry* tensor = tensors.Find(name);
  if (tensor == nullptr) return InvalidArgument("tensor \"", name, "\" is missing");
  if (tensor->dtype == dtype && tensor->shape.size() == 1) return tensor;
  return InvalidArgument("tensor \"", name, "\": expected a vector of ", DtypeName(dtype), ", got ",
                         DtypeName(tensor->dtype), " of shape ", ShapeString(tensor->shape));
}

// Bit for bit: the loss of a step that was skipped is not finite.
absl::Status ReadFloats(const Tensors& tensors, std::string_view name, std::vector<float>* values) {
  DEEPPCR_ASSIGN_OR_RETURN(const TensorEntry* tensor, Find(tensors, name, Dtype::kF32));
  values->resize(tensor->data.size() / sizeof(float));
  if (!values->empty()) std::memcpy(values->data(), tensor->data.data(), tensor->data.size());
  return absl::OkStatus();
}

absl::Status ReadTrajectories(const Tensors& tensors, KeptTrajectories* trajectories) {
  if (tensors.Find("trajectories") == nullptr && tensors.Find("kept") == nullptr)
    return absl::OkStatus();
  DEEPPCR_RETURN_IF_ERROR(ReadFloats(tensors, "trajectories", &trajectories->states));
  DEEPPCR_ASSIGN_OR_RETURN(const TensorEntry* kept, Find(tensors, "kept", Dtype::kU8));
  for (const std::byte value : kept->data)
    trajectories->kept.push_back(std::to_integer<uint8_t>(value));
  if (std::ranges::any_of(trajectories->kept, [](uint8_t value) { return value > 1; }))
    return InvalidArgument("tensor \"kept\": expected 0 or 1");
  if (!AllFinite(trajectories->states))
    return InvalidArgument("tensor \"trajectories\": expected finite values");
  return absl::OkStatus();
}

absl::Status ReadVectors(const Tensors& tensors, TrainerState* state) {
  DEEPPCR_RETURN_IF_ERROR(ReadFloats(tensors, "losses", &state->losses));
  for (const auto& [name, values] : {std::pair{"parameters", &state->optimizer.parameters},
                                     std::pair{"first", &state->optimizer.first},
                                     std::pair{"second", &state->optimizer.second}}) {
    DEEPPCR_RETURN_IF_ERROR(ReadFloats(tensors, name, values));
    if (!AllFinite(*values))
      return InvalidArgument("tensor \"", name, "\": expected finite values");
  }
  if (std::ranges::any_of(state->optimizer.second, [](float x) { return x < 0; }))
    return InvalidArgument("tensor \"second\": expected means of squares, got one below zero");
  return absl::OkStatus();
}

// Of names and bytes, in the order of the names.
absl::StatusOr<std::string> Checksum(
    const std::map<std::string_view, std::span<const std::byte>>& tensors) {
  std::string hashes;
  for (const auto& [name, data] : tensors) {
    DEEPPCR_ASSIGN_OR_RETURN(const std::string hash,
                             Sha256Hex({reinterpret_cast<const char*>(data.data()), data.size()}));
    hashes += StrCat(name, " ", hash, "\n");
  }
  return Sha256Hex(hashes);
}

// Says whether all tensors are as they were written.
absl::Status CheckChecksum(std::string_view bytes) {
  DEEPPCR_ASSIGN_OR_RETURN(const Tensors tensors, ParseSafetensors(bytes));
  DEEPPCR_ASSIGN_OR_RETURN(const TensorEntry* saved, Find(tensors, kChecksumName, Dtype::kU8));
  std::map<std::string_view, std::span<const std::byte>> others;
  for (const TensorEntry& tensor : tensors.entries())
    if (&tensor != saved) others.emplace(tensor.name, tensor.data);
  DEEPPCR_ASSIGN_OR_RETURN(const std::string found, Checksum(others));
  if (std::ranges::equal(saved->data, std::as_bytes(std::span(found)))) return absl::OkStatus();
  return InvalidArgument("tensor \"", kChecksumName, "\": expected the checksum of the others, ",
                         found, ", got another: the file is damaged");
}

}  // namespace

absl::StatusOr<Checkpoint> ParseCheckpoint(std::string_view bytes) {
  DEEPPCR_ASSIGN_OR_RETURN(const Tensors tensors, ParseSafetensors(bytes));
  DEEPPCR_ASSIGN_OR_RETURN(const TensorEntry* state, Find(tensors, "state", Dtype::kU8));
  Checkpoint checkpoint;
  DEEPPCR_RETURN_IF_ERROR(ReadState(
      {reinterpret_cast<const char*>(state->data.data()), state->data.size()}, &checkpoint));
  DEEPPCR_RETURN_IF_ERROR(ReadVectors(tensors, &checkpoint.state));
  DEEPPCR_RETURN_IF_ERROR(ReadTrajectories(tensors, &checkpoint.state.trajectories));
  return checkpoint;
}

absl::StatusOr<std::string> FormatCheckpoint(const Checkpoint& checkpoint) {
  const std::string text = StateJson(checkpoint).dump();
  const OptimizerState& optimizer = checkpoint.state.optimizer;
  const auto floats = [](std::string name, const std::vector<float>& values) {
    return WrittenTensor::OfFloats(std::move(name), {std::ssize(values)}, values);
  };
  std::vector<WrittenTensor> tensors = {
      {"state", Dtype::kU8, {std::ssize(text)}, std::as_bytes(std::span(text))},
      floats("parameters", optimizer.parameters),
      floats("first", optimizer.first),
      floats("second", optimizer.second),
      floats("losses", checkpoint.state.losses)};
  const KeptTrajectories& trajectories = checkpoint.state.trajectories;
  if (!trajectories.kept.empty()) {
    tensors.push_back(floats("trajectories", trajectories.states));
    tensors.push_back({"kept",
                       Dtype::kU8,
                       {std::ssize(trajectories.kept)},
                       std::as_bytes(std::span(trajectories.kept))});
  }
  std::map<std::string_view, std::span<const std::byte>> summed;
  for (const WrittenTensor& tensor : tensors) summed.emplace(tensor.name, tensor.data);
  DEEPPCR_ASSIGN_OR_RETURN(const std::string checksum, Checksum(summed));
  tensors.push_back({std::string(kChecksumName),
                     Dtype::kU8,
                     {std::ssize(checksum)},
                     std::as_bytes(std::span(checksum))});
  return SafetensorsFile(tensors);
}

absl::Status WriteCheckpoint(const std::string& path, const Checkpoint& checkpoint) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::string bytes, FormatCheckpoint(checkpoint));
  return WriteFileAtomically(path, bytes);
}

absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& path) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxCheckpointBytes));
  absl::StatusOr<Checkpoint> checkpoint = ParseCheckpoint(bytes);
  // Comes last: what is wrong in itself is named before.
  const absl::Status whole = checkpoint.ok() ? CheckChecksum(bytes) : checkpoint.status();
  if (!whole.ok()) return WithContext(whole, path);
  return checkpoint;
}

absl::Status CheckSameRun(const json& saved, const json& asked) {
  for (const auto& [key, value] : asked.items()) {
    const auto found = saved.find(key);
    if (found != saved.end() && *found == value) continue;
    return absl::FailedPreconditionError(
        StrCat("the checkpoint is of another run: ", key, ": it has ",
               found == saved.end() ? "none" : DescribeJson(*found), ", this run has ",
               DescribeJson(value)));
  }
  if (saved.size() == asked.size()) return absl::OkStatus();
  return absl::FailedPreconditionError("the checkpoint is of another run, with more options");
}

}  // namespace deeppcr::training
