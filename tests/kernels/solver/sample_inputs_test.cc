// SPDX-License-Identifier: Apache-2.0
#include "kernels/solver/sample_inputs.h"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>

namespace deeppcr {
namespace {

constexpr int64_t kSamples = 4;

// Rows of different lengths, each of them with its own values.
struct Memory {
  Memory() {
    float next = 0;
    for (std::vector<float>* values : {&inputs, &initial_noise, &step_noise, &states}) {
      std::iota(values->begin(), values->end(), next);
      next += 1000;
    }
    std::iota(labels.begin(), labels.end(), 0);
  }
  SampleInputs View() const {
    return {.num_samples = kSamples,
            .inputs = inputs,
            .seed = 12,
            .first_sample = 34,
            .labels = labels,
            .initial_noise = initial_noise,
            .step_noise = step_noise,
            .initial_states = states};
  }

  std::vector<float> inputs = std::vector<float>(kSamples * 3);
  std::vector<float> initial_noise = std::vector<float>(kSamples * 2);
  std::vector<float> step_noise = std::vector<float>(kSamples * 10);
  std::vector<float> states = std::vector<float>(kSamples * 12);
  std::vector<int32_t> labels = std::vector<int32_t>(kSamples);
};

template <class T>
std::vector<T> Values(std::span<const T> span) {
  return {span.begin(), span.end()};
}

TEST(SampleInputsTest, SlicesAreRowsOfTheSameMemory) {
  const Memory memory;
  const SampleInputs part = SamplesOf(memory.View(), 1, 2);
  EXPECT_EQ(part.num_samples, 2);
  EXPECT_EQ(part.seed, 12U);
  EXPECT_EQ(part.first_sample, 35U);
  const auto expect_rows = [](auto rows, const auto& all, size_t size) {
    EXPECT_EQ(rows.data(), all.data() + size);
    EXPECT_EQ(rows.size(), 2 * size);
  };
  expect_rows(part.inputs, memory.inputs, 3);
  expect_rows(part.labels, memory.labels, 1);
  expect_rows(part.initial_noise, memory.initial_noise, 2);
  expect_rows(part.step_noise, memory.step_noise, 10);
  expect_rows(part.initial_states, memory.states, 12);
}

TEST(SampleInputsTest, SlicesOfSlicesAndOfAllAreTheSameSamples) {
  const Memory memory;
  const SampleInputs all = SamplesOf(memory.View(), 0, kSamples);
  EXPECT_EQ(all.inputs.data(), memory.inputs.data());
  EXPECT_EQ(all.step_noise.size(), memory.step_noise.size());
  EXPECT_EQ(all.first_sample, 34U);
  const SampleInputs last = SamplesOf(SamplesOf(all, 1, 3), 2, 1);
  EXPECT_EQ(last.first_sample, 37U);
  EXPECT_EQ(last.labels[0], 3);
  EXPECT_EQ(last.inputs.data(), memory.inputs.data() + 9);
}

TEST(SampleInputsTest, ASliceHasNothingThatTheWholeHasNot) {
  const Memory memory;
  const SampleInputs part = SamplesOf({.num_samples = kSamples, .inputs = memory.inputs}, 2, 1);
  EXPECT_EQ(part.inputs.size(), 3U);
  EXPECT_TRUE(part.labels.empty() && part.initial_noise.empty() && part.step_noise.empty() &&
              part.initial_states.empty());
}

TEST(SampleInputsTest, CopiesOutliveTheirSource) {
  const Memory want;
  std::optional<Memory> source(std::in_place);
  OwnedSampleInputs first(source->View());
  source->inputs.assign(source->inputs.size(), -1);
  source->labels.assign(source->labels.size(), -1);
  source.reset();
  const OwnedSampleInputs owned = std::move(first);

  const SampleInputs got = owned.View();

  EXPECT_EQ(got.num_samples, kSamples);
  EXPECT_EQ(got.seed, 12U);
  EXPECT_EQ(got.first_sample, 34U);
  EXPECT_EQ(Values(got.inputs), want.inputs);
  EXPECT_EQ(Values(got.labels), want.labels);
  EXPECT_EQ(Values(got.initial_noise), want.initial_noise);
  EXPECT_EQ(Values(got.step_noise), want.step_noise);
  EXPECT_TRUE(got.initial_states.empty());
}

TEST(SampleInputsTest, ACopyOfSomeSamplesHoldsThemAlone) {
  const Memory memory;
  const OwnedSampleInputs owned(SamplesOf(memory.View(), 2, 1));
  EXPECT_EQ(owned.View().num_samples, 1);
  EXPECT_EQ(owned.View().first_sample, 36U);
  EXPECT_EQ(Values(owned.View().inputs), (std::vector<float>{6, 7, 8}));
  EXPECT_EQ(OwnedSampleInputs().View().num_samples, 0);
}

}  // namespace
}  // namespace deeppcr
