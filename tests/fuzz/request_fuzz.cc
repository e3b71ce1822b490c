// SPDX-License-Identifier: Apache-2.0
// The validation of requests: 'F' and a ForwardRequest, 'C' and a CompareRequest or 'B' and a
// GradientRequest for a dense stack ('P': by parameters); 'G' and a GenerateRequest, 'D' and a
// CompareRequest or 'L' and a GradientRequest for a diffusion model with classes; 'g', 'd' or 'l'
// for one that is conditioned on a vector. An accepted request must be exactly as large and as much
// in range as the engine relies on.

#include <cstdint>
#include <span>
#include <string>

#include "google/protobuf/stubs/logging.h"
#include "tests/fuzz/request_checks.h"

namespace deeppcr::fuzz {
namespace {

#if defined(DEEPPCR_FUZZ_PLANTED_BUG)
std::span<const float> Floats(const v1::Tensor& tensor, size_t count) {
  return {reinterpret_cast<const float*>(tensor.data().data()), count};
}

// Trusts the shape for the number of bytes, as servers did that leaked memory of other requests.
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

// The names of a request, which a call checks before it decodes.
template <typename Request>
absl::Status CheckNames(const Request& request) {
  const absl::Status model = CheckModelFields(request.model(), request.version());
  return model.ok() ? CheckRequestId("request_id", request.request_id()) : model;
}

bool TryForward(const std::string& bytes) {
  v1::ForwardRequest request;
  if (!Receive(bytes, &request)) return false;
  if (const absl::Status named = CheckNames(request); !named.ok())
    return RequireCleanRefusal(named), false;
  const absl::StatusOr<SolveInput> input = Decode(request);
  if (!input.ok()) return RequireCleanRefusal(input.status()), false;
  RequireForward(request, *input, Info());
  return true;
}

bool TryGenerate(const std::string& bytes, const ModelInfo& info) {
  v1::GenerateRequest request;
  if (!Receive(bytes, &request)) return false;
  if (const absl::Status named = CheckNames(request); !named.ok())
    return RequireCleanRefusal(named), false;
  const absl::StatusOr<SolveInput> input = DecodeGenerate(request, info, kMaxMessageBytes);
  if (!input.ok()) return RequireCleanRefusal(input.status()), false;
  RequireGenerate(request, *input, info);
  return true;
}

bool TryCompare(const std::string& bytes, const ModelInfo& info) {
  v1::CompareRequest request;
  if (!Receive(bytes, &request)) return false;
  const absl::StatusOr<CompareInput> input = DecodeCompare(request, info, kMaxMessageBytes);
  if (!input.ok()) return RequireCleanRefusal(input.status()), false;
  if (info.generates()) {
    RequireGeneration(request.generation(), input->request, info);
  } else {
    RequireTensor(request.inputs(), input->request.inputs.values, input->request.num_samples,
                  info.input_dim);
  }
  Require(input->request.initial_states.values.empty(),
          "a comparison has no trajectory to start from");
  RequireReply(input->request);
  Require(input->repetitions >= 1 && input->repetitions <= kMaxRepetitions,
          "repetitions are in their range");
  Require(!input->rows.empty() && input->rows.size() <= kMaxCompareRows + 1,
          "the number of rows is in its range");
  for (const SolveOptions& options : input->rows) {
    RequireOptions(options, info, input->request.num_steps);
    Require(options.initial_guess != InitialGuess::kPrevious, "no row starts from a trajectory");
  }
  return true;
}

bool TryGradient(const std::string& bytes, const ModelInfo& info, bool by_parameters = false) {
  v1::GradientRequest request;
  if (!Receive(bytes, &request)) return false;
  if (const absl::Status named = CheckNames(request); !named.ok())
    return RequireCleanRefusal(named), false;
  SolveInput solve;
  const absl::StatusOr<GradientInput> input =
      by_parameters ? DecodeParameterGradient(request, info, kMaxMessageBytes, &solve)
                    : DecodeGradient(request, info, kMaxMessageBytes, &solve);
  if (!input.ok()) return RequireCleanRefusal(input.status()), false;
  if (info.generates()) {
    RequireGeneration(request.generation(), solve, info);
  } else {
    RequireTensor(request.inputs(), solve.inputs.values, solve.num_samples, info.input_dim);
  }
  RequireOptions(solve.options, info, solve.num_steps);
  RequireInitialStates(request.initial_states(), solve, info);
  RequireGradient(request, solve, *input, info, by_parameters);
  return true;
}

}  // namespace

bool TryInput(std::string_view bytes) {
  // Silences protobuf, which would log every name that is not UTF-8.
  [[maybe_unused]] static const auto previous = google::protobuf::SetLogHandler(nullptr);
  if (bytes.empty()) return false;
  const std::string message(bytes.substr(1));
  if (bytes.front() == 'F') return TryForward(message);
  if (bytes.front() == 'C') return TryCompare(message, Info());
  if (bytes.front() == 'G') return TryGenerate(message, ClassInfo());
  if (bytes.front() == 'g') return TryGenerate(message, ConditionInfo());
  if (bytes.front() == 'B') return TryGradient(message, Info());
  if (bytes.front() == 'P') return TryGradient(message, Info(), /*by_parameters=*/true);
  if (bytes.front() == 'L') return TryGradient(message, ClassInfo());
  if (bytes.front() == 'l') return TryGradient(message, ConditionInfo());
  if (bytes.front() == 'D') return TryCompare(message, ClassInfo());
  if (bytes.front() == 'd') return TryCompare(message, ConditionInfo());
  return false;
}

}  // namespace deeppcr::fuzz
