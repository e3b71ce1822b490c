// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/diffusion/coarse_guess.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/cuda/diffusion/half_denoiser.h"
#include "kernels/cuda/diffusion/model.h"
#include "kernels/cuda/loop/block_shape.h"
#include "tests/testing/random_diffusion.h"
#include "tests/testing/simt/executor.h"
#include "tests/testing/simt/orders.h"
#include "tests/testing/simt/simt_device.h"

namespace deeppcr::testing {
namespace {

using simt::DeviceOptions;
using simt::NewSimtDevice;

// A process with noise and initial states of two samples, whose guesses are for intervals of
// `interval` steps.
class GuessRig {
 public:
  static constexpr int kSamples = 2;

  // `odd` is the noise of every 17th element.
  GuessRig(const RandomDiffusion& process, int32_t interval, const DeviceOptions& options = {},
           float odd = 1)
      : process_(process),
        options_(options),
        device_(NewSimtDevice(options)),
        model_(*cuda::DiffusionModel::Upload(*device_, process.spec(), {})) {
    cuda::DiffusionView view = model_.view();
    std::mt19937 generator(3);
    std::normal_distribution<float> normal;
    noise_.resize(static_cast<size_t>(kSamples * view.num_steps * view.state_dim));
    initial_.resize(static_cast<size_t>(kSamples) * view.width);
    for (float& x : noise_) x = normal(generator);
    for (size_t i = 11; i < noise_.size(); i += 17) noise_[i] = odd;
    for (int s = 0; s < kSamples; ++s)
      for (int i = 0; i < view.state_dim; ++i) initial_[s * view.width + i] = normal(generator);
    view.noise = noise_.data();
    view.table_of = tables_;
    args_ = {.process = view,
             .num_blocks = 1,
             .shooting_interval = interval,
             .num_intervals = static_cast<int32_t>((view.num_steps - 1) / interval + 1),
             .initial_states = initial_.data(),
             .guesses = nullptr,
             .staged_floats = 0};
  }

  // With the coefficients and the noise of steps in shared memory, or not.
  std::vector<float> Guess(bool staged) {
    std::vector<float> guesses = Prepare();
    const int32_t staged_floats = cuda::StagedFloats(args_.process, options_.limits);
    EXPECT_GT(staged_floats, 0);
    args_.staged_floats = staged ? staged_floats : 0;
    const auto stream = *device_->NewStream();
    stream->Launch(args_, kSamples);
    stream->Wait([] {});
    EXPECT_TRUE(stream->status().ok()) << stream->status();
    return guesses;
  }
  // The same in double precision, one step after another, of a residual denoiser with tanh.
  std::vector<double> PlainGuess() const {
    const cuda::DiffusionView& view = args_.process;
    const int64_t steps = view.num_steps, dim = view.state_dim, width = view.width;
    std::vector<double> guesses(kSamples * args_.num_intervals * width, 0.0);
    for (int s = 0; s < kSamples; ++s) {
      std::vector<double> z(initial_.begin() + s * width, initial_.begin() + s * width + dim), m;
      std::vector<double> x0(dim);
      for (int64_t l = 0; l < steps; ++l) {
        const ReverseStep& step = process_.spec().steps[l];
        if (l % CoarseStride(steps) == 0) {
          m = Predict(z, l);
          for (int64_t i = 0; i < dim; ++i) x0[i] = step.x0_m * m[i] + step.x0_z * z[i];
        }
        const double by_x0 = step.x0_m == 0 ? 0 : step.z_m / step.x0_m;
        const double range = process_.spec().clip_range;
        for (int64_t i = 0; i < dim; ++i)
          z[i] = (step.z_z - by_x0 * step.x0_z) * z[i] + by_x0 * x0[i] +
                 step.z_x0 * std::clamp(x0[i], -range, range) +
                 step.sigma * noise_[(s * steps + l) * dim + i];
        if ((l + 1) % args_.shooting_interval != 0 && l + 1 != steps) continue;
        const int64_t p = s * args_.num_intervals + l / args_.shooting_interval;
        std::copy(z.begin(), z.end(), guesses.begin() + p * width);
      }
    }
    return guesses;
  }
  int64_t StepFloats() const { return args_.process.StepFloats(1); }
  // With the network's layers as they are.
  std::vector<float> GuessOfFloats() {
    std::vector<float> guesses = Prepare();
    args_.staged_floats = 0;
    const simt::Outcome outcome = simt::Execute(
        {.num_clusters = kSamples,
         .num_threads = 64,
         .shared_bytes = cuda::CoarseBytes(args_.process)},
        options_.schedule,
        [&](simt::Thread& thread) { cuda::GuessCoarsely(cuda::BlockTeam(thread), args_); });
    EXPECT_EQ(outcome.trouble, "");
    return guesses;
  }

