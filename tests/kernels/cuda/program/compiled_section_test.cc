// SPDX-License-Identifier: Apache-2.0
// Programs in the form that is compiled for a device, by the host's compiler and on the executor:
// the bits of the interpreter, and the same waits for other warps.
#include "kernels/cuda/program/compiled_section.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <memory>
#include <string>

#include "generated/listings.h"
#include "kernels/cuda/program/grid_steps.h"
#include "kernels/cuda/program/source.h"
#include "kernels/program/op.h"
#include "tests/kernels/cuda/program/random_program.h"

namespace deeppcr::testing {
namespace {

using cuda::BlockTeam;
using cuda::ClusterTeam;
using cuda::CompiledView;
using cuda::ProgramView;
using simt::Thread;

// The kernels of SourceOf, as functions that the executor calls.
template <class Listing>
class KernelsOnExecutor final : public cuda::DeviceCode {
 public:
  const cuda::ProgramKernels& kernels() const override { return kKernels; }

 private:
  using View = CompiledView<Listing>;
  static_assert(sizeof(View) == sizeof(ProgramView));

  // Arguments of the interpreter's kernels, as a launch hands them over: byte for byte.
  template <template <class> class Args>
  static Args<View> Handed(const Args<ProgramView>& args) {
    return std::bit_cast<Args<View>>(args);
  }
  static void Sequential(Thread& t, const cuda::BlockSequentialArgs<ProgramView>& args) {
    cuda::SolveByTeams(BlockTeam(t), Handed(args));
  }
  static void ClusterSequential(Thread& t, const cuda::BlockSequentialArgs<ProgramView>& args) {
    cuda::SolveByTeams(ClusterTeam(t), Handed(args));
  }
  static void GridSequential(Thread& t, const cuda::GridStepsArgs<ProgramView>& args) {
    cuda::SolveProgramOverGrid(t, Handed(args));
  }
  static void Propagation(Thread& t, const cuda::PropagationArgs<ProgramView>& args) {
    cuda::WithStepRows(args.rows,
                       [&](auto rows) { cuda::PropagateIntervals<rows.value>(t, Handed(args)); });
  }
  static void Expansion(Thread& t, const cuda::ExpansionArgs<ProgramView>& args) {
    cuda::ExpandIntervals(t, Handed(args));
  }
  static void Coarse(Thread& t, const cuda::CoarseArgs<ProgramView>& args) {
    cuda::GuessCoarsely(BlockTeam(t), Handed(args));
  }
  static void ClusterCoarse(Thread& t, const cuda::CoarseArgs<ProgramView>& args) {
    cuda::GuessCoarsely(ClusterTeam(t), Handed(args));
  }
  template <class Args>
  static const void* HandleOf(void (*kernel)(Thread&, const Args&)) {
    return reinterpret_cast<const void*>(kernel);
  }

  inline static const cuda::ProgramKernels kKernels = {
      HandleOf(&Sequential),   HandleOf(&ClusterSequential), HandleOf(&GridSequential),
      HandleOf(&Propagation),  HandleOf(&Expansion),         HandleOf(&Coarse),
      HandleOf(&ClusterCoarse)};
};

// Hands out the kernels of one listing, whatever it is asked to compile.
template <class Listing>
class ListingCompiler final : public cuda::DeviceCompiler {
 public:
  std::string_view name() const override { return "the host's compiler"; }
  absl::StatusOr<std::string> Compile(const std::string& source, const CancelToken*) override {
    return source;
  }
  absl::StatusOr<std::shared_ptr<const cuda::DeviceCode>> Load(const std::string& code) override {
    loaded_ = code;
    return std::make_shared<KernelsOnExecutor<Listing>>();
  }
  const std::string& loaded() const { return loaded_; }

 private:
  std::string loaded_;
};

template <class Seeded>
class CompiledSectionTest : public ::testing::Test {
 protected:
  using Listing = typename Seeded::Listing;

  simt::DeviceOptions Options() {
    simt::DeviceOptions options;
    options.limits.max_warps = 4;
    return options;
  }
  simt::DeviceOptions CompiledOptions() {
    simt::DeviceOptions options = Options();
    options.compiler = &compiler_;
    return options;
  }

  ListingCompiler<Listing> compiler_;
  ProgramOnExecutor interpreted_{Seeded::kSeed, Options()};
  ProgramOnExecutor compiled_{Seeded::kSeed, CompiledOptions()};
};
TYPED_TEST_SUITE(CompiledSectionTest, cuda::Listings);

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// What was compiled into this test is what a device would compile.
TYPED_TEST(CompiledSectionTest, IsTheListingOfItsProgram) {
  ASSERT_TRUE(this->compiled_.status().ok()) << this->compiled_.status();
  using Made = typename TypeParam::Listing;
  const std::string text =
      cuda::ListingOf("Listing", {Made::kInstructions, static_cast<size_t>(Made::kCount)});
  EXPECT_NE(this->compiler_.loaded().find(text), std::string::npos);
  EXPECT_EQ(this->interpreted_.View().kernels, nullptr);
  EXPECT_NE(this->compiled_.View().kernels, nullptr);
}

TYPED_TEST(CompiledSectionTest, HasTheBitsOfTheInterpreter) {
  ASSERT_TRUE(this->compiled_.status().ok()) << this->compiled_.status();
  for (const int blocks : {1, 2}) {
    EXPECT_TRUE(SameBits(this->interpreted_.Step(ProgramOnExecutor::kSteps, blocks),
                         this->compiled_.Step(ProgramOnExecutor::kSteps, blocks)));
    EXPECT_TRUE(SameBits(this->interpreted_.Guess(blocks), this->compiled_.Guess(blocks)));
  }
  const std::vector<float> state = this->interpreted_.Step(ProgramOnExecutor::kSteps);
  for (ProgramOnExecutor* const system : {&this->interpreted_, &this->compiled_}) {
    const std::vector<float> by_grid = system->StepOverGrid();
    EXPECT_TRUE(by_grid.empty() || SameBits(state, by_grid));
  }
  for (const int rows : {ProgramOnExecutor::kMostRows, 2 + kNumProbes}) {
    const ProgramOnExecutor::Pass want(this->interpreted_, rows), got(this->compiled_, rows);
    EXPECT_TRUE(SameBits(want.bytes, got.bytes)) << rows;
  }
  EXPECT_TRUE(this->compiled_.launched().ok()) << this->compiled_.launched();
}

TYPED_TEST(CompiledSectionTest, BitsDependOnNoOrderOfWarps) {
  const ProgramOnExecutor::Pass want(this->interpreted_, ProgramOnExecutor::kMostRows);
  for (const simt::Order order : {simt::Order::kDescending, simt::Order::kShuffled}) {
    simt::DeviceOptions options = this->CompiledOptions();
    options.schedule = {.order = order, .seed = 7};
    ProgramOnExecutor other(TypeParam::kSeed, options);
    ASSERT_TRUE(other.status().ok()) << other.status();
    EXPECT_TRUE(
        SameBits(want.bytes, ProgramOnExecutor::Pass(other, ProgramOnExecutor::kMostRows).bytes));
  }
}

}  // namespace
}  // namespace deeppcr::testing
