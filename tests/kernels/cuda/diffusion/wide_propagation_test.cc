// SPDX-License-Identifier: Apache-2.0
// Propagation by products with whole layers, compared with propagation by steps of a block: the
// states have the same bits, the tangents differ by what TF32 loses. Also the need for each
// barrier.
#include "kernels/cuda/diffusion/wide_propagation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/loop/block_shape.h"
#include "tests/testing/random_diffusion.h"
#include "tests/testing/simt/orders.h"
#include "tests/testing/simt/simt_device.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

using simt::DeviceOptions;
using simt::NewSimtDevice;
using simt::Order;

constexpr int32_t kSample = 1;  // the second of two samples

DiffusionOptions Wide(DenoiserKind kind, int64_t state_dim = 12, int64_t num_steps = 7) {
  return {.kind = kind,
          .state_dim = state_dim,
          .hidden_dim = 250,
          .num_blocks = 2,
          .num_steps = num_steps,
          .output_gain = 0.5};
}
constexpr DenoiserKind kBothKinds[] = {DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp};

// Intervals of two samples with random states and probes, in the workspace of clusters of two
// blocks.
class WideRig {
 public:
  WideRig(const DiffusionOptions& options, int64_t interval, const DeviceOptions& device_options)
      : process_(options),
        device_(NewSimtDevice(device_options)),
        model_(*cuda::DiffusionModel::Upload(*device_, process_.spec(), {})),
        view_(model_.view()),
        tree_(static_cast<int32_t>((options.num_steps - 1) / interval + 1), 2),
        noise_(2 * options.num_steps * options.state_dim),
        table_of_(2),
        bytes_(cuda::BlockMemory::Bytes(tree_, model_.width())) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (float& x : noise_) x = normal(random);
    view_.noise = noise_.data();
    view_.table_of = table_of_.data();
    intervals_ = {tree_, static_cast<int32_t>(interval), {{kSample}}, nullptr};
    start_.resize(4 * bytes_);
    for (int32_t p = 0; p <= tree_.num_intervals; ++p) DrawState(p, normal, random);
    EXPECT_TRUE(model_.is_wide());
  }

  std::vector<std::byte> ByProducts(IterationKind kind) const {
    return Run([&](cuda::Stream& stream, const cuda::IntervalsView& intervals) {
      cuda::WidePropagation propagation;
      EXPECT_TRUE(propagation.Allocate(*device_, model_, tree_.num_intervals).ok());
      EXPECT_TRUE(stream.PrepareProducts(nullptr, 0).ok());
      propagation.Launch(stream, view_, intervals, kSample, kind);
    });
  }
  std::vector<std::byte> ByBlocks(IterationKind kind) const {
    return Run([&](cuda::Stream& stream, const cuda::IntervalsView& intervals) {
      stream.Launch(cuda::PropagationArgs<cuda::DiffusionView>{.process = view_,
                                                               .intervals = intervals,
                                                               .rows = cuda::StepRows(
                                                                   view_, device_->limits()),
                                                               .progress = nullptr,
                                                               .linearization = kind.linearization,
                                                               .kind = kind},
                    1);
    });
  }

  int width() const { return model_.width(); }
  int32_t num_intervals() const { return tree_.num_intervals; }
  cuda::BlockMemory MemoryOf(std::vector<std::byte>& workspace, int32_t p) const {
    return cuda::MemoryInWorkspace(workspace.data(), tree_, width(), kSample, tree_.block_of(0, p));
  }
  int32_t Local(int32_t p) const { return p % tree_.per_block; }
  int32_t Leaf(int32_t p) const { return tree_.index_of(0, p); }

 private:
  // Draws y_p, with probes the size of rounding, and stores it where each neighbour reads it.
  template <class Normal, class Random>
  void DrawState(int32_t p, Normal& normal, Random& random) {
    std::vector<float> rows(kNumColumns * width());
    for (int v = 0; v < kNumColumns; ++v) {
      for (int i = 0; i < view_.state_dim; ++i)
        rows[v * width() + i] = normal(random) * (v == 0 ? 1.0F : 1e-6F);
    }
    if (p < tree_.num_intervals) std::ranges::copy(rows, MemoryOf(start_, p).State(Local(p)));
    if (p > 0) std::ranges::copy(rows, MemoryOf(start_, p - 1).State(Local(p - 1) + 1));
  }
  template <class Launch>
  std::vector<std::byte> Run(const Launch& launch) const {
    std::vector<std::byte> workspace = start_;
    cuda::IntervalsView intervals = intervals_;
    intervals.workspace = workspace.data();
    const auto stream = *device_->NewStream();
    launch(*stream, intervals);
    EXPECT_TRUE(stream->status().ok()) << stream->status();
    return workspace;
  }

  RandomDiffusion process_;
  std::unique_ptr<cuda::Device> device_;
  cuda::DiffusionModel model_;
  cuda::DiffusionView view_;
  cuda::IntervalTree tree_;
  std::vector<float> noise_;
  std::vector<int32_t> table_of_;
  size_t bytes_;
  cuda::IntervalsView intervals_ = {tree_, 1, {}, nullptr};
  std::vector<std::byte> start_;
};

