// SPDX-License-Identifier: Apache-2.0
// Cotangents of stacks compared with products of the Jacobians in double, and bits that must agree.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cpu/kernels_fixture.h"

namespace deeppcr::testing {
namespace {

constexpr int64_t kSteps = 2 * cpu::kSlopesAhead + 3;

// What the kernel gives for some samples: cotangents [samples, columns, W], and deltas [L, D] of
// each sample.
struct Retreated {
  AlignedBuffer<float> g;
  std::vector<std::vector<float>> deltas;
};

class RetreatTest : public CpuKernelsTest {
 protected:
  // A stack, its states from random inputs, and where they are.
  void Solve(const StepKind& kind, int64_t samples) {
    system_.emplace(NewSystem(kSteps, kind.residual, kind.activation));
    Solve(system_->spec(), samples);
  }
  void Solve(const DenseStackSpec& spec, int64_t samples) {
    layers_ = std::make_unique<PackedLayers>(spec);
    const cpu::LayersView& view = layers_->view();
    transposed_ = AlignedBuffer<float>(kSteps * width_ * width_);
    for (int64_t l = 0; l < kSteps; ++l)
      for (int64_t i = 0; i < dim_; ++i)
        for (int64_t k = 0; k < dim_; ++k)
          transposed_[(l * width_ + i) * width_ + k] = view.weights[(l * width_ + k) * width_ + i];
    const AlignedBuffer<float> inputs = RandomRows(samples);
    AlignedBuffer<float> state(width_), scratch(cpu::kSequentialGroup * width_);
    states_.assign(samples, std::vector<float>((kSteps + 1) * dim_));
    for (int64_t b = 0; b < samples; ++b) {
      std::copy_n(inputs.data() + b * width_, width_, state.data());
      std::copy_n(state.data(), dim_, states_[b].data());
      float* trajectory = states_[b].data();
      kernels_.advance(view, state.data(), scratch.data(), 1, 0, kSteps, {.states = &trajectory});
    }
  }

  static AlignedBuffer<float> Copy(const AlignedBuffer<float>& from) {
    AlignedBuffer<float> copy(from.size());
    std::copy_n(from.data(), from.size(), copy.data());
    return copy;
  }

  // Solves all samples together for their sides, which become those of `sides_`; the states must be
  // those that Solve has found one by one.
  void KeepSides() {
    const auto samples = std::ssize(states_);
    const cpu::LayersView& view = layers_->view();
    AlignedBuffer<float> rows(samples * width_), scratch(cpu::kSequentialGroup * width_);
    sides_.assign(samples, std::vector<uint8_t>(kSteps * cpu::SideBytes(width_), 0x55));
    auto states = states_;
    std::vector<float*> trajectories;
    std::vector<uint8_t*> sides;
    for (int64_t b = 0; b < samples; ++b) {
      std::copy_n(states_[b].data(), dim_, rows.data() + b * width_);
      std::fill(states[b].begin() + dim_, states[b].end(), 0.0F);
      trajectories.push_back(states[b].data());
      sides.push_back(sides_[b].data());
    }
    const AlignedBuffer<float> first = Copy(rows);
    kernels_.advance(view, rows.data(), scratch.data(), static_cast<int32_t>(samples), 0, kSteps,
                     {.states = trajectories.data(), .sides = sides.data()});
    ASSERT_EQ(states, states_);
    const auto beside_states = sides_;
    for (auto& each : sides_) std::ranges::fill(each, uint8_t{0xAA});
    rows = Copy(first);
    kernels_.advance(view, rows.data(), scratch.data(), static_cast<int32_t>(samples), 0, kSteps,
                     {.sides = sides.data()});
    ASSERT_EQ(sides_, beside_states);
  }

  // Takes the cotangents g of samples from `first` on through steps (begin, end], of which the
  // deltas of every third sample are not wanted; by their sides alone where there are any.
  void Take(int64_t first, int64_t samples, int64_t columns, int64_t begin, int64_t end,
            Retreated* out) {
    std::vector<const float*> states;
    std::vector<const uint8_t*> sides;
    std::vector<float*> deltas;
    for (int64_t b = 0; b < samples; ++b) {
      states.push_back(sides_.empty() ? states_[first + b].data() : nullptr);
      if (!sides_.empty()) sides.push_back(sides_[first + b].data());
      deltas.push_back((first + b) % 3 == 1 ? nullptr : out->deltas[first + b].data());
    }
    const AlignedBuffer<float> zeros(width_);
    AlignedBuffer<float> scratch(cpu::RetreatScratchFloats(width_, samples, columns));
    kernels_.retreat({.layers = layers_->view(),
                      .transposed = transposed_.data(),
                      .zeros = zeros.data(),
                      .begin = begin,
                      .end = end,
                      .samples = samples,
                      .columns = columns,
                      .states = states.data(),
                      .sides = sides.empty() ? nullptr : sides.data(),
                      .g = out->g.data() + first * columns * width_,
                      .deltas = columns == 1 ? deltas.data() : nullptr,
                      .scratch = scratch.data()});
  }

