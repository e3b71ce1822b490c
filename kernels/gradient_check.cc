// SPDX-License-Identifier: Apache-2.0
#include "kernels/gradient_check.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/finite.h"
#include "kernels/base/same_bits.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/engine.h"
#include "kernels/resolve.h"
#include "kernels/solver/registry.h"

namespace deeppcr {
namespace {

constexpr int64_t kCheckedSamples = 3;
constexpr int64_t kCheckedColumns = 3;
// Limit on a difference that rounding explains, relative to the largest element of a cotangent, and
// how often the difference of the oracle's two ways may explain it. Slopes of units that are all
// saturated differ by more than states do.
constexpr double kTolerance = 1e-3;
constexpr double kOfBothWays = 16;
// The same of sums of products.
constexpr double kSumTolerance = 1e-5;
// Size of a cotangent that has vanished: rounding may have the whole of it.
constexpr double kLeastSize = 1e-30;

template <typename... Args>
absl::Status Wrong(const Args&... args) {
  return absl::DataLossError(StrCat(args...));
}

std::vector<float> Normals(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(n);
  for (float& x : numbers) x = normal(random);
  return numbers;
}

// Results of n samples.
struct Answer {
  std::vector<float> inputs, initial, step_noise;  // as in BackwardItem
  std::vector<float> deltas, encode_deltas;        // where the system has them
  std::vector<BackwardReport> reports;
};

// Results of one sample, in a list of arrays with the sizes of their rows.
struct Rows {
  std::span<const float> values;
  int64_t size;
};

// The largest difference of a row of `size` values relative to the row's largest expected one; NaN
// where either has one.
double Difference(const Rows& got, const Rows& expected) {
  double worst = 0;
  for (size_t at = 0; at < expected.values.size(); at += static_cast<size_t>(expected.size)) {
    double off = 0, size = kLeastSize;
    for (size_t i = at; i < at + static_cast<size_t>(expected.size); ++i) {
      const double difference = std::fabs(double{got.values[i]} - expected.values[i]);
      if (!(difference <= off)) off = difference;
      size = std::max(size, std::fabs(double{expected.values[i]}));
    }
    if (const double relative = off / size; !(relative <= worst)) worst = relative;
  }
  return worst;
}

class Checker {
 public:
  explicit Checker(const GradientCheck& check)
      : check_(check),
        shape_(check.shape),
        n_(std::min(kCheckedSamples, check.inputs.count)),
        samples_(CalibrationSamples(check.inputs, check.shape, 0, n_)),
        of_outputs_(Normals(n_ * kCheckedColumns * shape_.output_dim, 1)) {}

  absl::Status CheckAll() {
    DEEPPCR_RETURN_IF_ERROR(Solve());
    // Gradients at states that have overflowed are nothing to compare.
    if (!AllFinite(states_)) return absl::OkStatus();
    DEEPPCR_RETURN_IF_ERROR(AskOracle());
    for (const BackwardOptions& options : Ways()) DEEPPCR_RETURN_IF_ERROR(CheckWay(options));
    return CheckParameters();
  }

 private:
  absl::Status Solve() {
    states_.resize(n_ * (shape_.num_steps + 1) * shape_.state_dim);
    std::vector<float> outputs(n_ * shape_.output_dim);
    std::vector<SampleReport> reports(n_);
    RunItem item{.samples = samples_.View(),
                 .outputs = outputs,
                 .trajectory = states_,
                 .reports = reports,
                 .token = check_.token};
    const ResolvedOptions sequential{.solver = "sequential"};
    DEEPPCR_RETURN_IF_ERROR(check_.runner.Run(sequential, {&item, 1}, nullptr));
    return Fired(check_.token) ? Stopped() : absl::OkStatus();
  }
  static absl::Status Stopped() { return absl::CancelledError("stopped during the self-check"); }