// The largest |got - want| relative to the largest |want|, over `count` floats.
double Off(const float* got, const float* want, int64_t count) {
  double worst = 0, largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    worst = std::max<double>(worst, std::fabs(got[i] - want[i]));
    largest = std::max<double>(largest, std::fabs(want[i]));
    if (!std::isfinite(got[i])) return INFINITY;
  }
  return worst / largest;
}

constexpr double kTf32Loss = 2e-3;  // relative, of a matrix; 2^-11 per factor

void ExpectSame(const WideRig& rig, IterationKind kind) {
  std::vector<std::byte> got = rig.ByProducts(kind), want = rig.ByBlocks(kind);
  const int64_t width = rig.width();
  for (int32_t p = 0; p < rig.num_intervals(); ++p) {
    const cuda::BlockMemory a = rig.MemoryOf(got, p), b = rig.MemoryOf(want, p);
    const float *const states = a.Propagated(rig.Local(p)), *const residual =
                                                                a.Residual(rig.Leaf(p));
    const float *const want_states = b.Propagated(rig.Local(p)), *const want_residual =
                                                                     b.Residual(rig.Leaf(p));
    EXPECT_TRUE(std::equal(states, states + width, want_states)) << "interval " << p;
    EXPECT_TRUE(std::equal(residual, residual + width, want_residual)) << "interval " << p;
    for (int v = 1; v < kind.vectors(); ++v) {
      EXPECT_LE(Off(states + v * width, want_states + v * width, width), kTf32Loss)
          << p << " " << v;
      EXPECT_LE(Off(residual + v * width, want_residual + v * width, width), kTf32Loss) << p;
    }
    if (!kind.forms_jacobians() || p == 0) continue;
    EXPECT_LE(Off(a.Matrix(rig.Leaf(p)), b.Matrix(rig.Leaf(p)), width * width), kTf32Loss) << p;
  }
}

TEST(WidePropagationTest, IsThatOfBlocks) {
  for (const DenoiserKind denoiser : kBothKinds) {
    for (const int64_t interval : {1, 3}) {  // seven steps: the last interval has one
      const WideRig rig(Wide(denoiser), interval, {});
      ExpectSame(rig, {.probes = false});
      ExpectSame(rig, {.probes = true});
      ExpectSame(rig, {.refresh = false, .probes = true});
      ExpectSame(rig, {.refresh = false, .probes = true, .draw = 3});
      ExpectSame(rig, {.linearization = Linearization::kIdentity, .probes = false});
    }
  }
}

// Signs of another draw change probes alone.
TEST(WidePropagationTest, ADrawHasSignsOfItsOwn) {
  for (const DenoiserKind denoiser : kBothKinds) {
    const WideRig rig(Wide(denoiser), 3, {});
    const auto propagated = [&](int32_t draw) {
      std::vector<std::byte> workspace =
          rig.ByBlocks({.refresh = false, .probes = true, .draw = draw});
      const float* const from = rig.MemoryOf(workspace, 1).Propagated(rig.Local(1));
      return std::vector<float>(from, from + kNumColumns * rig.width());
    };
    const std::vector<float> first = propagated(0), second = propagated(1);
    EXPECT_EQ(first, propagated(0));
    EXPECT_TRUE(std::equal(first.begin(), first.begin() + rig.width(), second.begin()));
    for (int v = 1; v < kNumColumns; ++v) {
      const int64_t at = v * rig.width();
      EXPECT_GT(Off(first.data() + at, second.data() + at, rig.width()), 0.1) << v;
    }
  }
}