  Retreated Begin(const AlignedBuffer<float>& g, int64_t samples) const {
    Retreated begun = {Copy(g), {}};
    begun.deltas.assign(samples, std::vector<float>(kSteps * dim_));
    return begun;
  }

  std::optional<RandomSystem> system_;
  std::unique_ptr<PackedLayers> layers_;
  AlignedBuffer<float> transposed_;
  std::vector<std::vector<float>> states_;
  std::vector<std::vector<uint8_t>> sides_;  // empty: states are handed in
};

TEST_P(RetreatTest, ManySamplesAreOneByOneAndPiecesAreTheWhole) {
  for (const StepKind& kind : kStepKinds) {
    for (const int64_t samples : {1, 3, 8, 9}) {
      for (const int64_t columns : {1, 3}) {
        Solve(kind, samples);
        const AlignedBuffer<float> g = RandomRows(samples * columns);
        Retreated together = Begin(g, samples), alone = Begin(g, samples);
        Take(0, samples, columns, 0, kSteps, &together);
        for (int64_t b = 0; b < samples; ++b) {
          Take(b, 1, columns, 11, kSteps, &alone);
          Take(b, 1, columns, 10, 11, &alone);
          Take(b, 1, columns, 0, 10, &alone);
        }
        ASSERT_TRUE(SameBits(together.g.data(), alone.g.data(), samples * columns * width_))
            << samples << " samples, " << columns << " columns";
        ASSERT_EQ(together.deltas, alone.deltas);
        ExpectPaddingZero(together.g.data(), samples * columns, "g");
      }
    }
  }
}

// A unit of each layer depends on no input: it is at its kink, or so near to it that the state
// shows no trace of its side.
struct KinkedStack {
  explicit KinkedStack(const DenseStackSpec& from)
      : weights(from.weights.begin(), from.weights.end()),
        biases(from.biases.begin(), from.biases.end()),
        spec(from) {
    constexpr float kLeast = std::numeric_limits<float>::denorm_min();
    constexpr float kBiases[] = {0.0F, -0.0F, kLeast, -kLeast, 1e-30F};
    for (int64_t l = 0; l < from.num_steps; ++l) {
      const int64_t row = l * from.state_dim + l % from.state_dim;
      std::fill_n(weights.begin() + row * from.state_dim, from.state_dim, 0.0F);
      biases[row] = kBiases[(l + l / from.state_dim) % std::size(kBiases)];
    }
    spec.weights = weights;
    spec.biases = biases;
  }
  std::vector<float> weights, biases;
  DenseStackSpec spec;
};

TEST_P(RetreatTest, SidesStandForStates) {
  for (const StepKind& kind : {StepKind{true, Activation::kRelu},
                               {false, Activation::kRelu},
                               {true, Activation::kLeakyRelu},
                               {false, Activation::kLeakyRelu}}) {
    const RandomSystem system = NewSystem(kSteps, kind.residual, kind.activation);
    const KinkedStack kinked(system.spec());
    for (const int64_t samples : {1, 2, 3, 6, 7, 8, 9, 13}) {
      sides_.clear();
      Solve(kinked.spec, samples);
      for (const int64_t columns : {1, 3, 18}) {
        sides_.clear();
        const AlignedBuffer<float> g = RandomRows(samples * columns);
        Retreated by_states = Begin(g, samples), by_sides = Begin(g, samples);
        Take(0, samples, columns, 0, kSteps, &by_states);
        ASSERT_NO_FATAL_FAILURE(KeepSides());
        Take(0, samples, columns, 5, kSteps, &by_sides);
        Take(0, samples, columns, 0, 5, &by_sides);
        ASSERT_TRUE(SameBits(by_sides.g.data(), by_states.g.data(), samples * columns * width_))
            << samples << " samples, " << columns << " columns";
        ASSERT_EQ(by_sides.deltas, by_states.deltas);
      }
    }
  }
}

TEST_P(RetreatTest, CotangentsAreProductsOfTheTransposedJacobians) {
  for (const StepKind& kind : kStepKinds) {
    Solve(kind, 3);
    const AlignedBuffer<float> g = RandomRows(3);
    Retreated got = Begin(g, 3);
    Take(0, 3, 1, 0, kSteps, &got);
    for (int64_t b = 0; b < 3; ++b) {
      Vector want = Doubles(g.data() + b * width_, dim_);
      for (int64_t l = kSteps; l >= 1; --l) {
        const Vector jacobian = reference::StepJacobian(
            system_->spec(), l, Doubles(states_[b].data() + (l - 1) * dim_, dim_));
        Vector next(dim_);
        for (int64_t i = 0; i < dim_; ++i)
          for (int64_t k = 0; k < dim_; ++k) next[k] += jacobian[i * dim_ + k] * want[i];
        want = next;
      }
      // Rounding was measured below 5e-6 of the largest; a wrong index or side shows as order one.
      for (int64_t k = 0; k < dim_; ++k)
        ASSERT_NEAR(got.g[b * width_ + k], want[k], 2e-5 * Largest(want)) << "sample " << b;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, RetreatTest, KernelsCases(), KernelsCaseName);

}  // namespace
}  // namespace deeppcr::testing