  // Samples [first, first + n) back, with m cotangents each: the first ones of those drawn.
  absl::StatusOr<Answer> GoBack(const BackwardRunner& runner, const BackwardOptions& options,
                                int64_t first, int64_t n, int64_t m) const {
    const int64_t states = (shape_.num_steps + 1) * shape_.state_dim;
    std::vector<float> of_outputs;
    for (int64_t b = first; b < first + n; ++b) {
      const auto from = of_outputs_.begin() + b * kCheckedColumns * shape_.output_dim;
      of_outputs.insert(of_outputs.end(), from, from + m * shape_.output_dim);
    }
    Answer answer{.inputs = std::vector<float>(n * m * shape_.input_dim),
                  .initial = std::vector<float>(n * m * shape_.sample_dim()),
                  .reports = std::vector<BackwardReport>(n)};
    if (shape_.draws_noise)
      answer.step_noise.resize(n * m * shape_.num_steps * shape_.sample_dim());
    if (shape_.has_parameter_gradients && m == 1) {
      answer.deltas.resize(n * shape_.num_steps * shape_.state_dim);
      if (shape_.has_input_layer) answer.encode_deltas.resize(n * shape_.state_dim);
    }
    BackwardItem item{.samples = SamplesOf(samples_.View(), first, n),
                      .states = std::span(states_).subspan(first * states, n * states),
                      .columns = m,
                      .of_outputs = of_outputs,
                      .inputs = answer.inputs,
                      .initial = answer.initial,
                      .step_noise = answer.step_noise,
                      .deltas = answer.deltas,
                      .encode_deltas = answer.encode_deltas,
                      .reports = answer.reports,
                      .token = check_.token};
    DEEPPCR_RETURN_IF_ERROR(runner.Run(options, {&item, 1}));
    if (Fired(check_.token)) return Stopped();
    return answer;
  }

  // What is compared of sample b of an answer for n samples.
  std::vector<Rows> RowsOf(const Answer& answer, int64_t b, int64_t n) const {
    std::vector<Rows> rows;
    const auto add = [&](const std::vector<float>& all, int64_t size) {
      const size_t part = all.size() / static_cast<size_t>(n);
      rows.push_back({std::span(all).subspan(part * static_cast<size_t>(b), part), size});
    };
    add(answer.inputs, shape_.input_dim);
    add(answer.initial, shape_.sample_dim());
    add(answer.step_noise, shape_.sample_dim());
    add(answer.deltas, shape_.state_dim);
    add(answer.encode_deltas, shape_.state_dim);
    return rows;
  }
  double Off(const Answer& got, const Answer& expected, int64_t b) const {
    const std::vector<Rows> rows = RowsOf(got, b, n_), of_expected = RowsOf(expected, b, n_);
    double worst = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const double off = Difference(rows[i], of_expected[i]);
      if (!(off <= worst)) worst = off;
    }
    return worst;
  }

  absl::Status AskOracle() {
    DEEPPCR_ASSIGN_OR_RETURN(
        const BackwardLimits limits,
        ChooseBackwardLimits(check_.oracle, shape_.num_steps, check_.max_oracle_bytes));
    DEEPPCR_ASSIGN_OR_RETURN(const std::unique_ptr<BackwardRunner> oracle,
                             BackwardRunner::Create(check_.oracle, shape_, limits, check_.pool, 1));
    DEEPPCR_ASSIGN_OR_RETURN(expected_, GoBack(*oracle, {}, 0, n_, kCheckedColumns));
    DEEPPCR_ASSIGN_OR_RETURN(expected_deltas_, GoBack(*oracle, {}, 0, n_, 1));
    explained_.assign(n_, kTolerance);
    if (!limits.parallel) return absl::OkStatus();
    DEEPPCR_ASSIGN_OR_RETURN(
        const BackwardOptions parallel,
        ResolveBackward({.way = BackwardWay::kParallel}, limits, shape_.num_steps));
    DEEPPCR_ASSIGN_OR_RETURN(const Answer other, GoBack(*oracle, parallel, 0, n_, kCheckedColumns));
    for (int64_t b = 0; b < n_; ++b)
      explained_[b] = std::max(kTolerance, kOfBothWays * Off(other, expected_, b));
    return absl::OkStatus();
  }