// Units rest on their kink, and probes do not pass them by.
TEST(WidePropagationTest, OfIntegerWeightsIsThatOfBlocks) {
  for (const DenoiserKind denoiser : kBothKinds) {
    DiffusionOptions options = Wide(denoiser, 3);
    options.activation = Activation::kRelu;
    options.clip = true;
    options.largest_integer = 1;
    const WideRig rig(options, 1, {});
    ExpectSame(rig, {.probes = true});
    ExpectSame(rig, {.refresh = false, .probes = true});
  }
}

// There are more tangents than pass together: the second part takes the rest.
TEST(WidePropagationTest, GoesInParts) {
  const WideRig rig(Wide(DenoiserKind::kAdaLnMlp, 100, 21), 1, {});
  ExpectSame(rig, {.refresh = false, .probes = true});
  ExpectSame(rig, {.probes = true});
}

TEST(WidePropagationTest, EveryBarrierIsNeeded) {
  const auto run = [](DenoiserKind denoiser, const DeviceOptions& device) {
    return WideRig(Wide(denoiser, 12, 3), 1, device).ByProducts({.probes = true});
  };
  for (const DenoiserKind denoiser : kBothKinds) {
    const std::vector<std::byte> right = run(denoiser, {});
    const simt::OrdersOfWarps orders([&](const simt::Schedule& schedule) {
      return run(denoiser, {.schedule = schedule}) != right;
    });
    EXPECT_TRUE(orders.Notice(cuda::kAfterInitialState));
    EXPECT_EQ(orders.Notice(cuda::kBeforeNormTangents), denoiser == DenoiserKind::kAdaLnMlp);
  }
}

// ---- The whole solve
double WorstState(const Solved& got, const Solved& want, int64_t dim) {
  const std::vector<double> states(want.trajectory.begin(), want.trajectory.end());
  return RelativeError(got.trajectory, states, dim, 1e-2);
}

// The matrices have less than float32 precision. A claim to be within the tolerance must still be
// true, and claims must take few passes.
TEST(WidePropagationTest, ClaimsHold) {
  int claims = 0, quick = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    DiffusionOptions options = Wide(kBothKinds[seed % 2], 6, 24);
    options.clip = seed % 3 != 0;
    options.first_signal = 0.05 + 0.07 * static_cast<double>(seed);  // small ones are expansive
    options.output_gain = 0.3 + 0.15 * static_cast<double>(seed);
    options.seed = seed;
    const RandomDiffusion process(options);
    const SolverRig rig(cuda::NewCudaBackend(NewSimtDevice({})), process.spec());
    const SampleInputs request{.num_samples = 1, .seed = seed};
    const Solved sequential = rig.Solve({.solver = "sequential"}, request);
    for (const int64_t interval : {1, 4}) {
      const Solved newton = rig.Solve(OptionsFor("newton", 24, interval, 1e-4), request);
      const SampleReport& report = newton.reports[0];
      const bool claimed = report.converged && !report.fallback;
      claims += claimed ? 1 : 0;
      quick += claimed && report.iterations + report.chord_corrections < 24 / interval ? 1 : 0;
      EXPECT_LE(WorstState(newton, sequential, 6), 1e-4) << "seed " << seed << " C " << interval;
    }
  }
  EXPECT_GE(claims, 8);
  EXPECT_GE(quick, 8);
}

// Bits do not depend on the batch, whether the loop runs on the device or on the host.
TEST(WidePropagationTest, SamplesKeepTheirBitsInABatch) {
  DeviceOptions no_clusters;
  no_clusters.limits.max_cluster_blocks = 0;
  for (const DeviceOptions& device : {DeviceOptions{}, no_clusters}) {
    const RandomDiffusion process(Wide(DenoiserKind::kAdaLnMlp, 12, 9));
    const SolverRig rig(cuda::NewCudaBackend(NewSimtDevice(device)), process.spec());
    const ResolvedOptions options = OptionsFor("newton", 9, 2, 1e-4);
    const Solved together = rig.Solve(options, SampleInputs{.num_samples = 10, .seed = 5});
    for (const int64_t s : {0, 3, 9}) {
      const Solved alone = rig.Solve(
          options,
          SampleInputs{.num_samples = 1, .seed = 5, .first_sample = static_cast<uint64_t>(s)});
      EXPECT_TRUE(alone.reports[0].converged && !alone.reports[0].fallback);
      EXPECT_EQ(alone.reports[0].error_estimate, together.reports[s].error_estimate);
      EXPECT_TRUE(std::equal(alone.trajectory.begin(), alone.trajectory.end(),
                             together.trajectory.begin() + s * 10 * 12))
          << "sample " << s;
    }
  }
}

