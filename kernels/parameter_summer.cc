// SPDX-License-Identifier: Apache-2.0
#include "kernels/parameter_summer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>
#include <variant>

#include "kernels/base/status_macros.h"

namespace deeppcr {
namespace {

using Clock = std::chrono::steady_clock;
using program::ParameterPass;
using program::ParameterRows;

// Bytes of the blocks that are computed together, unless one takes more.
constexpr int64_t kMostBytes = int64_t{256} << 20;
// Seconds between two pauses.
constexpr double kBetweenPauses = 0.03;

absl::Status StatusOf(const CancelToken* token) {
  if (!Fired(token)) return absl::OkStatus();
  return token->stop_reason() == StopReason::kDeadline
             ? absl::DeadlineExceededError("the deadline passed while gradients were summed")
             : absl::CancelledError("cancelled while gradients were summed");
}

// Takes blocks through a program, some at a time, and adds what they give in their order.
class Summation {
 public:
  Summation(ThreadPool& pool, std::span<float* const> sums, const CancelToken* token,
            absl::FunctionRef<void(double)> pause)
      : pool_(pool), sums_(sums), token_(token), pause_(pause), paused_(Clock::now()) {}

  absl::Status Run(const ParameterPass& pass, std::span<const ParameterRows> rows,
                   int64_t together) {
    const ParameterPass::Shared shared(pass);
    std::vector<ParameterPass::Block> blocks;
    blocks.reserve(static_cast<size_t>(together));
    for (int64_t i = 0; i < std::min(together, std::ssize(rows)); ++i) blocks.emplace_back(pass);
    while (!rows.empty()) {
      PauseIfDue();
      DEEPPCR_RETURN_IF_ERROR(StatusOf(token_));
      const size_t count = std::min(rows.size(), blocks.size());
      std::atomic<bool> whole{true};
      auto run = [&](int64_t i) {
        const auto at = static_cast<size_t>(i);
        if (!pass.Run(rows[at], shared, token_, &blocks[at])) whole = false;
      };
      pool_.ParallelFor(static_cast<int64_t>(count), run);
      if (!whole) return StatusOf(token_);
      auto add = [&](int64_t piece) {
        pass.Add(piece, std::span(blocks).first(count), shared, sums_);
      };
      pool_.ParallelFor(pass.num_pieces(), add);
      rows = rows.subspan(count);
    }
    return absl::OkStatus();
  }

 private:
  void PauseIfDue() {
    const double seconds = std::chrono::duration<double>(Clock::now() - paused_).count();
    if (seconds < kBetweenPauses) return;
    pause_(seconds);
    paused_ = Clock::now();
  }

  ThreadPool& pool_;
  const std::span<float* const> sums_;
  const CancelToken* const token_;
  const absl::FunctionRef<void(double)> pause_;
  Clock::time_point paused_;
};

}  // namespace

ParameterSummer::ParameterSummer(std::shared_ptr<const ParameterModel> model,
                                 const SystemSpec& spec, ThreadPool* pool)
    : model_(std::move(model)), shape_(ShapeOf(spec)), pool_(pool), step_(model_->step) {
  if (model_->encode.has_value()) encode_.emplace(*model_->encode);
  if (model_->decode.has_value()) decode_.emplace(*model_->decode);
  std::visit(
      [this](const auto& of) {
        if constexpr (requires { of.steps; }) {
          reverse_.assign(of.steps.begin(), of.steps.end());
          clip_range_ = of.clip_range;
          if (of.form.noise_scale != NoiseScale::kFixed) noise_size_ = shape_.sample_dim();
        }
      },
      spec);
}

std::vector<ParameterRows> ParameterSummer::RowsOfSteps(
    std::span<const ParameterSample> samples) const {
  std::vector<ParameterRows> rows;
  const int64_t steps = shape_.num_steps, dim = shape_.state_dim;
  for (const ParameterSample& sample : samples) {
    for (int64_t first = 0; first < steps; first += step_.rows()) {
      ParameterRows some = {
          .first = first,
          .count = std::min(step_.rows(), steps - first),
          .states = sample.states + first * dim,
          .cotangents = sample.state_cotangents + first * dim,
          .clip_range = clip_range_,
          .condition = sample.inputs,
          .label = static_cast<double>(sample.label),
          .noise_size = noise_size_,
          .noise = sample.step_noise == nullptr ? nullptr : sample.step_noise + first * noise_size_,
          .seed = sample.seed,
          .sample = sample.sample};
      if (!reverse_.empty())
        some.reverse = std::span(reverse_).subspan(static_cast<size_t>(first),
                                                   static_cast<size_t>(some.count));
      rows.push_back(some);
    }
  }
  return rows;
}

absl::Status ParameterSummer::Add(std::span<const ParameterSample> samples,
                                  std::span<float* const> sums, const CancelToken* token,
                                  absl::FunctionRef<void(double)> pause) const {
  Summation summation(*pool_, sums, token, pause);
  DEEPPCR_RETURN_IF_ERROR(summation.Run(step_, RowsOfSteps(samples), BlocksTogether(step_)));
  std::vector<ParameterRows> of_inputs, of_outputs;
  for (const ParameterSample& sample : samples) {
    of_inputs.push_back({.states = sample.inputs, .cotangents = sample.encode_delta});
    of_outputs.push_back({.states = sample.states + shape_.num_steps * shape_.state_dim,
                          .cotangents = sample.decode_delta});
  }
  if (encode_.has_value())
    DEEPPCR_RETURN_IF_ERROR(summation.Run(*encode_, of_inputs, BlocksTogether(*encode_)));
  if (!decode_.has_value()) return absl::OkStatus();
  return summation.Run(*decode_, of_outputs, BlocksTogether(*decode_));
}

int64_t ParameterSummer::BlocksTogether(const Pass& pass) const {
  const int64_t fit = kMostBytes / std::max<int64_t>(1, pass.BlockBytes());
  return std::clamp<int64_t>(fit, 1, pool_->num_threads());
}

int64_t ParameterSummer::BytesOf(const Pass& pass) const {
  return pass.SharedBytes() + BlocksTogether(pass) * pass.BlockBytes();
}

int64_t ParameterSummer::workspace_bytes() const {
  int64_t most = BytesOf(step_);
  for (const std::optional<const Pass>* layers : {&encode_, &decode_})
    if (layers->has_value()) most = std::max(most, BytesOf(**layers));
  return most;
}

int64_t ParameterSummer::memory_bytes() const {
  return std::ssize(reverse_) * int64_t{sizeof(ReverseStep)};
}

}  // namespace deeppcr
