// SPDX-License-Identifier: Apache-2.0
// The 1024 layers of the README: trained from nothing, they read handwritten digits, and nothing
// else of the network does.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/client/run_binary.h"

namespace deeppcr {
namespace {

const std::string kModels = std::string(DEEPPCR_SOURCE_DIR) + "/deploy/models";

TEST(TrainDigitsTest, AResnetOf1024LayersReads95OfAHundredHeldOutDigits) {
  const std::string folder = TempPath("digits");
  std::filesystem::create_directories(folder);
  const Outcome outcome = RunBinary(
      "train --config " + kModels + "/repository/digits-resnet/1/config.json --data " + kModels +
      "/data/digits_train.npz --validation_inputs " + kModels +
      "/data/digits_heldout.npy --validation_targets " + kModels +
      "/data/digits_heldout_labels.npy --epochs 30 --learning_rate 5e-3 --warmup_steps 50 "
      "--clip_norm 1 --weight_decay 0.1 --split_state 8 --repository " +
      folder + " --model digits --checkpoint " + folder + "/checkpoint --log " + folder + "/log");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::ifstream log(folder + "/log");
  double held_out = 0, bypassed = 1;
  for (std::string line; std::getline(log, line);) {
    const nlohmann::json object = nlohmann::json::parse(line);
    if (object.contains("validation_accuracy")) held_out = object["validation_accuracy"];
    if (object.contains("bypassed_accuracy")) bypassed = object["bypassed_accuracy"];
  }
  EXPECT_GE(held_out, 0.95);
  EXPECT_LE(bypassed, 0.5);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace deeppcr
