// SPDX-License-Identifier: Apache-2.0
#include "kernels/self_check.h"

#include <gtest/gtest.h>

#include <chrono>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/faulty_backend.h"
#include "tests/testing/random_diffusion.h"
#include "tests/testing/self_check_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

constexpr int32_t kInterval = 8;
constexpr int32_t kMaxBatch = 8;

RandomSystem Stack(Activation activation = Activation::kTanh) {
  return RandomSystem({.num_steps = 64,
                       .state_dim = 8,
                       .residual = true,
                       .activation = activation,
                       .gain = 1,
                       .input_dim = 4,
                       .output_dim = 3});
}

// A system on a backend with one fault.
class Rig : public SelfCheckRig {
 public:
  Rig(const SystemSpec& spec, Fault fault, std::unique_ptr<Backend> oracle)
      : SelfCheckRig(spec, NewFaultyBackend(*cpu::NewCpuBackend(), fault), std::move(oracle),
                     kInterval, kMaxBatch) {}
};

RandomDiffusion Process() { return RandomDiffusion(ResidualDdpm(24, 3)); }

TEST(SelfCheckTest, ARightSystemPasses) {
  for (const Activation activation : {Activation::kTanh, Activation::kRelu, Activation::kSilu}) {
    const RandomSystem stack = Stack(activation);
    EXPECT_TRUE(Rig(stack.spec(), Fault::kNone, reference::NewReferenceBackend()).Check().ok());
  }
  const RandomDiffusion process = Process();
  EXPECT_TRUE(Rig(process.spec(), Fault::kNone, reference::NewReferenceBackend()).Check().ok());
}

// Chaotic: two right backends have nothing in common after some dozens of steps.
TEST(SelfCheckTest, AChaoticModelPassesToo) {
  const RandomSystem chaotic({.num_steps = 400, .state_dim = 12, .gain = 3});
  Rig rig(chaotic.spec(), Fault::kNone, reference::NewReferenceBackend());
  rig.ForgetChoices();

  const absl::Status status = rig.Check();

  EXPECT_TRUE(status.ok()) << status;
}

class FaultTest : public ::testing::TestWithParam<FaultCase> {};

TEST_P(FaultTest, IsFound) {
  const RandomSystem stack = Stack();
  const RandomDiffusion process = Process();
  const SystemSpec spec =
      GetParam().diffusion ? SystemSpec(process.spec()) : SystemSpec(stack.spec());
  const Rig rig(spec, GetParam().fault, reference::NewReferenceBackend());

  const absl::Status status = rig.Check(GetParam().fault == Fault::kHangs ? 0.2 : 20);

  ExpectError(status, absl::StatusCode::kDataLoss, GetParam().found);
}

INSTANTIATE_TEST_SUITE_P(Faults, FaultTest, ::testing::ValuesIn(kFaults),
                         [](const auto& one) { return std::string(one.param.name); });

// A planner that meets a solver which certifies too early calls it wrong, and leaves it out.
TEST(SelfCheckTest, SolversThatThePlanLeavesOutAreCheckedToo) {
  const RandomSystem stack = Stack();
  Rig early(stack.spec(), Fault::kEarlyCertified, reference::NewReferenceBackend());
  early.ForgetChoices();
  Rig never(stack.spec(), Fault::kNeverCertified, reference::NewReferenceBackend());
  never.ForgetChoices();

  ExpectError(early.Check(), absl::StatusCode::kDataLoss, "certified states of sample");
  EXPECT_TRUE(never.Check().ok()) << "a solver that claims nothing is no danger";
}

// The choices of another number of steps need not converge for this one.
TEST(SelfCheckTest, APlanOfAnotherNumberOfStepsNeedNotConverge) {
  const RandomSystem stack = Stack();
  Rig rig(stack.spec(), Fault::kNeverCertified, reference::NewReferenceBackend());
  rig.TakeNearestPlan();
  Rig wrong(stack.spec(), Fault::kForgottenBias, reference::NewReferenceBackend());
  wrong.TakeNearestPlan();

  EXPECT_TRUE(rig.Check().ok());
  ExpectError(wrong.Check(), absl::StatusCode::kDataLoss, "a step of sample 0 is off by");
}

TEST(SelfCheckTest, StopsWhenItsTokenFires) {
  const RandomSystem stack = Stack();
  CancelToken token;
  token.Cancel();

  const Rig rig(stack.spec(), Fault::kNone, reference::NewReferenceBackend());

  EXPECT_EQ(rig.Check(20, &token).code(), absl::StatusCode::kCancelled);
}

// Both overflow: the model's business, not the device's.
TEST(SelfCheckTest, AModelThatOverflowsOnBothPasses) {
  const RandomSystem wild({.num_steps = 300,
                           .state_dim = 4,
                           .residual = true,
                           .activation = Activation::kIdentity,
                           .gain = 8});
  Rig rig(wild.spec(), Fault::kNone, reference::NewReferenceBackend());
  rig.ForgetChoices();

  EXPECT_TRUE(rig.Check().ok());
}

}  // namespace
}  // namespace deeppcr::testing
