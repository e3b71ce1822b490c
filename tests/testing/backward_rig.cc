// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/backward_rig.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <variant>

#include "kernels/solver/backward.h"

namespace deeppcr::testing {
namespace {

template <class T>
T ValueOrDie(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "backward rig: %s\n", value.status().ToString().c_str());
  std::abort();
}

bool Same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// One request on its way, with memory for what it gives.
class Journey {
 public:
  Journey(const SystemShape& shape, const BackwardRequest& request)
      : shape_(shape), request_(request), m_(request.columns) {
    const int64_t n = request.samples.num_samples;
    made_.inputs.resize(n * m_ * shape.input_dim);
    made_.initial.resize(n * m_ * shape.sample_dim());
    if (shape.draws_noise) made_.step_noise.resize(n * m_ * shape.num_steps * shape.sample_dim());
    if (request.deltas) made_.deltas.resize(n * shape.num_steps * shape.state_dim);
    if (request.state_cotangents)
      made_.state_cotangents.resize(n * shape.num_steps * shape.state_dim);
    for (int64_t b = 0; b < n; ++b) inputs_.push_back(InputOf(request.samples, b, nullptr));
  }

  void Begin(BackwardSpace& space, int32_t as, int64_t b) {
    const auto part = [&](std::vector<float>& all, int64_t size) {
      return all.empty() ? nullptr : all.data() + b * m_ * size;
    };
    const int64_t states = (shape_.num_steps + 1) * shape_.state_dim;
    space.Begin(as, {.input = &inputs_[b],
                     .states = request_.states.data() + b * states,
                     .columns = m_,
                     .of_outputs = request_.of_outputs.data() + b * m_ * shape_.output_dim,
                     .inputs = part(made_.inputs, shape_.input_dim),
                     .initial = part(made_.initial, shape_.sample_dim()),
                     .step_noise = part(made_.step_noise, shape_.num_steps * shape_.sample_dim()),
                     .deltas = part(made_.deltas, shape_.num_steps * shape_.state_dim),
                     .state_cotangents =
                         part(made_.state_cotangents, shape_.num_steps * shape_.state_dim)});
  }
  Gradients& made() { return made_; }

 private:
  const SystemShape& shape_;
  const BackwardRequest& request_;
  const int64_t m_;
  std::vector<SampleInput> inputs_;
  Gradients made_;
};

}  // namespace

bool Gradients::SameBits(const Gradients& other) const {
  return Same(inputs, other.inputs) && Same(initial, other.initial) &&
         Same(step_noise, other.step_noise) && Same(deltas, other.deltas) &&
         Same(state_cotangents, other.state_cotangents);
}

BackwardRig::BackwardRig(std::unique_ptr<Backend> backend, const SystemSpec& spec)
    : shape_(ShapeOf(spec)),
      backend_(std::move(backend)),
      system_(ValueOrDie(backend_->NewSystem(spec, {.backward = true}))) {}

Gradients BackwardRig::Sequential(const BackwardRequest& request) const {
  const auto n = static_cast<int32_t>(request.samples.num_samples);
  const auto space = ValueOrDie(
      system_->NewBackwardSpace({.samples = n, .columns = request.columns, .parallel = false}));
  Journey journey(shape_, request);
  for (int32_t b = 0; b < n; ++b) journey.Begin(*space, b, b);
  const std::vector<const CancelToken*> tokens(n, nullptr);
  journey.made().count = GoBackSequentially(*space, shape_.num_steps, tokens);
  for (int32_t b = 0; b < n; ++b) space->Finish(b);
  return std::move(journey.made());
}

Gradients BackwardRig::Parallel(const BackwardRequest& request, int64_t shooting_interval) const {
  const auto space = ValueOrDie(system_->NewBackwardSpace(
      {.columns = request.columns, .min_shooting_interval = shooting_interval}));
  Journey journey(shape_, request);
  for (int64_t b = 0; b < request.samples.num_samples; ++b) {
    journey.Begin(*space, 0, b);
    journey.made().count = GoBackByScan(*space, 1, shooting_interval);
    space->Finish(0);
  }
  return std::move(journey.made());
}

bool BackwardRig::ScansTogether() const {
  const auto space = ValueOrDie(system_->NewBackwardSpace({}));
  return std::holds_alternative<BackwardScan*>(space->scan());
}

Gradients BackwardRig::ScannedTogether(const BackwardRequest& request,
                                       int64_t shooting_interval) const {
  const auto n = static_cast<int32_t>(request.samples.num_samples);
  const auto space =
      ValueOrDie(system_->NewBackwardSpace({.scanned_samples = n,
                                            .columns = request.columns,
                                            .min_shooting_interval = shooting_interval}));
  Journey journey(shape_, request);
  for (int32_t b = 0; b < n; ++b) journey.Begin(*space, b, b);
  journey.made().count = GoBackByScan(*space, n, shooting_interval);
  for (int32_t b = 0; b < n; ++b) space->Finish(b);
  return std::move(journey.made());
}

}  // namespace deeppcr::testing
