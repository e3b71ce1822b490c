// SPDX-License-Identifier: Apache-2.0
#include "kernels/solver/interval_scan.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <utility>

#include "kernels/iteration/scan_tree.h"
#include "kernels/reference/reference_ops.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

// ceil(log2 n), by doubling.
int CeilLog2(int64_t n) {
  int levels = 0;
  for (int64_t reach = 1; reach < n; reach *= 2) ++levels;
  return levels;
}

TEST(ScanTreeTest, LevelsHalveUpToTwoNodes) {
  for (int64_t intervals = 1; intervals <= 200; ++intervals) {
    const ScanTree tree(intervals);
    EXPECT_EQ(tree.levels(), CeilLog2(intervals)) << intervals;
    EXPECT_EQ(tree.nodes(0), intervals);
    for (int h = 1; h < tree.levels(); ++h)
      EXPECT_EQ(tree.nodes(h), (tree.nodes(h - 1) + 1) / 2) << intervals << " level " << h;
    EXPECT_EQ(tree.nodes(std::max(0, tree.levels() - 1)), std::min<int64_t>(intervals, 2));
  }
}

TEST(ScanTreeTest, EveryNodeHasAPlaceOfItsOwn) {
  for (int64_t intervals = 1; intervals <= 200; ++intervals) {
    const ScanTree tree(intervals);
    std::set<int64_t> places;
    for (int h = 0; h < std::max(1, tree.levels()); ++h)
      for (int64_t j = 0; j < tree.nodes(h); ++j)
        EXPECT_TRUE(places.insert(tree.node(h, j)).second) << intervals;
    EXPECT_EQ(*places.begin(), 0);
    EXPECT_EQ(*places.rbegin(), tree.total() - 1) << intervals;
    EXPECT_EQ(static_cast<int64_t>(places.size()), tree.total()) << intervals;
  }
}

TEST(ScanTreeTest, EveryLeafIsReachedFromTheTopOnce) {
  for (int64_t intervals = 2; intervals <= 200; ++intervals) {
    const ScanTree tree(intervals);
    std::vector<int64_t> reached = {0, 1};
    for (int h = tree.levels() - 2; h >= 0; --h) {
      std::vector<int64_t> below;
      for (const int64_t j : reached)
        for (const int64_t child : {2 * j, 2 * j + 1})
          if (child < tree.nodes(h)) below.push_back(child);
      reached = below;
    }
    ASSERT_EQ(static_cast<int64_t>(reached.size()), intervals);
    for (int64_t p = 0; p < intervals; ++p) EXPECT_EQ(reached[p], p);
  }
}

// The matrices that the sweeps use, traced from the definition. The down-sweep takes the matrix of
// a left child that something enters. The vector of a node takes the matrix of its right child, and
// the matrix of a node takes those of both.
std::set<std::pair<int, int64_t>> MatricesUsed(const ScanTree& tree) {
  std::set<std::pair<int, int64_t>> used;
  for (int h = tree.levels() - 1; h >= 0; --h)
    for (int64_t j = 0; 2 * j < tree.nodes(h); ++j) {
      const bool has_right = 2 * j + 1 < tree.nodes(h);
      if (j > 0 && has_right) used.insert({h, 2 * j});
      if (h + 1 < tree.levels() && j + 1 < tree.nodes(h + 1)) used.insert({h, 2 * j + 1});
      if (used.count({h + 1, j}) > 0) used.insert({{h, 2 * j}, {h, 2 * j + 1}});
    }
  return used;
}

TEST(ScanTreeTest, NeedsMatrixIsTrueExactlyWhereOneIsUsed) {
  for (int64_t intervals = 1; intervals <= 200; ++intervals) {
    const ScanTree tree(intervals);
    const auto used = MatricesUsed(tree);
    for (int h = 0; h < tree.levels(); ++h)
      for (int64_t j = 0; j < tree.nodes(h); ++j)
        EXPECT_EQ(tree.needs_matrix(h, j), used.count({h, j}) > 0)
            << intervals << " intervals, level " << h << ", node " << j;
  }
}

