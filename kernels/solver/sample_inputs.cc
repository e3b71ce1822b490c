// SPDX-License-Identifier: Apache-2.0
#include "kernels/solver/sample_inputs.h"

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

// Checks the inputs that only systems that draw noise take.
absl::Status CheckNoise(const SampleInputs& samples, const SystemShape& shape) {
  const int64_t n = samples.num_samples;
  const int64_t noise = (samples.same_noise ? 1 : n) * shape.sample_dim();
  DEEPPCR_RETURN_IF_ERROR(
      CheckItemSize("labels", samples.labels.size(), shape.num_classes > 0 ? n : 0));
  for (const int32_t label : samples.labels) {
    if (label < 0 || label >= shape.num_classes)
      return InvalidArgument("run item: labels: expected 0 .. ", shape.num_classes - 1, ", got ",
                             label);
  }
  if (!samples.initial_noise.empty())
    DEEPPCR_RETURN_IF_ERROR(CheckItemSize("initial_noise", samples.initial_noise.size(), noise));
  if (samples.step_noise.empty()) return absl::OkStatus();
  return CheckItemSize("step_noise", samples.step_noise.size(), shape.num_steps * noise);
}

}  // namespace

absl::Status CheckItemSize(std::string_view what, size_t got, int64_t expected) {
  if (static_cast<int64_t>(got) == expected) return absl::OkStatus();
  return InvalidArgument("run item: ", what, ": expected ", expected, " values, got ", got);
}

absl::Status CheckSamples(const SampleInputs& samples, const SystemShape& shape) {
  const int64_t n = samples.num_samples;
  if (n < 1) return InvalidArgument("run item: num_samples: expected at least 1, got ", n);
  DEEPPCR_RETURN_IF_ERROR(CheckItemSize("inputs", samples.inputs.size(), n * shape.input_dim));
  return shape.draws_noise ? CheckNoise(samples, shape) : absl::OkStatus();
}

SampleInputs SamplesOf(const SampleInputs& all, int64_t first, int64_t n) {
  const auto rows = [&](auto span) {
    const size_t row = span.size() / static_cast<size_t>(all.num_samples);
    return span.subspan(static_cast<size_t>(first) * row, static_cast<size_t>(n) * row);
  };
  const auto noise = [&](std::span<const float> span) {
    return all.same_noise ? span : rows(span);
  };
  return {.num_samples = n,
          .inputs = rows(all.inputs),
          .seed = all.seed,
          .first_sample = all.first_sample + (all.same_noise ? 0 : static_cast<uint64_t>(first)),
          .labels = rows(all.labels),
          .initial_noise = noise(all.initial_noise),
          .step_noise = noise(all.step_noise),
          .same_noise = all.same_noise,
          .initial_states = rows(all.initial_states)};
}

SampleInput InputOf(const SampleInputs& all, int64_t i, const CancelToken* token) {
  const SampleInputs one = SamplesOf(all, i, 1);
  const auto data = [](std::span<const float> row) { return row.empty() ? nullptr : row.data(); };
  return {.inputs = data(one.inputs),
          .label = one.labels.empty() ? 0 : one.labels.front(),
          .seed = one.seed,
          .sample = one.first_sample,
          .initial_noise = data(one.initial_noise),
          .step_noise = data(one.step_noise),
          .token = token};
}

OwnedSampleInputs::OwnedSampleInputs(const SampleInputs& samples)
    : num_samples_(samples.num_samples),
      seed_(samples.seed),
      first_sample_(samples.first_sample),
      same_noise_(samples.same_noise),
      inputs_(samples.inputs.begin(), samples.inputs.end()),
      initial_noise_(samples.initial_noise.begin(), samples.initial_noise.end()),
      step_noise_(samples.step_noise.begin(), samples.step_noise.end()),
      labels_(samples.labels.begin(), samples.labels.end()) {}

SampleInputs OwnedSampleInputs::View() const {
  return {.num_samples = num_samples_,
          .inputs = inputs_,
          .seed = seed_,
          .first_sample = first_sample_,
          .labels = labels_,
          .initial_noise = initial_noise_,
          .step_noise = step_noise_,
          .same_noise = same_noise_};
}

}  // namespace deeppcr
