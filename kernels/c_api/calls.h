// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_C_API_CALLS_H_
#define DEEPPCR_KERNELS_C_API_CALLS_H_

// What the calls of the C ABI share: the objects behind the handles, and checks of what a caller
// hands in. Inside the library alone.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/cancel_token.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/c_api/deeppcr.h"
#include "kernels/engine.h"

struct deeppcr_token {
  deeppcr::CancelToken token;
};

struct deeppcr_engine {
  std::shared_ptr<const deeppcr::Engine> engine;
  pid_t process;
  std::string device;
  void (*progress)(void*, int, const char*);
  void* progress_user;
};

struct deeppcr_model {
  std::shared_ptr<const deeppcr::Engine> engine;  // outlives the model
  std::shared_ptr<const deeppcr::LoadedModel> model;
  pid_t process;
};

namespace deeppcr {

inline absl::Status Required(const void* pointer, std::string_view name) {
  if (pointer != nullptr) return absl::OkStatus();
  return InvalidArgument(name, ": expected a pointer, got NULL");
}

// Checks the size of a structure of the caller's header, which may end before members that are new:
// of at least `least` bytes, and never inside a pointer.
template <class T>
absl::Status CheckStructure(std::string_view name, size_t size, size_t least) {
  if (size >= least && size <= sizeof(T) && size % alignof(T) == 0) return absl::OkStatus();
  return InvalidArgument(name, ": expected a multiple of ", alignof(T), " in [", least, ", ",
                         sizeof(T), "], got ", size,
                         ": use the initialiser of a deeppcr.h that is no newer than the library");
}

// The structure that a caller made with its header's initialiser, whose size comes first; the
// members that it does not know keep their defaults.
template <class T>
absl::StatusOr<T> Known(const T* given, const T& defaults, std::string_view name) {
  T known = defaults;
  if (given == nullptr) return known;
  DEEPPCR_RETURN_IF_ERROR(
      CheckStructure<T>(StrCat(name, ".struct_size"), given->struct_size, sizeof(size_t)));
  std::memcpy(&known, given, given->struct_size);
  return known;
}

inline absl::Status CheckProcess(pid_t process) {
  if (process == ::getpid()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the engine was created before fork, and its threads are not in this process: create one "
      "here");
}

template <class Enum>
absl::StatusOr<Enum> EnumOf(int32_t value, Enum last, std::string_view name) {
  if (value >= 0 && value <= static_cast<int32_t>(last)) return static_cast<Enum>(value);
  return InvalidArgument(name, ": expected a value in [0, ", static_cast<int32_t>(last), "], got ",
                         value);
}

inline absl::Status CheckRange(std::string_view name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return InvalidArgument(name, ": expected a number in [", least, ", ", most, "], got ", value);
}

// `size` rows of the caller's array; empty for NULL.
template <class T>
std::span<T> Rows(T* array, int64_t n, int64_t size) {
  return array == nullptr ? std::span<T>() : std::span<T>(array, static_cast<size_t>(n * size));
}

// The inputs with their sizes; the engine compares these with the model's.
inline absl::StatusOr<SampleInputs> InputsOf(const deeppcr_inputs& given, const ModelInfo& info,
                                             int64_t num_steps) {
  const int64_t n = given.num_samples, states = (num_steps + 1) * info.state_dim;
  if (given.first_sample > UINT64_MAX - static_cast<uint64_t>(n))
    return InvalidArgument("inputs.first_sample: expected first_sample + num_samples below 2^64");
  if (info.input_dim > 0) DEEPPCR_RETURN_IF_ERROR(Required(given.inputs, "inputs.inputs"));
  if (info.num_classes > 0)
    DEEPPCR_RETURN_IF_ERROR(Required(given.class_labels, "inputs.class_labels"));
  if (info.num_classes == 0 && given.class_labels != nullptr)
    return InvalidArgument("inputs.class_labels: expected NULL, as the model has no classes");
  for (const int32_t label : Rows(given.class_labels, n, 1)) {
    if (label < 0 || label >= info.num_classes)
      return InvalidArgument("inputs.class_labels: expected values in [0, ", info.num_classes - 1,
                             "], got ", label);
  }
  return SampleInputs{.num_samples = n,
                      .inputs = Rows(given.inputs, n, info.input_dim),
                      .seed = given.seed,
                      .first_sample = given.first_sample,
                      .labels = Rows(given.class_labels, n, 1),
                      .initial_noise = Rows(given.initial_noise, n, info.sample_dim()),
                      .step_noise = Rows(given.step_noise, n, num_steps * info.sample_dim()),
                      .initial_states = Rows(given.initial_states, n, states)};
}

// Deadline and token of a run; no token where neither is given.
class RunToken {
 public:
  RunToken(const deeppcr_token* token, double timeout_seconds) {
    const CancelToken* parent = token == nullptr ? nullptr : &token->token;
    token_ = parent;
    if (!(timeout_seconds > 0)) return;
    const double most = 1e9;
    const std::chrono::duration<double> timeout(std::min(timeout_seconds, most));
    own_.emplace(CancelToken::Clock::now() +
                     std::chrono::duration_cast<CancelToken::Clock::duration>(timeout),
                 parent);
    token_ = &*own_;
  }
  RunToken(const RunToken&) = delete;
  const CancelToken* get() const { return token_; }

 private:
  std::optional<CancelToken> own_;
  const CancelToken* token_;
};

// Checks numbers of a call against the model.
inline absl::Status CheckNumbers(const ModelInfo& info, int64_t num_samples,
                                 int64_t num_inference_steps, double timeout_seconds) {
  if (num_samples < 1 || num_samples > info.max_batch_size)
    return InvalidArgument("inputs.num_samples: expected a number in [1, ", info.max_batch_size,
                           "], got ", num_samples);
  if (!(timeout_seconds >= 0))
    return InvalidArgument("options.timeout_seconds: expected at least 0, got ", timeout_seconds);
  if (num_inference_steps != 0 && !info.generates())
    return InvalidArgument("options.num_inference_steps: expected 0 for a model of layers, got ",
                           num_inference_steps);
  return absl::OkStatus();
}

// The system that was found for a call, or, where the model has none of so many steps, one that is
// made.
inline absl::StatusOr<std::shared_ptr<const LoadedSystem>> FoundOrMade(
    std::shared_ptr<const LoadedSystem> found, const deeppcr_model& model, const SystemKey& key,
    const CancelToken* token) {
  if (found != nullptr) return found;
  auto made = model.model->Prepare(key, token);
  if (absl::IsCancelled(made.status()) && token != nullptr &&
      token->stop_reason() == StopReason::kDeadline)
    return absl::DeadlineExceededError("the deadline passed while the steps were made ready");
  return made;
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_C_API_CALLS_H_