  // The ways to check: step by step, and scans of the usual interval, of one that divides the steps
  // badly, and of the shortest one, which has the most of a tree.
  std::vector<BackwardOptions> Ways() const {
    std::vector<BackwardOptions> ways = {{}};
    const BackwardLimits& limits = check_.backward.limits();
    if (!limits.parallel) return ways;
    const absl::StatusOr<BackwardOptions> usual =
        ResolveBackward({.way = BackwardWay::kParallel}, limits, shape_.num_steps);
    if (!usual.ok()) return ways;
    ways.push_back(*usual);
    BackwardOptions ragged = *usual;
    while (ragged.shooting_interval < shape_.num_steps &&
           shape_.num_steps % ragged.shooting_interval == 0)
      ++ragged.shooting_interval;
    BackwardOptions shortest = *usual;
    shortest.shooting_interval = limits.min_shooting_interval;
    if (ragged != *usual) ways.push_back(ragged);
    if (shortest != *usual) ways.push_back(shortest);
    return ways;
  }

  absl::Status CheckWay(const BackwardOptions& options) const {
    const std::string name = StrCat("the ", ToString(options.way), " backward pass");
    DEEPPCR_ASSIGN_OR_RETURN(const Answer answer,
                             GoBack(check_.backward, options, 0, n_, kCheckedColumns));
    DEEPPCR_ASSIGN_OR_RETURN(const Answer deltas, GoBack(check_.backward, options, 0, n_, 1));
    DEEPPCR_RETURN_IF_ERROR(Judge(name, "gradients", answer, expected_));
    DEEPPCR_RETURN_IF_ERROR(Judge(name, "deltas", deltas, expected_deltas_));
    DEEPPCR_RETURN_IF_ERROR(CheckBits(name, options, answer, kCheckedColumns));
    return CheckBits(name, options, deltas, 1);
  }

  // Of an answer for all samples with m cotangents.
  absl::Status CheckBits(const std::string& name, const BackwardOptions& options,
                         const Answer& answer, int64_t m) const {
    DEEPPCR_ASSIGN_OR_RETURN(const Answer again, GoBack(check_.backward, options, 0, n_, m));
    for (int64_t b = 0; b < n_; ++b) {
      DEEPPCR_ASSIGN_OR_RETURN(const Answer alone, GoBack(check_.backward, options, b, 1, m));
      if (!AllSameBits(RowsOf(again, b, n_), RowsOf(answer, b, n_)))
        return Wrong(name, " has other bits for sample ", b, " in a second run");
      if (!AllSameBits(RowsOf(alone, 0, 1), RowsOf(answer, b, n_)))
        return Wrong(name, " has other bits for sample ", b, " alone than among ", n_);
    }
    return absl::OkStatus();
  }

  // Samples whose cotangents have overflowed on both backends tell nothing.
  absl::Status Judge(const std::string& name, std::string_view what, const Answer& got,
                     const Answer& expected) const {
    double least = INFINITY;
    for (int64_t b = 0; b < n_; ++b) {
      const std::vector<Rows> rows = RowsOf(expected, b, n_);
      const auto finite = [](const Rows& of) { return AllFinite(of.values); };
      if (!std::ranges::all_of(rows, finite)) return absl::OkStatus();
      const double off = Off(got, expected, b);
      if (off <= explained_[b]) return absl::OkStatus();
      least = std::isnan(off) ? least : std::min(least, off);
    }
    return Wrong(what, " of ", name, " are off by ", least, " or more for each of ", n_,
                 " samples");
  }

  static bool AllSameBits(const std::vector<Rows>& a, const std::vector<Rows>& b) {
    return std::ranges::equal(
        a, b, [](const Rows& x, const Rows& y) { return SameBits(x.values, y.values); });
  }

