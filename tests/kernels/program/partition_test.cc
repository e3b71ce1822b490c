// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "kernels/program/cost.h"
#include "tests/kernels/program/draft.h"
#include "tests/kernels/program/random_program.h"

namespace deeppcr::program {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PartitionTest, SaysWhatTablesHaveToHold) {
  Draft draft;
  const ValueId z = draft.State(4), time = draft.Time(), c = draft.Condition(4);
  const ValueId inner = draft.Linear(time, 8);                                // 0: time
  const ValueId embedded = draft.Linear(draft.Do(Op::kSin, {inner}), 4);      // 1, 2: time
  const ValueId squared = draft.Do(Op::kSquare, {c});                         // 3: condition
  const ValueId mixed = draft.Do(Op::kTanh, {draft.Add(embedded, squared)});  // 4, 5
  const ValueId scaled = draft.Multiply(z, embedded);                         // 6: state
  const ValueId sum = draft.Add(draft.Add(scaled, mixed), c);                 // 7, 8: state
  const Program program = draft.Finish(sum);
  const Sections sections = Partition(program);
  EXPECT_THAT(sections.time.instructions, ElementsAre(0, 1, 2));
  EXPECT_THAT(sections.condition.instructions, ElementsAre(3));
  EXPECT_THAT(sections.mixed.instructions, ElementsAre(4, 5));
  EXPECT_THAT(sections.state.instructions, ElementsAre(6, 7, 8));
  const auto result = [&](int i) { return program.instructions[static_cast<size_t>(i)].result; };
  EXPECT_THAT(sections.time.read_by_mixed, ElementsAre(result(2)));
  EXPECT_THAT(sections.time.read_by_step, ElementsAre(result(2)));
  EXPECT_THAT(sections.condition.read_by_mixed, ElementsAre(result(3)));
  EXPECT_THAT(sections.condition.read_by_step, ElementsAre(program.condition));
  EXPECT_THAT(sections.mixed.read_by_step, ElementsAre(result(5)));
  EXPECT_THAT(sections.mixed.read_by_mixed, IsEmpty());
  EXPECT_THAT(sections.state.read_by_step, IsEmpty());
}

TEST(PartitionTest, HoldsAPredictionThatDoesNotDependOnTheState) {
  Draft draft;
  const ValueId z = draft.State(4), c = draft.Condition(4);
  const ValueId said = draft.Do(Op::kTanh, {c});
  const Program program = draft.Finish(draft.Do(Op::kSin, {z}), said);
  EXPECT_THAT(Partition(program).condition.read_by_step, ElementsAre(program.prediction));
}

TEST(PartitionTest, MakesEveryInstructionOnceAndReadsOnlyWhatTablesHold) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    const Program program = RandomProgram(seed);
    const Sections sections = Partition(program);
    std::set<int32_t> instructions;
    for (const Section* section :
         {&sections.time, &sections.condition, &sections.mixed, &sections.state}) {
      instructions.insert(section->instructions.begin(), section->instructions.end());
    }
    EXPECT_EQ(instructions.size(), program.instructions.size());
    std::set<ValueId> tables;
    for (const Section* section : {&sections.time, &sections.condition, &sections.mixed})
      tables.insert(section->read_by_step.begin(), section->read_by_step.end());
    for (const int32_t i : sections.state.instructions) {
      for (const ValueId id : program.instructions[static_cast<size_t>(i)].operands) {
        const uint8_t depends = program.at(id).depends;
        if (depends == kOnNothing || (depends & kOnState) != 0) continue;
        EXPECT_TRUE(tables.contains(id));
      }
    }
  }
}

TEST(CostTest, CountsMultiplyAdds) {
  Draft draft;
  const ValueId z = draft.State(6), c = draft.Condition(6);
  const ValueId layer = draft.Linear(z, draft.Layer(4, 3, true, 2));
  const ValueId norm = draft.Along(Op::kStandardize, layer, {2, 4, 1}, 1e-5);
  const ValueId sum = draft.Along(Op::kSum, norm, {2, 4, 1});
  const ValueId said = draft.Arrange({sum}, std::vector<Element>(6, Element{0, 1}));
  const ValueId shifted = draft.Add(said, draft.Do(Op::kSin, {c}));
  const Costs costs = CostsOf(draft.Finish(draft.ReverseStep(z, shifted), shifted));
  EXPECT_EQ(costs.by_class[kOnState], 4 * 3 * 2 + 3 * 8 + 8 + 6 + 6 * 6);
  EXPECT_EQ(costs.by_class[kOnCondition], 6);
  EXPECT_DOUBLE_EQ(costs.ShareInStep(), 98.0 / 104.0);
}

}  // namespace
}  // namespace deeppcr::program
