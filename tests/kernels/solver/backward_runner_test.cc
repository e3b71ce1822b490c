// SPDX-License-Identifier: Apache-2.0
// Backward passes of whole requests: divided among threads and columns, stopped, refused, summed
// up.
#include "kernels/solver/backward_runner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/reference/reference_backend.h"
#include "kernels/reference/reference_ops.h"
#include "tests/testing/backward_rig.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

constexpr int64_t kSteps = 50, kDim = 6, kInputs = 4, kOutputs = 3;

std::vector<float> Normals(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(n);
  for (float& x : numbers) x = normal(random);
  return numbers;
}

RandomSystem Stack() {
  return RandomSystem({.num_steps = kSteps,
                       .state_dim = kDim,
                       .residual = true,
                       .activation = Activation::kGelu,
                       .gain = 0.2,
                       .input_dim = kInputs,
                       .output_dim = kOutputs,
                       .seed = 5});
}

// A request with memory for its results.
struct Request {
  Request(const RandomSystem& system, const BackendCase& backend, int64_t n, int64_t columns)
      : m(columns),
        x(system.Inputs(n, 9)),
        of_outputs(Normals(n * m * kOutputs, 2)),
        inputs(n * m * kInputs),
        initial(n * m * kDim),
        reports(n) {
    const SolverRig forward(backend.create(), system.spec(), 1, kSteps);
    states = forward.Solve({.solver = "sequential"}, x).trajectory;
  }
  SampleInputs samples() const {
    return {.num_samples = static_cast<int64_t>(reports.size()), .inputs = x};
  }
  BackwardItem item() {
    return {.samples = samples(),
            .states = states,
            .columns = m,
            .of_outputs = of_outputs,
            .inputs = inputs,
            .initial = initial,
            .reports = reports};
  }
  BackwardRequest Plain() const {
    return {.samples = samples(), .states = states, .columns = m, .of_outputs = of_outputs};
  }

  int64_t m;
  std::vector<float> x, states, of_outputs, inputs, initial;
  std::vector<BackwardReport> reports;
};

class BackwardRunnerTest : public ::testing::TestWithParam<size_t> {
 protected:
  const BackendCase& backend() const { return BackendCases()[GetParam()]; }

  // A runner with three threads.
  std::unique_ptr<BackwardRunner> NewRunner(const BackwardLimits& limits) {
    auto runner = BackwardRunner::Create(rig_.system(), rig_.shape(), limits, &pool_, 2);
    EXPECT_TRUE(runner.ok()) << runner.status();
    return *std::move(runner);
  }

  const RandomSystem stack_ = Stack();
  const BackwardRig rig_{backend().create(), stack_.spec()};
  ThreadPool pool_{3};
};

TEST_P(BackwardRunnerTest, DividedRequestsHaveTheBitsOfUndividedOnes) {
  for (const int64_t columns : {1, 5, 33}) {
    Request request(stack_, backend(), 11, columns);
    const Gradients expected = rig_.Sequential(request.Plain());
    const Gradients scanned = rig_.Parallel(request.Plain(), 8);
    for (const BackwardLimits& limits : {BackwardLimits{.samples = 4, .columns = 2},
                                         BackwardLimits{.samples = 1, .columns = 40}}) {
      const auto runner = NewRunner(limits);
      std::vector<BackwardItem> items = {request.item()};
      ASSERT_TRUE(runner->Run({}, items).ok());
      EXPECT_EQ(request.inputs, expected.inputs);
      EXPECT_EQ(request.initial, expected.initial);
      for (const BackwardReport& report : request.reports) {
        EXPECT_EQ(report.termination, Termination::kDirect);
        EXPECT_EQ(report.dependent_stages, kSteps);
        EXPECT_EQ(report.column_passes, columns);
      }
      ASSERT_TRUE(runner->Run({.way = BackwardWay::kParallel, .shooting_interval = 8}, items).ok());
      EXPECT_EQ(request.inputs, scanned.inputs);
      EXPECT_EQ(request.initial, scanned.initial);
      EXPECT_EQ(request.reports[0].dependent_stages, 2 * 8 + 2 * 3 - 1);
    }
  }
}