// Records the sweeps.
class RecordingPasses final : public IterationPasses {
 public:
  const std::vector<int>& reduced() const { return reduced_; }
  const std::vector<int>& distributed() const { return distributed_; }

  void UpSweep(std::span<const int32_t>, int level, IterationKind) override {
    EXPECT_TRUE(distributed_.empty()) << "up-sweep after the down-sweep began";
    reduced_.push_back(level);
  }
  void DownSweep(std::span<const int32_t>, int level, IterationKind) override {
    distributed_.push_back(level);
  }

  void Begin(int32_t) override {}
  PassCount Propagate(std::span<const int32_t>, IterationKind) override { return {}; }
  bool interrupted(int32_t) const override { return false; }
  void Update(std::span<const int32_t>, IterationKind, double, std::span<UpdateNorms>) override {}
  void Finish(int32_t, float* const*) override {}

 private:
  std::vector<int> reduced_, distributed_;
};

constexpr std::array<int32_t, 1> kSample = {0};

TEST(ScanIntervalsTest, CountsTheLevelsThatItRuns) {
  std::vector<int64_t> counts = {1000, 1024, 1025, 16384};
  for (int64_t p = 1; p <= 130; ++p) counts.push_back(p);
  for (const int64_t intervals : counts) {
    RecordingPasses passes;
    const int64_t stages = ScanIntervals(passes, intervals, kSample, {});
    const int levels = CeilLog2(intervals);
    EXPECT_EQ(stages, levels == 0 ? 0 : 2 * levels - 1) << intervals;
    EXPECT_EQ(stages, static_cast<int64_t>(passes.reduced().size() + passes.distributed().size()));
    std::vector<int> up, down;
    for (int h = 1; h < levels; ++h) up.push_back(h);
    for (int h = levels - 1; h >= 0; --h) down.push_back(h);
    EXPECT_EQ(passes.reduced(), up) << intervals;
    EXPECT_EQ(passes.distributed(), down) << intervals;
  }
}

TEST(ScanIntervalsTest, JacobiHasNothingToSolve) {
  RecordingPasses passes;
  EXPECT_EQ(ScanIntervals(passes, 33, kSample, {.linearization = Linearization::kZero}), 0);
  EXPECT_TRUE(passes.distributed().empty());
}

// One pass solves a linear system, whatever the states were before: a wrong matrix, a wrong vector
// or a missed node anywhere shows in the states.
class LinearSolveTest : public ::testing::TestWithParam<std::tuple<size_t, int64_t>> {
 protected:
  static constexpr int64_t kDim = 5;
  const BackendCase& backend() const { return BackendCases()[std::get<0>(GetParam())]; }
  int64_t intervals() const { return std::get<1>(GetParam()); }

  void MakeSpace(const DenseStackSpec& spec, const std::vector<float>& inputs, int64_t interval) {
    backend_ = backend().create();
    system_ = *backend_->NewSystem(spec);
    space_ = *system_->NewSpace({});
    space_->Encode(0, {.inputs = inputs.data()});
    space_->SetShootingInterval(interval);
    ASSERT_EQ(space_->num_intervals(), intervals());
    space_->GuessConstant(0);
    passes_ = std::get<IterationPasses*>(space_->iteration({}));
    passes_->Begin(1);
    const std::vector<double> z0 =
        reference::Encode(spec, std::vector<double>(inputs.begin(), inputs.end()));
    want_ = reference::Trajectory(spec, z0);
  }

  UpdateNorms Pass(IterationKind kind) {
    UpdateNorms norms;
    passes_->Propagate(kSample, kind);
    const int levels = CeilLog2(intervals());
    EXPECT_EQ(ScanIntervals(*passes_, intervals(), kSample, kind),
              levels == 0 ? 0 : 2 * levels - 1);
    passes_->Update(kSample, kind, 1e-3, {&norms, 1});
    return norms;
  }

