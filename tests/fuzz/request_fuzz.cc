// SPDX-License-Identifier: Apache-2.0
// The validation of requests: 'F' and a ForwardRequest, or 'C' and a CompareRequest. What it lets
// through to the engine must be exactly as large and as much in range as the engine relies on.

#include <cmath>
#include <cstdint>
#include <span>
#include <string>

#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/stubs/logging.h"
#include "server/request_codec.h"
#include "server/wire.h"
#include "tests/fuzz/fuzz_target.h"

namespace deeppcr::fuzz {
namespace {

constexpr int64_t kMaxMessageBytes = 1 << 20;

const ModelInfo& Info() {
  static const ModelInfo& info = *[] {
    auto* model = new ModelInfo();
    model->model_type = "resnet";
    model->input_dim = 2;
    model->output_dim = 3;
    model->state_dim = 2;
    model->num_layers = 4;
    model->max_batch_size = 4;
    for (const std::string_view name : SolverNames()) model->solvers.emplace_back(name);
    return model;
  }();
  return info;
}

void RequireOptions(const SolveOptions& options) {
  Require(options.rtol >= 1e-7 && options.rtol <= 0.1, "rtol is in its range");
  Require(options.atol >= 0 && options.atol <= 1, "atol is in its range");
  Require(options.max_iterations >= 0 && options.max_iterations <= 10000,
          "max_iterations is in its range");
  Require(options.shooting_interval >= 0 && options.shooting_interval <= Info().num_layers,
          "shooting_interval is in its range");
  Require(options.warm_sweeps >= -1 && options.warm_sweeps <= 64, "warm_sweeps is in its range");
  Require(options.initial_guess <= InitialGuess::kPrevious, "initial_guess is one of the enum");
  Require(options.jacobian_refresh <= JacobianRefresh::kWhileContracting,
          "jacobian_refresh is one of the enum");
  Require(options.on_no_convergence <= OnNoConvergence::kError,
          "on_no_convergence is one of the enum");
}

// A view of `samples` times `inner` floats that lie in the message, and are finite if the check for
// that says so. Reads every value: AddressSanitizer watches.
void RequireTensor(const v1::Tensor& message, std::span<const float> values, int64_t samples,
                   int64_t inner) {
  Require(static_cast<int64_t>(values.size()) == samples * inner, "a tensor has its shape's size");
  Require(values.size_bytes() == message.data().size(), "a tensor has exactly the message's bytes");
  const bool finite = CheckFinite(values, "field").ok();
  bool really_finite = true;
  for (const float value : values) really_finite &= std::isfinite(value);
  Require(finite == really_finite, "values that pass the check are finite");
}

#if defined(DEEPPCR_FUZZ_PLANTED_BUG)
std::span<const float> Floats(const v1::Tensor& tensor, size_t count) {
  return {reinterpret_cast<const float*>(tensor.data().data()), count};
}

// Takes the shape's word for the number of bytes, as servers did that leaked their neighbours'.
absl::StatusOr<SolveInput> Decode(const v1::ForwardRequest& request) {
  v1::ForwardRequest padded = request;
  const v1::Tensor& inputs = request.inputs();
  const bool plausible =
      inputs.shape_size() == 2 && inputs.shape(0) > 0 && inputs.shape(0) <= Info().max_batch_size;
  if (plausible) padded.mutable_inputs()->mutable_data()->resize(inputs.shape(0) * 8);
  absl::StatusOr<SolveInput> input = DecodeForward(padded, Info(), kMaxMessageBytes);
  if (!input.ok()) return input;
  input->inputs.values = Floats(inputs, static_cast<size_t>(inputs.shape(0) * 2));
  input->initial_states.values =
      Floats(request.initial_states(), input->initial_states.values.size());
  return input;
}
#else
absl::StatusOr<SolveInput> Decode(const v1::ForwardRequest& request) {
  return DecodeForward(request, Info(), kMaxMessageBytes);
}
#endif

// Parses bytes as the server does.
template <typename Request>
bool Receive(const std::string& bytes, Request* request) {
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()));
  const absl::Status wire = CheckWire(&stream, *Request::descriptor());
  if (!wire.ok()) return RequireCleanRefusal(wire), false;
  if (!request->ParseFromString(bytes)) return false;
  Require(request->SpaceUsedLong() <= 2 * bytes.size() + 256 * (kMaxWireFields + 8),
          "a request takes memory in proportion to its bytes");
  return true;
}

bool TryForward(const std::string& bytes) {
  v1::ForwardRequest request;
  if (!Receive(bytes, &request)) return false;
  const absl::Status named = CheckModelFields(request.model(), request.version());
  if (!named.ok()) return RequireCleanRefusal(named), false;
  const absl::StatusOr<SolveInput> input = Decode(request);
  if (!input.ok()) return RequireCleanRefusal(input.status()), false;
  Require(input->num_samples >= 1 && input->num_samples <= Info().max_batch_size,
          "the number of samples is in its range");
  RequireTensor(request.inputs(), input->inputs.values, input->num_samples, Info().input_dim);
  RequireOptions(input->options);
  const bool previous = input->options.initial_guess == InitialGuess::kPrevious;
  RequireTensor(request.initial_states(), input->initial_states.values,
                previous ? input->num_samples : 0, (Info().num_layers + 1) * Info().state_dim);
  Require(input->reply_bytes > 0 && input->reply_bytes <= kMaxMessageBytes,
          "the reply fits into a message");
  return true;
}

bool TryCompare(const std::string& bytes) {
  v1::CompareRequest request;
  if (!Receive(bytes, &request)) return false;
  const absl::StatusOr<CompareInput> input = DecodeCompare(request, Info(), kMaxMessageBytes);
  if (!input.ok()) return RequireCleanRefusal(input.status()), false;
  RequireTensor(request.inputs(), input->request.inputs.values, input->request.num_samples,
                Info().input_dim);
  Require(input->repetitions >= 1 && input->repetitions <= kMaxRepetitions,
          "repetitions are in their range");
  Require(!input->rows.empty() && input->rows.size() <= kMaxCompareRows + 1,
          "the number of rows is in its range");
  for (const SolveOptions& options : input->rows) RequireOptions(options);
  return true;
}

}  // namespace

bool TryInput(std::string_view bytes) {
  // Otherwise a line for every name that is not UTF-8.
  [[maybe_unused]] static const auto previous = google::protobuf::SetLogHandler(nullptr);
  if (bytes.empty()) return false;
  const std::string message(bytes.substr(1));
  if (bytes.front() == 'F') return TryForward(message);
  if (bytes.front() == 'C') return TryCompare(message);
  return false;
}

}  // namespace deeppcr::fuzz