TEST_P(BackwardRunnerTest, SeveralRequestsGoBackInOneCall) {
  Request first(stack_, backend(), 3, 2), second(stack_, backend(), 5, 1);
  const auto runner = NewRunner({.samples = 2, .columns = 8});
  std::vector<BackwardItem> items = {first.item(), second.item()};
  ASSERT_TRUE(runner->Run({}, items).ok());
  EXPECT_EQ(first.inputs, rig_.Sequential(first.Plain()).inputs);
  EXPECT_EQ(second.inputs, rig_.Sequential(second.Plain()).inputs);
}

TEST_P(BackwardRunnerTest, BeginsNothingWhereTheTokenHasFired) {
  Request request(stack_, backend(), 2, 1);
  CancelToken token;
  token.Cancel();
  const auto runner = NewRunner({});
  for (const BackwardWay way : {BackwardWay::kSequential, BackwardWay::kParallel}) {
    BackwardItem item = request.item();
    item.token = &token;
    ASSERT_TRUE(runner->Run({.way = way, .shooting_interval = 1}, {&item, 1}).ok());
    for (const BackwardReport& report : request.reports) {
      EXPECT_EQ(report.termination, Termination::kCancelled);
      EXPECT_EQ(report.dependent_stages, 0);
    }
  }
}

TEST_P(BackwardRunnerTest, WhatIsNotFiniteIsSaid) {
  Request request(stack_, backend(), 2, 1);
  for (int64_t i = 0; i < kOutputs; ++i)
    request.of_outputs[i] = std::numeric_limits<float>::infinity();
  const auto runner = NewRunner({});
  BackwardItem item = request.item();
  ASSERT_TRUE(runner->Run({}, {&item, 1}).ok());
  EXPECT_EQ(request.reports[0].termination, Termination::kNonFinite);
  EXPECT_EQ(request.reports[1].termination, Termination::kDirect);
}

TEST_P(BackwardRunnerTest, WrongSizesAreRefused) {
  const auto runner = NewRunner({.min_shooting_interval = 4});
  const auto refused = [&](const auto& change, const BackwardOptions& options = {}) {
    Request request(stack_, backend(), 2, 3);
    BackwardItem item = request.item();
    change(item);
    return absl::IsInvalidArgument(runner->Run(options, {&item, 1}));
  };
  EXPECT_FALSE(refused([](BackwardItem&) {}));
  EXPECT_TRUE(refused([](BackwardItem& item) { item.columns = 0; }));
  EXPECT_TRUE(refused([](BackwardItem& item) { item.columns = 2; }));
  EXPECT_TRUE(refused([](BackwardItem& item) { item.states = item.states.subspan(1); }));
  EXPECT_TRUE(refused([](BackwardItem& item) { item.step_noise = item.initial; }));
  EXPECT_TRUE(refused([](BackwardItem& item) { item.deltas = item.initial; }));
  EXPECT_TRUE(refused([](BackwardItem& item) { item.state_cotangents = item.initial; }));
  EXPECT_TRUE(refused([](BackwardItem& item) { item.samples.num_samples = 0; }));
  for (const int64_t interval : {int64_t{-1}, int64_t{3}, kSteps + 1})
    EXPECT_TRUE(refused([](BackwardItem&) {},
                        {.way = BackwardWay::kParallel, .shooting_interval = interval}));
  EXPECT_TRUE(runner->Run({}, {}).code() == absl::StatusCode::kInvalidArgument);
}

TEST_P(BackwardRunnerTest, LimitsFollowTheMemory) {
  if (backend().name == "reference") return;  // does not count its memory
  const System& system = rig_.system();
  const auto of = [&](int64_t bytes) { return ChooseBackwardLimits(system, kSteps, bytes); };
  const auto all = of(int64_t{1} << 30);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->min_shooting_interval, 1);
  const int64_t least = system.BackwardSpaceBytes({.parallel = false});
  const auto one = of(least);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_FALSE(one->parallel);
  EXPECT_EQ(one->samples, 1);
  EXPECT_EQ(one->columns, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(of(least - 1).status()));
  for (int64_t bytes = least; bytes < system.BackwardSpaceBytes(*all); bytes += bytes / 3)
    EXPECT_LE(system.BackwardSpaceBytes(*of(bytes)), bytes);
}

TEST_P(BackwardRunnerTest, ASystemPackedWithoutHasNone) {
  if (backend().name == "reference") return;  // has everything always
  const auto system = *backend().create()->NewSystem(stack_.spec());
  EXPECT_TRUE(absl::IsUnimplemented(system->NewBackwardSpace({}).status()));
}

