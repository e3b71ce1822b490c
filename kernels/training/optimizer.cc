// SPDX-License-Identifier: Apache-2.0
#include "kernels/training/optimizer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/base/finite.h"
#include "kernels/base/strings.h"

namespace deeppcr::training {
namespace {

// Elements of a piece of work: some ten microseconds.
constexpr int64_t kElementsOfPiece = 1 << 14;
// Gradients beyond have squares, or sums of them, beyond the range of float.
constexpr double kLargestNorm = 1e18;

// Arrays that do not overlap.
struct Elements {
  int64_t count;
  const float* gradient;
  float scale;  // of the gradient
  const float *from, *first_from, *second_from;
  float *to, *first_to, *second_to;
};

// The momentum of what gets no gradient any more would stay at the smallest floats for ever, as
// these are rounded to themselves, and many processors take a hundred times as long for those below
// the normal range. (Squares do not: they fade a hundred times as slowly, and divide.)
float Normal(float moment) {
  return std::fabs(moment) < std::numeric_limits<float>::min() ? 0.0F : moment;
}

void UpdateSgd(const Elements e, float momentum, float decay, float rate) {
#pragma GCC ivdep
  for (int64_t i = 0; i < e.count; ++i) {
    const float g = e.scale * e.gradient[i] + decay * e.from[i];
    e.first_to[i] = Normal(momentum * e.first_from[i] + g);
    e.to[i] = e.from[i] - rate * e.first_to[i];
  }
}

struct AdamStep {
  float beta1, beta2, epsilon;
  float decay_of_gradient;  // adam
  float shrink;             // adamw: 1 - rate * weight_decay
  float rate;               // over the bias correction of the mean
  float inverse_root;       // 1 over the root of the bias correction of the squares
};

void UpdateAdam(const Elements e, const AdamStep s) {
#pragma GCC ivdep
  for (int64_t i = 0; i < e.count; ++i) {
    const float g = e.scale * e.gradient[i] + s.decay_of_gradient * e.from[i];
    const float first = Normal(s.beta1 * e.first_from[i] + (1 - s.beta1) * g);
    const float second = s.beta2 * e.second_from[i] + (1 - s.beta2) * g * g;
    e.first_to[i] = first;
    e.second_to[i] = second;
    const float size = std::sqrt(second) * s.inverse_root + s.epsilon;
    e.to[i] = s.shrink * e.from[i] - s.rate * (first / size);
  }
}

}  // namespace

std::string_view ToString(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return "sgd";
    case OptimizerKind::kAdam:
      return "adam";
    case OptimizerKind::kAdamW:
      return "adamw";
  }
  return "unknown";
}

absl::StatusOr<OptimizerKind> ParseOptimizerKind(std::string_view name) {
  for (const OptimizerKind kind :
       {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW})
    if (name == ToString(kind)) return kind;
  return InvalidArgument("optimizer: expected sgd, adam or adamw, got ", Quoted(name));
}

Optimizer::Optimizer(const ParameterLayout& layout, const OptimizerOptions& options,
                     std::vector<float> parameters)
    : options_(options), tensors_(layout.tensors().begin(), layout.tensors().end()) {
  state_.parameters = std::move(parameters);
  state_.first.resize(layout.size());
  if (options.kind != OptimizerKind::kSgd) state_.second.resize(layout.size());
  next_ = state_;
}

// Eight partial sums, which the compiler keeps in vectors.
double Optimizer::NormOf(std::span<const float> gradient) {
  std::array<double, 8> sums = {};
  size_t i = 0;
  for (; i + sums.size() <= gradient.size(); i += sums.size())
    for (size_t k = 0; k < sums.size(); ++k) {
      const double g = gradient[i + k];
      sums[k] += g * g;
    }
  for (; i < gradient.size(); ++i) sums[i % sums.size()] += double{gradient[i]} * gradient[i];
  double sum = 0;
  for (const double part : sums) sum += part;
  return std::sqrt(sum);
}

bool Optimizer::Update(std::span<const float> gradient, double norm, double learning_rate,
                       ThreadPool& pool) {
  if (!(norm <= kLargestNorm)) return false;
  const bool clips = options_.clip_norm > 0 && norm > options_.clip_norm;
  const auto scale = static_cast<float>(clips ? options_.clip_norm / norm : 1.0);
  std::atomic<bool> finite = true;
  for (const ParameterTensor& tensor : tensors_) {
    const auto decay = NarrowToFloat(tensor.is_bias() ? 0 : options_.weight_decay);
    const int64_t end = tensor.offset + tensor.size;
    auto piece = [&](int64_t p) {
      const int64_t begin = tensor.offset + p * kElementsOfPiece;
      if (!UpdatePart(gradient, scale, learning_rate, decay, begin,
                      std::min(begin + kElementsOfPiece, end)))
        finite = false;
    };
    pool.ParallelFor((tensor.size - 1) / kElementsOfPiece + 1, piece);
  }
  if (!finite) return false;
  next_.updates = state_.updates + 1;
  std::swap(state_, next_);
  return true;
}

bool Optimizer::UpdatePart(std::span<const float> gradient, float scale, double learning_rate,
                           float weight_decay, int64_t begin, int64_t end) {
  const bool sgd = options_.kind == OptimizerKind::kSgd;
  const Elements elements = {.count = end - begin,
                             .gradient = gradient.data() + begin,
                             .scale = scale,
                             .from = state_.parameters.data() + begin,
                             .first_from = state_.first.data() + begin,
                             .second_from = sgd ? nullptr : state_.second.data() + begin,
                             .to = next_.parameters.data() + begin,
                             .first_to = next_.first.data() + begin,
                             .second_to = sgd ? nullptr : next_.second.data() + begin};
  if (sgd) {
    UpdateSgd(elements, static_cast<float>(options_.momentum), weight_decay,
              NarrowToFloat(learning_rate));
  } else {
    const auto t = static_cast<double>(state_.updates + 1);
    const bool decoupled = options_.kind == OptimizerKind::kAdamW;
    UpdateAdam(elements, {.beta1 = static_cast<float>(options_.beta1),
                          .beta2 = static_cast<float>(options_.beta2),
                          .epsilon = NarrowToFloat(options_.epsilon),
                          .decay_of_gradient = decoupled ? 0 : weight_decay,
                          .shrink = NarrowToFloat(decoupled ? 1 - learning_rate * weight_decay : 1),
                          .rate = NarrowToFloat(learning_rate / (1 - std::pow(options_.beta1, t))),
                          .inverse_root =
                              static_cast<float>(1 / std::sqrt(1 - std::pow(options_.beta2, t)))});
  }
  const auto finite = [&](const std::vector<float>& values) {
    return AllFinite(std::span(values).subspan(begin, end - begin));
  };
  return finite(next_.parameters) && finite(next_.first) && (sgd || finite(next_.second));
}

}  // namespace deeppcr::training
