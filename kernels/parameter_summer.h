// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PARAMETER_SUMMER_H_
#define DEEPPCR_KERNELS_PARAMETER_SUMMER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/backend/backward_space.h"
#include "kernels/base/cancel_token.h"
#include "kernels/base/thread_pool.h"
#include "kernels/model/parameter_model.h"
#include "kernels/problem/reverse_step.h"
#include "kernels/problem/spec.h"
#include "kernels/program/parameter_pass.h"

namespace deeppcr {

// Sums of the gradients by the parameters of a model whose steps are a program, from the states of
// samples and their cotangents, whichever backend has found them. Thread-safe.
class ParameterSummer {
 public:
  // `spec`: a system of the model, whose steps are copied.
  ParameterSummer(std::shared_ptr<const ParameterModel> model, const SystemSpec& spec,
                  ThreadPool* pool);

  // See LoadedSystem::AddParameterGradients. Samples have state_cotangents.
  absl::Status Add(std::span<const ParameterSample> samples, std::span<float* const> sums,
                   const CancelToken* token, absl::FunctionRef<void(double)> pause) const;

  // What a call allocates, at most.
  int64_t workspace_bytes() const;
  // Of the steps; the model's own are its owner's to count.
  int64_t memory_bytes() const;

 private:
  using Pass = program::ParameterPass;

  std::vector<program::ParameterRows> RowsOfSteps(std::span<const ParameterSample> samples) const;
  int64_t BlocksTogether(const Pass& pass) const;
  int64_t BytesOf(const Pass& pass) const;

  const std::shared_ptr<const ParameterModel> model_;
  const SystemShape shape_;
  ThreadPool* const pool_;
  std::vector<ReverseStep> reverse_;  // [L], or empty
  double clip_range_ = 0;
  int64_t noise_size_ = 0;  // of a step, where the network gives the scale of its noise
  const Pass step_;
  std::optional<const Pass> encode_, decode_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PARAMETER_SUMMER_H_
