// SPDX-License-Identifier: Apache-2.0
#include "kernels/gradient_check.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/program/denoiser_program.h"
#include "kernels/reference/reference_backend.h"
#include "tests/testing/gradient_check_rig.h"
#include "tests/testing/random_diffusion.h"

namespace deeppcr::testing {
namespace {

RandomSystem Stack(const StackOptions& options) { return RandomSystem(options); }

TEST(GradientCheckTest, RightSystemsPass) {
  for (const Activation activation : {Activation::kTanh, Activation::kRelu, Activation::kSilu}) {
    for (const bool outer : {false, true}) {
      const RandomSystem stack = Stack({.num_steps = 64,
                                        .state_dim = 8,
                                        .residual = true,
                                        .activation = activation,
                                        .gain = 1,
                                        .input_dim = outer ? 4 : 0,
                                        .output_dim = outer ? 3 : 0});
      const absl::Status status =
          GradientCheckRig(stack.spec(), *cpu::NewCpuBackend(), reference::NewReferenceBackend())
              .Check();
      EXPECT_TRUE(status.ok()) << status;
    }
  }
  const RandomDiffusion process(ResidualDdpm(24, 3));
  const absl::Status status =
      GradientCheckRig(process.spec(), *cpu::NewCpuBackend(), reference::NewReferenceBackend())
          .Check();
  EXPECT_TRUE(status.ok()) << status;
}

// Saturated, expansive and vanishing: what overflows or rounds away is no fault.
TEST(GradientCheckTest, HardSystemsPassToo) {
  for (const double gain : {0.01, 3.0, 30.0, 1000.0}) {
    for (const Activation activation : {Activation::kTanh, Activation::kIdentity}) {
      const RandomSystem stack = Stack({.num_steps = 200,
                                        .state_dim = 6,
                                        .activation = activation,
                                        .gain = activation == Activation::kTanh ? gain : 1.2,
                                        .seed = 4});
      const absl::Status status =
          GradientCheckRig(stack.spec(), *cpu::NewCpuBackend(), reference::NewReferenceBackend())
              .Check();
      EXPECT_TRUE(status.ok()) << gain << " " << status;
    }
  }
}

// The faults of kernels are those of cuda_planted_faults_test; here the oracle has another model.
TEST(GradientCheckTest, OtherGradientsAreSeen) {
  const RandomSystem stack = Stack({.num_steps = 40, .state_dim = 5, .residual = true, .gain = 1});
  DenseStackSpec other = stack.spec();
  std::vector<float> weights(other.weights.begin(), other.weights.end());
  weights[7 * 25 + 3] += 0.05F;
  other.weights = weights;
  class OtherModel final : public Backend {
   public:
    explicit OtherModel(const DenseStackSpec& spec) : spec_(spec) {}
    std::string_view name() const override { return "other"; }
    std::string_view device() const override { return "other"; }
    DeviceClass device_class() const override { return inner_->device_class(); }
    absl::StatusOr<std::unique_ptr<System>> NewSystem(const SystemSpec&,
                                                      const PackingLimits& limits) const override {
      return inner_->NewSystem(spec_, limits);
    }

   private:
    const DenseStackSpec& spec_;
    std::unique_ptr<Backend> inner_ = *cpu::NewCpuBackend();
  };

  ExpectError(
      GradientCheckRig(stack.spec(), *cpu::NewCpuBackend(), std::make_unique<OtherModel>(other))
          .Check(),
      absl::StatusCode::kDataLoss, "gradients of the sequential backward pass are off by");
}

TEST(GradientCheckTest, StopsWhereNobodyWaits) {
  const RandomSystem stack = Stack({.num_steps = 40, .state_dim = 5, .residual = true, .gain = 1});
  const CancelToken token(CancelToken::Clock::now() - std::chrono::seconds(1));

  EXPECT_TRUE(absl::IsCancelled(
      GradientCheckRig(stack.spec(), *cpu::NewCpuBackend(), reference::NewReferenceBackend())
          .Check(&token)));
}

}  // namespace
}  // namespace deeppcr::testing