  // Compares with the sequential states in double; the floor stands for the size of the terms of a
  // state.
  void ExpectSolved(const char* what) {
    std::vector<float> got(want_.size());
    float* const to = got.data();
    passes_->Finish(1, &to);
    EXPECT_LE(RelativeError(got, want_, kDim, 1.0), 2e-6) << what;
  }

  // Sets states that have nothing to do with the solution.
  void Disturb(const RandomSystem& system) {
    std::vector<float> far(want_.size());
    const std::vector<float> noise = system.Inputs(1 + intervals(), 99);
    for (size_t i = 0; i < far.size(); ++i) far[i] = 3 * noise[i % noise.size()];
    space_->GuessTrajectory(0, far.data());
    passes_->Begin(1);
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<System> system_;
  std::unique_ptr<SolveSpace> space_;
  IterationPasses* passes_ = nullptr;
  std::vector<double> want_;
};

TEST_P(LinearSolveTest, NewtonPassIsExactAndItsMatricesServeAgain) {
  for (const int64_t interval : {1, 3}) {
    const RandomSystem system({.num_steps = intervals() * interval,
                               .state_dim = kDim,
                               .activation = Activation::kIdentity,
                               .gain = 0.9,
                               .bias = 1,
                               .seed = 41});
    MakeSpace(system.spec(), system.Inputs(1, 42), interval);
    Pass({});
    ExpectSolved("newton");
    Disturb(system);
    EXPECT_GT(Pass({.refresh = false}).update, 0.01);
    ExpectSolved("chord correction");
    Disturb(system);
    EXPECT_GT(Pass({.probes = true}).rounding, 0);
    ExpectSolved("with probes");
  }
}

TEST_P(LinearSolveTest, DiagonalPassIsExactForADiagonalSystem) {
  const RandomSystem biases({.num_steps = intervals(), .state_dim = kDim, .bias = 1, .seed = 43});
  std::vector<float> weights(intervals() * kDim * kDim);
  for (int64_t l = 0; l < intervals(); ++l)
    for (int64_t i = 0; i < kDim; ++i)
      weights[(l * kDim + i) * kDim + i] = 0.5F + 0.1F * static_cast<float>((l + i) % 5);
  DenseStackSpec spec = biases.spec();
  spec.weights = weights;
  spec.activation = Activation::kIdentity;
  MakeSpace(spec, biases.Inputs(1, 44), 1);
  Pass({.linearization = Linearization::kDiagonal});
  ExpectSolved("quasi-newton");
  Disturb(biases);
  Pass({.linearization = Linearization::kDiagonal, .refresh = false});
  ExpectSolved("diagonals again");
}

TEST_P(LinearSolveTest, PicardPassIsExactWhereTheJacobianIsTheIdentity) {
  const RandomSystem biases({.num_steps = intervals(),
                             .state_dim = kDim,
                             .residual = true,
                             .activation = Activation::kTanh,
                             .bias = 1,
                             .seed = 45});
  const std::vector<float> weights(intervals() * kDim * kDim);
  DenseStackSpec spec = biases.spec();
  spec.weights = weights;
  MakeSpace(spec, biases.Inputs(1, 46), 1);
  Pass({.linearization = Linearization::kIdentity});
  ExpectSolved("picard");
}

std::string CaseName(const ::testing::TestParamInfo<LinearSolveTest::ParamType>& test) {
  return BackendCases()[std::get<0>(test.param)].name + "_P" +
         std::to_string(std::get<1>(test.param));
}

INSTANTIATE_TEST_SUITE_P(Backends, LinearSolveTest,
                         ::testing::Combine(::testing::Range(size_t{0}, BackendCases().size()),
                                            ::testing::Values(1, 2, 3, 5, 8, 31, 33, 100)),
                         CaseName);

}  // namespace
}  // namespace deeppcr::testing
