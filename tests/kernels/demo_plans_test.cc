// SPDX-License-Identifier: Apache-2.0
// The plans that ship with the demo models: on the instruction sets of these plans every model
// loads without measuring anything.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "kernels/engine.h"

namespace deeppcr {
namespace {

class DemoPlansTest : public ::testing::TestWithParam<std::string> {
 protected:
  ~DemoPlansTest() override { unsetenv("DEEPPCR_CPU_ISA"); }
};

TEST_P(DemoPlansTest, EveryModelLoadsWhereAPlanIsRequired) {
  setenv("DEEPPCR_CPU_ISA", GetParam().c_str(), 1);
  const auto engine = Engine::Create({.backend = "cpu", .plan_mode = PlanMode::kRequire});
  if (!engine.ok()) GTEST_SKIP() << engine.status();
  int models = 0;
  for (const auto& model : std::filesystem::directory_iterator(std::string(DEEPPCR_SOURCE_DIR) +
                                                               "/deploy/models/repository")) {
    const auto loaded = (*engine)->LoadModel(model.path().string() + "/1", nullptr, nullptr);
    ASSERT_TRUE(loaded.ok()) << model.path() << ": " << loaded.status();
    EXPECT_EQ((*loaded)->Find()->plan().source, PlanSource::kFile) << model.path();
    EXPECT_EQ((*loaded)->Find()->plan().device_class, "cpu-" + GetParam()) << model.path();
    EXPECT_FALSE((*loaded)->Find()->plan().choices.empty()) << model.path();
    EXPECT_GT((*loaded)->Find()->plan().least_rtol, 0) << model.path();
    ++models;
  }
  EXPECT_GE(models, 7);
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, DemoPlansTest, ::testing::Values("baseline", "avx2"));

}  // namespace
}  // namespace deeppcr