  // ---- Gradients of parameters, from the oracle's deltas
  struct Sums {
    std::vector<float> weights, biases, encode_weight, encode_bias, decode_weight, decode_bias;
  };
  absl::StatusOr<Sums> Sum(const System& system) const {
    const int64_t dim = shape_.state_dim, steps = shape_.num_steps;
    const int64_t input = shape_.has_input_layer ? shape_.input_dim : 0;
    const int64_t output = shape_.has_output_layer ? shape_.output_dim : 0;
    Sums sums{.weights = std::vector<float>(steps * dim * dim),
              .biases = std::vector<float>(steps * dim),
              .encode_weight = std::vector<float>(dim * input),
              .encode_bias = std::vector<float>(input > 0 ? dim : 0),
              .decode_weight = std::vector<float>(output * dim),
              .decode_bias = std::vector<float>(output)};
    const SampleInputs inputs = samples_.View();
    std::vector<ParameterSample> samples;
    for (int64_t b = 0; b < n_; ++b)
      samples.push_back(
          {.inputs = inputs.inputs.data() + b * shape_.input_dim,
           .states = states_.data() + b * (steps + 1) * dim,
           .deltas = expected_deltas_.deltas.data() + b * steps * dim,
           .encode_delta = input > 0 ? expected_deltas_.encode_deltas.data() + b * dim : nullptr,
           .decode_delta = output > 0 ? Cotangent(b) : nullptr});
    DEEPPCR_RETURN_IF_ERROR(system.AddParameterGradients(
        samples, 0, steps,
        {.weights = sums.weights.data(),
         .biases = sums.biases.data(),
         .encode_weight = input > 0 ? sums.encode_weight.data() : nullptr,
         .encode_bias = input > 0 ? sums.encode_bias.data() : nullptr,
         .decode_weight = output > 0 ? sums.decode_weight.data() : nullptr,
         .decode_bias = output > 0 ? sums.decode_bias.data() : nullptr}));
    return sums;
  }
  // The first one of sample b. Output layers have no activation: it is their delta.
  const float* Cotangent(int64_t b) const {
    return of_outputs_.data() + b * kCheckedColumns * shape_.output_dim;
  }
  absl::Status CheckParameters() const {
    if (!shape_.has_parameter_gradients || !AllFinite(expected_deltas_.deltas))
      return absl::OkStatus();
    DEEPPCR_ASSIGN_OR_RETURN(const Sums got, Sum(check_.system));
    DEEPPCR_ASSIGN_OR_RETURN(const Sums expected, Sum(check_.oracle));
    const int64_t dim = shape_.state_dim;
    const auto off = [](const std::vector<float>& a, const std::vector<float>& b, int64_t size) {
      return Difference({a, std::max<int64_t>(1, size)}, {b, std::max<int64_t>(1, size)});
    };
    for (const double worst :
         {off(got.weights, expected.weights, dim * dim), off(got.biases, expected.biases, dim),
          off(got.encode_weight, expected.encode_weight, shape_.input_dim * dim),
          off(got.encode_bias, expected.encode_bias, dim),
          off(got.decode_weight, expected.decode_weight, shape_.output_dim * dim),
          off(got.decode_bias, expected.decode_bias, shape_.output_dim)}) {
      if (!(worst <= kSumTolerance)) return Wrong("gradients of parameters are off by ", worst);
    }
    return absl::OkStatus();
  }

  const GradientCheck& check_;
  const SystemShape& shape_;
  const int64_t n_;  // samples
  const OwnedSampleInputs samples_;
  const std::vector<float> of_outputs_;  // [n, kCheckedColumns, output_dim]
  std::vector<float> states_;            // [n, L + 1, D]
  Answer expected_, expected_deltas_;    // the oracle's, step by step
  std::vector<double> explained_;        // by rounding, for each sample
};

}  // namespace

absl::Status RunGradientCheck(const GradientCheck& check) { return Checker(check).CheckAll(); }

}  // namespace deeppcr