// After k updates the first k intervals have the bits of the sequential solver.
TEST(WidePropagationTest, EveryUpdateMakesOneMoreIntervalExact) {
  for (const DenoiserKind denoiser : kBothKinds) {
    const RandomDiffusion process(Wide(denoiser, 12, 8));
    const SolverRig rig(cuda::NewCudaBackend(NewSimtDevice({})), process.spec());
    const SampleInputs request{.num_samples = 1, .seed = 5};
    const Solved sequential = rig.Solve({.solver = "sequential"}, request);
    for (int32_t k = 1; k <= 4; ++k) {
      ResolvedOptions options = OptionsFor("newton", 8, 2, 1e-7);
      options.max_iterations = k;
      options.on_no_convergence = OnNoConvergence::kReturn;
      const Solved newton = rig.Solve(options, request);
      const int64_t updates = newton.reports[0].iterations + newton.reports[0].chord_corrections;
      EXPECT_FALSE(newton.reports[0].fallback);
      EXPECT_GE(updates, std::min(k, 3));
      const auto exact = static_cast<int64_t>(1 + std::min<int64_t>(8, updates * 2)) * 12;
      EXPECT_TRUE(std::equal(newton.trajectory.begin(), newton.trajectory.begin() + exact,
                             sequential.trajectory.begin()))
          << "k " << k;
    }
  }
}

// These states are too wide for a warp, so the loop runs on the host.
TEST(WidePropagationTest, ServesStatesThatNoWarpHolds) {
  const RandomDiffusion process(Wide(DenoiserKind::kAdaLnMlp, 100, 21));
  const SolverRig rig(cuda::NewCudaBackend(NewSimtDevice({})), process.spec());
  const SampleInputs request{.num_samples = 2, .seed = 5};
  const Solved sequential = rig.Solve({.solver = "sequential"}, request);
  const Solved newton = rig.Solve(OptionsFor("newton", 21, 1, 1e-4), request);
  EXPECT_LE(WorstState(newton, sequential, 100), 1e-4);
  for (const SampleReport& report : newton.reports) {
    EXPECT_TRUE(report.converged && !report.fallback);
    EXPECT_LE(report.iterations + report.chord_corrections, 12);  // causality would need 21
  }
}

// Covers classes, conditions, every solver, and the smallest sizes.
TEST(WidePropagationTest, ServesEveryKindOfRequest) {
  for (const int64_t steps : {1, 2, 5}) {
    for (const DenoiserKind denoiser : kBothKinds) {
      DiffusionOptions options = Wide(denoiser, steps == 2 ? 1 : 12, steps);
      options.num_classes = steps == 5 ? 3 : 0;
      options.condition_dim = steps == 2 ? 4 : 0;
      const RandomDiffusion process(options);
      const SolverRig rig(cuda::NewCudaBackend(NewSimtDevice({})), process.spec());
      const std::vector<int32_t> labels = {2, 0, 1};
      const std::vector<float> conditions(3 * 4, 0.5F);
      const SampleInputs request{
          .num_samples = 3,
          .inputs = options.condition_dim > 0 ? std::span(conditions) : std::span<const float>(),
          .seed = 5,
          .labels = options.num_classes > 0 ? std::span(labels) : std::span<const int32_t>()};
      const Solved want = rig.Solve({.solver = "sequential"}, request);
      for (const char* solver : {"newton", "picard", "jacobi"}) {
        ResolvedOptions resolved = OptionsFor(solver, steps, 2, 1e-4);
        resolved.initial_guess = InitialGuess::kCoarse;
        resolved.warm_sweeps = 1;
        const Solved got = rig.Solve(resolved, request);
        ASSERT_EQ(got.reports.size(), 3U) << solver;
        EXPECT_LE(WorstState(got, want, options.state_dim), 1e-4) << solver << " L " << steps;
      }
    }
  }
}

}  // namespace
}  // namespace deeppcr::testing
