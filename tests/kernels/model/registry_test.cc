// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/registry.h"

#include <gtest/gtest.h>

#include <set>

namespace deeppcr {
namespace {

TEST(ModelRegistryTest, RowsAreCompleteAndDistinct) {
  std::set<std::string_view> names;
  for (const ModelFamily& family : ModelFamilies()) {
    EXPECT_TRUE(names.insert(family.name).second) << family.name;
    EXPECT_NE(family.load, nullptr) << family.name;
    EXPECT_FALSE(family.summary.empty()) << family.name;
    EXPECT_EQ(FindModelFamily(family.name), &family);
  }
  EXPECT_EQ(names, (std::set<std::string_view>{"mlp", "resnet", "stack", "diffusion"}));
  EXPECT_NE(FindModelFamily("diffusion")->load_scheduler, nullptr);
  EXPECT_EQ(FindModelFamily("mlp")->load_scheduler, nullptr);
}

TEST(ModelRegistryTest, HasNoOtherNames) {
  EXPECT_EQ(FindModelFamily(""), nullptr);
  EXPECT_EQ(FindModelFamily("MLP"), nullptr);
}

}  // namespace
}  // namespace deeppcr