 private:
  std::vector<float> Prepare() {
    // What the kernel does not write stays.
    std::vector<float> guesses(
        static_cast<size_t>(kSamples) * args_.num_intervals * args_.process.width, 7.5F);
    args_.guesses = guesses.data();
    return guesses;
  }
  // The denoiser's output at step l.
  std::vector<double> Predict(const std::vector<double>& z, int64_t l) const {
    const DenoiserSpec& d = process_.spec().denoiser;
    const cuda::DenoiserView& view = args_.process.denoiser;
    const float* const modulation = args_.process.tables + l * view.modulation_floats();
    std::vector<double> hidden = Multiply(d.input.weight, z);
    for (int64_t r = 0; r < d.hidden_dim; ++r) hidden[r] += d.input.bias[r];
    for (int64_t b = 0; b < d.num_blocks; ++b) {
      const int64_t weights = d.hidden_dim * d.hidden_dim;
      const std::vector<double> a = Multiply(d.first_weight.subspan(b * weights, weights), hidden);
      for (int64_t r = 0; r < d.hidden_dim; ++r)
        hidden[r] += std::tanh(a[r] + modulation[b * view.hidden_width + r]);
    }
    std::vector<double> m = Multiply(d.output.weight, hidden);
    for (size_t i = 0; i < m.size(); ++i) m[i] += d.output.bias[i];
    return m;
  }
  static std::vector<double> Multiply(std::span<const float> matrix, const std::vector<double>& x) {
    std::vector<double> y(matrix.size() / x.size(), 0.0);
    for (size_t i = 0; i < matrix.size(); ++i) y[i / x.size()] += matrix[i] * x[i % x.size()];
    return y;
  }