// The gradients of all parameters of a loss, sum of outputs times of_outputs, by differences of the
// reference's forward map in double.
TEST_P(BackwardRunnerTest, ParametersAreThoseOfDifferences) {
  if (backend().name == "cpu_programs") return;  // step programs have none
  constexpr int64_t kSamples = 5;
  Request request(stack_, backend(), kSamples, 1);
  std::vector<float> deltas(kSamples * kSteps * kDim), encode_deltas(kSamples * kDim);
  BackwardItem item = request.item();
  item.deltas = deltas;
  item.encode_deltas = encode_deltas;
  ASSERT_TRUE(NewRunner({.samples = 2})->Run({}, {&item, 1}).ok());
  std::vector<ParameterSample> samples;
  for (int64_t b = 0; b < kSamples; ++b)
    samples.push_back({.inputs = request.x.data() + b * kInputs,
                       .states = request.states.data() + b * (kSteps + 1) * kDim,
                       .deltas = deltas.data() + b * kSteps * kDim,
                       .encode_delta = encode_deltas.data() + b * kDim,
                       .decode_delta = request.of_outputs.data() + b * kOutputs});
  struct Sums {
    std::vector<float> weights = std::vector<float>(kSteps * kDim * kDim),
                       biases = std::vector<float>(kSteps * kDim),
                       encode_weight = std::vector<float>(kDim * kInputs),
                       encode_bias = std::vector<float>(kDim),
                       decode_weight = std::vector<float>(kOutputs * kDim),
                       decode_bias = std::vector<float>(kOutputs);
    ParameterSums view() {
      return {weights.data(),     biases.data(),        encode_weight.data(),
              encode_bias.data(), decode_weight.data(), decode_bias.data()};
    }
    bool operator==(const Sums&) const = default;
  };
  Sums sums, divided;
  ASSERT_TRUE(rig_.system().AddParameterGradients(samples, 0, kSteps, sums.view()).ok());
  for (int64_t l = 0; l < kSteps; l += 7)
    ASSERT_TRUE(rig_.system()
                    .AddParameterGradients(samples, l, std::min(l + 7, kSteps), divided.view())
                    .ok());
  EXPECT_TRUE(sums == divided) << "bits depend on how the layers are divided";

  DenseStackSpec spec = stack_.spec();
  const auto loss = [&] {
    double sum = 0;
    for (int64_t b = 0; b < kSamples; ++b) {
      const std::vector<double> x(request.x.begin() + b * kInputs,
                                  request.x.begin() + (b + 1) * kInputs);
      const std::vector<double> states = reference::Trajectory(spec, reference::Encode(spec, x));
      const std::vector<double> y = reference::Decode(spec, std::span(states).last(kDim));
      for (int64_t i = 0; i < kOutputs; ++i) sum += y[i] * request.of_outputs[b * kOutputs + i];
    }
    return sum;
  };
  // Parameters are floats, so that a difference is taken over their neighbours at some distance.
  const auto check = [&](std::span<const float>* parameters, const std::vector<float>& gradient,
                         const char* what) {
    std::vector<float> changed(parameters->begin(), parameters->end());
    const std::span<const float> before = std::exchange(*parameters, changed);
    double scale = 0;
    for (const float g : gradient) scale = std::max(scale, std::fabs(double{g}));
    for (size_t i = 0; i < gradient.size(); i += 1 + gradient.size() / 40) {
      const float kept = changed[i];
      const float high = changed[i] = kept + 0x1p-9F;
      const double above = loss();
      const float low = changed[i] = kept - 0x1p-9F;
      const double below = loss();
      changed[i] = kept;
      const double difference = (above - below) / (double{high} - low);
      EXPECT_NEAR(gradient[i], difference, 1e-4 * scale) << what << " " << i;
    }
    *parameters = before;
  };
  check(&spec.weights, sums.weights, "weights");
  check(&spec.biases, sums.biases, "biases");
  check(&spec.encode.weight, sums.encode_weight, "encode weight");
  check(&spec.encode.bias, sums.encode_bias, "encode bias");
  check(&spec.decode.weight, sums.decode_weight, "decode weight");
  check(&spec.decode.bias, sums.decode_bias, "decode bias");
}

INSTANTIATE_TEST_SUITE_P(Backends, BackwardRunnerTest,
                         ::testing::Range<size_t>(0, BackendCases().size()),
                         [](const auto& c) { return BackendCases()[c.param].name; });

}  // namespace
}  // namespace deeppcr::testing
