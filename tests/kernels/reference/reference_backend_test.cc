// SPDX-License-Identifier: Apache-2.0
// The norms of the reference backend's passes, which it forms in doubles and by code of its own,
// against kernels/iteration/pass.h.
#include "kernels/reference/reference_backend.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/iteration/pass.h"
#include "kernels/iteration/stopping.h"

namespace deeppcr {
namespace {

constexpr std::array<int32_t, 1> kSample = {0};

// Passes over a chain of scalar steps z_l = act(w_l z_{l-1} + b_l) in one or two intervals.
class ScalarPasses {
 public:
  ScalarPasses(std::vector<float> weights, std::vector<float> biases, Activation activation,
               int64_t interval)
      : weights_(std::move(weights)), biases_(std::move(biases)) {
    backend_ = reference::NewReferenceBackend();
    system_ =
        *backend_->NewSystem(DenseStackSpec{.num_steps = static_cast<int64_t>(weights_.size()),
                                            .state_dim = 1,
                                            .activation = activation,
                                            .weights = weights_,
                                            .biases = biases_});
    space_ = *system_->NewSpace({});
    space_->SetShootingInterval(interval);
  }

  // Starts at z_0 with `guess` [L + 1] as the states.
  void Start(float z0, const std::vector<float>& guess) {
    space_->Encode(0, {.inputs = &z0});
    space_->GuessTrajectory(0, guess.data());
    passes().Begin(1);
  }
  // Norms relative to |y_p| + 1.
  UpdateNorms Run(NextPass pass, bool probes = false) {
    const IterationKind kind = KindOf({.next = pass, .probes = probes}, Linearization::kFull);
    passes().Propagate(kSample, kind);
    if (space_->num_intervals() > 1) passes().DownSweep(kSample, 0, kind);
    std::array<UpdateNorms, 1> norms;
    passes().Update(kSample, kind, 1, norms);
    return norms[0];
  }

 private:
  IterationPasses& passes() { return *std::get<IterationPasses*>(space_->iteration({})); }

  const std::vector<float> weights_, biases_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<System> system_;
  std::unique_ptr<SolveSpace> space_;
};

// An answer of 1 whose rounding is that of a term of size `cancelled`, after an update of the last
// state by `update`.
struct BallCase {
  float update, cancelled;
};

TEST(ReferenceBackendTest, BallsAreThoseOfThePlainData) {
  for (const auto& [update, cancelled] :
       {BallCase{1, 1}, BallCase{-1, 1}, BallCase{0x1p-20F, 1}, BallCase{0x1p-20F, 0x1p40F}}) {
    SCOPED_TRACE(::testing::Message() << update << " " << cancelled);
    ScalarPasses passes({1, 1, 1}, {0, -cancelled, 1}, Activation::kIdentity, 3);
    passes.Start(cancelled, {0, 0, 0, 1 - update});
    EXPECT_EQ(passes.Run(NextPass::kIterate).update, std::fabs(update) / 2);
    const UpdateNorms norms = passes.Run(NextPass::kCorrect, true);
    EXPECT_EQ(norms.update, 0);
    EXPECT_GT(norms.rounding, 0);
    const float probe = static_cast<float>(2 * norms.rounding);
    const float ball = BallOf(update, 0, 1, probe);
    EXPECT_NEAR(norms.share / ShareOfBall(kRoundingFactor * probe, ball), 1, 1e-6);
  }
}

// y_2 = relu(y_1 / 2 - 1/4) rests at 0 beside its kink, which y_1 = 1/4 displaced by its ball
// passes.
TEST(ReferenceBackendTest, AConfirmationTriesDisplacedStates) {
  ScalarPasses passes({1, 0.5F}, {0, -0.25F}, Activation::kRelu, 1);
  passes.Start(0.25F, {0, -1.75F, 4});
  EXPECT_EQ(passes.Run(NextPass::kIterate).update, 4);
  EXPECT_EQ(passes.Run(NextPass::kCorrect, true).update, 0);
  EXPECT_EQ(passes.Run(NextPass::kConfirm).update, 0);
  const float displaced = TriedAt(Confirmation::kDisplaced, 0.25F, 2, BallOf(2, 0, 0.25F, 0));
  const float moved = displaced / 2 - 0.25F;
  const UpdateNorms norms = passes.Run(NextPass::kConfirmDisplaced);
  EXPECT_EQ(norms.update, moved);
  EXPECT_EQ(norms.share, ShareOfBall(moved, BallOf(-4, 0, 0, 0)));
}

}  // namespace
}  // namespace deeppcr