  const RandomDiffusion& process_;
  const DeviceOptions options_;
  const std::unique_ptr<cuda::Device> device_;
  const cuda::DiffusionModel model_;
  std::vector<float> noise_, initial_;
  const int32_t tables_[kSamples] = {};
  cuda::CoarseArgs<cuda::DiffusionView> args_;
};

// Steps that evaluations and intervals divide, and steps that they do not.
TEST(CoarseGuessTest, BitsDependOnNoPlaceOfTheNoise) {
  for (const int64_t num_steps : {1, 7, 48, 101}) {
    for (const int32_t interval : {1, 4, 200}) {
      for (const int64_t state_dim : {5, 12}) {
        const RandomDiffusion process(
            {.state_dim = state_dim, .hidden_dim = 20, .num_steps = num_steps, .output_gain = 0.2});
        GuessRig rig(process, interval);
        EXPECT_EQ(rig.Guess(true), rig.Guess(false)) << num_steps << " " << interval;
      }
    }
  }
}

// Stretches of steps shorter and longer than a scan, intervals of every kind of length, and states
// with and without elements beyond D.
TEST(CoarseGuessTest, IsThatOfOneStepAfterAnother) {
  struct Case {
    int64_t state_dim, hidden_dim, num_blocks, num_steps;
    std::vector<int32_t> intervals;
  };
  for (const auto& [state_dim, hidden_dim, num_blocks, num_steps, intervals] :
       {Case{1, 1, 1, 1, {1, 2}}, Case{5, 20, 2, 15, {1, 4, 15}},
        Case{12, 40, 3, 101, {1, 3, 7, 64}}, Case{17, 64, 4, 48, {3, 5, 48}},
        Case{32, 33, 5, 33, {1, 2, 100}}, Case{40, 30, 2, 101, {1, 3, 101}},
        Case{3, 16, 1, 1100, {1, 3, 5, 17, 69, 5000}}}) {
    const RandomDiffusion process({.state_dim = state_dim,
                                   .hidden_dim = hidden_dim,
                                   .num_blocks = num_blocks,
                                   .num_steps = num_steps,
                                   .activation = Activation::kTanh,
                                   .output_gain = 0.2});
    for (const int32_t interval : intervals) {
      GuessRig rig(process, interval);
      const std::vector<double> want = rig.PlainGuess();
      const std::vector<float> floats = rig.GuessOfFloats(), guess = rig.Guess(true);
      double size = 0, of_floats = 0, of_guess = 0;
      ASSERT_EQ(guess.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(want[i] != 0 || (guess[i] == 0 && floats[i] == 0)) << i;
        size = std::fmax(size, std::fabs(want[i]));
        of_floats = std::fmax(of_floats, std::fabs(floats[i] - want[i]));
        of_guess = std::fmax(of_guess, std::fabs(guess[i] - want[i]));
      }
      EXPECT_LT(of_floats, 1e-5 * size) << state_dim << " " << num_steps << " " << interval;
      EXPECT_LT(of_guess, 5e-3 * size) << state_dim << " " << num_steps << " " << interval;
    }
  }
}

// The states that layers of halves lead to are those of the network but for a thousandth, with
// blocks whose weights are held and others, activations that are not zero at zero, and stretches of
// more than one scan.
TEST(CoarseGuessTest, OfHalvesIsCloseToThatOfFloats) {
  struct Case {
    int64_t state_dim, hidden_dim, num_blocks, num_steps;
    Activation activation;
  };
  for (const auto& [state_dim, hidden_dim, num_blocks, num_steps, activation] :
       {Case{5, 20, 1, 48, Activation::kSilu}, Case{16, 40, 2, 101, Activation::kSigmoid},
        Case{17, 64, 3, 30, Activation::kRelu}, Case{32, 128, 3, 20, Activation::kSilu},
        Case{12, 100, 6, 20, Activation::kTanh}, Case{3, 5, 4, 2000, Activation::kSoftplus}}) {
    const RandomDiffusion process({.state_dim = state_dim,
                                   .hidden_dim = hidden_dim,
                                   .num_blocks = num_blocks,
                                   .num_steps = num_steps,
                                   .activation = activation,
                                   .output_gain = 0.2});
    GuessRig rig(process, 3);
    const std::vector<float> got = rig.Guess(true), want = rig.GuessOfFloats();
    double distance = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      distance += std::pow(double{got[i]} - want[i], 2);
      size += std::pow(double{want[i]}, 2);
    }
    EXPECT_LT(std::sqrt(distance / size), 1e-3) << state_dim << " " << hidden_dim;
    EXPECT_GT(distance, 0) << "halves were not used";
    EXPECT_LE((cuda::HalfDenoiser<8, cuda::BlockTeam<simt::Thread>>::kFloats), rig.StepFloats());
  }
}

// Hidden vectors beyond what a half can be: an evaluation says nothing, and states stay finite.
TEST(CoarseGuessTest, OfHiddenVectorsBeyondHalvesIsFinite) {
  const RandomDiffusion process({.state_dim = 5,
                                 .hidden_dim = 20,
                                 .num_blocks = 2,
                                 .num_steps = 48,
                                 .output_gain = 0.2,
                                 .input_scale = 1e6});
  for (const float x : GuessRig(process, 1).Guess(true)) EXPECT_TRUE(std::isfinite(x));
}

// Steps that would not be finite are left out, wherever they are among those that are made
// together.
TEST(CoarseGuessTest, StaysFinite) {
  const RandomDiffusion process(
      {.state_dim = 12, .hidden_dim = 20, .num_steps = 101, .output_gain = 0.2});
  for (const float odd : {INFINITY, -INFINITY, NAN, 3e38F}) {
    GuessRig rig(process, 1, {}, odd);
    const std::vector<float> guess = rig.Guess(true);
    EXPECT_TRUE(std::ranges::all_of(guess, [](float x) { return std::isfinite(x); })) << odd;
    EXPECT_EQ(guess, rig.Guess(false)) << odd;
  }
}

TEST(CoarseGuessTest, LargeStagesHaveNoRoom) {
  const RandomDiffusion process({.state_dim = 12, .hidden_dim = 20, .num_steps = 1000});
  const auto device = NewSimtDevice({});
  const auto model = *cuda::DiffusionModel::Upload(*device, process.spec(), {});
  const size_t least = cuda::CoarseBytes(model.view());
  const int32_t floats = 2 * 64 * (4 + 16);  // 16 evaluations in 1000 steps
  const size_t wanted = floats * sizeof(float);
  EXPECT_EQ(cuda::StagedFloats(model.view(), {.shared_bytes = least + wanted}), floats);
  EXPECT_EQ(cuda::StagedFloats(model.view(), {.shared_bytes = least + wanted - 4}), 0);
  EXPECT_EQ(cuda::StagedFloats(model.view(), {.shared_bytes = least - 4}), 0);
}

// Where a block waits for its copies, that barrier is one after the prediction as well.
TEST(CoarseGuessTest, EveryBarrierIsNeeded) {
  const std::vector<RandomDiffusion> processes = BothDenoisers(20, 101);
  const auto orders = [](const RandomDiffusion& process, bool staged) {
    return simt::OrdersOfWarps([&process, staged, right = GuessRig(process, 1).Guess(true)](
                                   const simt::Schedule& schedule) {
      DeviceOptions device;
      device.schedule = schedule;
      return GuessRig(process, 1, device).Guess(staged) != right;
    });
  };
  const auto halves = orders(processes[0], true), with_stages = orders(processes[1], true),
             in_place = orders(processes[1], false);
  for (const int site : {int{cuda::kAfterCoarseState}, int{cuda::kAfterInputLayer},
                         int{cuda::kAfterResidualBlock}, int{cuda::kAfterPrediction}})
    EXPECT_TRUE(halves.Notice(site)) << site;
  for (const int site : {cuda::kAfterHolds, cuda::kAfterCoarseState})
    EXPECT_TRUE(with_stages.Notice(site)) << site;
  EXPECT_TRUE(in_place.Notice(cuda::kAfterCoarseState));
  EXPECT_TRUE(in_place.Notice(cuda::kAfterPrediction));
}

}  // namespace
}  // namespace deeppcr::testing
