// SPDX-License-Identifier: Apache-2.0
// A sample's answer depends on no other sample, neither beside it nor before it, also where the
// other one overflows: numbers that are not finite stay in memory that is used again, and zero
// times them is NaN.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/strings.h"
#include "kernels/solver/registry.h"
#include "tests/kernels/program/draft.h"
#include "tests/testing/sanitizers.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

using program::Draft;
using program::Op;
using program::Program;
using program::ValueId;

constexpr float kNearOverflow = 3e38F;

// A system and what has to live as long.
struct Case {
  std::string name;
  std::optional<RandomSystem> stack;
  std::optional<Program> program;
  std::vector<ReverseStep> steps;
  SystemSpec spec;
};

// z <- W2 act(W1 z): the step ends in a product, with the weights of the padding of z.
ValueId TwoLayers(Draft& draft, ValueId z, int64_t hidden, Op op) {
  return draft.Linear(draft.Do(op, {draft.Linear(z, hidden)}), draft.size(z));
}
// The same of a norm of z, which sums the elements of the state.
ValueId NormAndLayers(Draft& draft, ValueId z) {
  const int64_t dim = draft.size(z);
  const ValueId norm = draft.Along(Op::kStandardize, z, {1, dim, 1}, 1e-5);
  return draft.Add(z, draft.Linear(draft.Do(Op::kTanh, {draft.Linear(norm, 9)}), dim));
}
// z <- W z of pairs of elements, each vector by itself.
ValueId OfPairs(Draft& draft, ValueId z) {
  const auto layer = draft.Layer(2, 2, true, draft.size(z) / 2);
  return draft.Linear(draft.Do(Op::kSilu, {draft.Linear(z, layer)}), layer);
}

std::unique_ptr<Case> StackOf(int64_t steps, int64_t dim, bool residual, Activation activation) {
  auto made = std::make_unique<Case>();
  made->stack.emplace(StackOptions{.num_steps = steps,
                                   .state_dim = dim,
                                   .residual = residual,
                                   .activation = activation,
                                   .gain = residual ? 0.3 : 1,
                                   .input_dim = residual ? 5 : 0,
                                   .output_dim = residual ? 3 : 0});
  made->spec = made->stack->spec();
  made->name = StrCat(residual ? "resnet" : "mlp", " ", dim);
  return made;
}

template <class Body>
std::unique_ptr<Case> ProgramOf(std::string_view name, int64_t steps, int64_t dim,
                                const Body& body) {
  auto made = std::make_unique<Case>();
  Draft draft(static_cast<uint64_t>(dim));
  const ValueId z = draft.State(dim);
  made->program = draft.Finish(body(draft, z));
  made->spec = StackProgramSpec{
      .num_steps = steps, .state_dim = dim, .program = &*made->program, .step_weights = 20 * dim};
  made->name = StrCat(name, " ", dim);
  return made;
}

// A process whose denoiser reads a condition of three elements, if `conditional`.
std::unique_ptr<Case> ProcessOf(int64_t steps, int64_t dim, bool conditional) {
  auto made = std::make_unique<Case>();
  Draft draft(static_cast<uint64_t>(dim));
  const ValueId z = draft.State(dim);
  ValueId prediction = TwoLayers(draft, z, 7, Op::kSilu);
  if (conditional) {
    const ValueId condition = draft.Linear(draft.Condition(3), 5);
    prediction = draft.Add(prediction, draft.Linear(draft.Do(Op::kTanh, {condition}), dim));
    prediction = draft.Add(prediction, draft.Linear(condition, dim));
  }
  made->program = draft.Finish(draft.ReverseStep(z, prediction), prediction);
  for (int64_t l = 0; l < steps; ++l)
    made->steps.push_back({.timestep = static_cast<double>(steps - l),
                           .x0_z = 1,
                           .z_z = 0.9,
                           .z_m = 0.1,
                           .sigma = l % 2 == 0 ? 0.1 : 0});
  made->spec = DiffusionProgramSpec{.state_dim = dim,
                                    .steps = made->steps,
                                    .clip_range = INFINITY,
                                    .program = &*made->program,
                                    .step_weights = 20 * dim,
                                    .condition_dim = conditional ? 3 : 0};
  made->name = StrCat(conditional ? "conditional process " : "process ", dim);
  return made;
}

std::vector<std::unique_ptr<Case>> CasesOf(int64_t steps, const std::vector<int64_t>& dims) {
  std::vector<std::unique_ptr<Case>> cases;
  for (const int64_t dim : dims) {
    cases.push_back(StackOf(steps, dim, false, Activation::kRelu));
    cases.push_back(StackOf(steps, dim, true, Activation::kGelu));
    cases.push_back(ProgramOf("relu and product", steps, dim, [](Draft& draft, ValueId z) {
      return TwoLayers(draft, z, 2 * draft.size(z) + 1, Op::kRelu);
    }));
    cases.push_back(ProgramOf("tanh and product", steps, dim, [](Draft& draft, ValueId z) {
      return TwoLayers(draft, z, 3, Op::kTanh);
    }));
    cases.push_back(ProgramOf("norm", steps, dim, NormAndLayers));
    cases.push_back(ProcessOf(steps, dim, false));
    cases.push_back(ProcessOf(steps, dim, true));
  }
  for (const int64_t dim : {6, 10}) cases.push_back(ProgramOf("pairs", steps, dim, OfPairs));
  return cases;
}

// What a request of one system has: n samples, each the numbers of one of `kinds`.
struct Request {
  std::vector<float> inputs, noise, states;
  SampleInputs samples;
};

enum class Kind : uint8_t { kHealthy, kHuge, kNaN, kHugeGuess };

Request Make(const SystemShape& shape, const std::vector<Kind>& kinds, bool guesses) {
  const int64_t states = (shape.num_steps + 1) * shape.state_dim;
  Request made;
  const auto fill = [&](int64_t size, std::vector<float>* numbers) {
    for (size_t i = 0; i < kinds.size(); ++i) {
      for (int64_t j = 0; j < size; ++j) {
        const double healthy = std::sin(1.3 * static_cast<double>(j) + static_cast<double>(i % 3));
        numbers->push_back(kinds[i] == Kind::kHuge  ? (j % 2 == 0 ? kNearOverflow : -kNearOverflow)
                           : kinds[i] == Kind::kNaN ? std::numeric_limits<float>::quiet_NaN()
                                                    : static_cast<float>(healthy));
      }
    }
  };
  fill(shape.input_dim, &made.inputs);
  if (shape.draws_noise) fill(shape.state_dim, &made.noise);
  for (const Kind kind : kinds) {
    for (int64_t j = 0; j < states && guesses; ++j)
      made.states.push_back(kind != Kind::kHugeGuess ? 0.1F
                            : j % 3 == 0             ? -kNearOverflow
                                                     : kNearOverflow);
  }
  made.samples = {.num_samples = std::ssize(kinds),
                  .inputs = made.inputs,
                  .initial_noise = made.noise,
                  .initial_states = made.states};
  return made;
}

// The answer and the report of a sample, as text that tells all bits apart.
std::string AnswerOf(const Solved& solved, size_t i) {
  if (i >= solved.reports.size()) return "no answer";
  const SampleReport& report = solved.reports[i];
  std::string text =
      StrCat(report.solver, " ", ToString(report.termination), " ", report.iterations, " ",
             report.chord_corrections, " ", report.confirmations, " ", report.column_passes);
  for (const auto& estimate : {report.error_estimate, report.rounding_estimate})
    text += StrCat(" ", std::bit_cast<uint64_t>(estimate.value_or(-1)));
  for (const auto* values : {&solved.outputs, &solved.trajectory}) {
    const size_t size = values->size() / solved.reports.size();
    for (size_t j = i * size; j < (i + 1) * size; ++j)
      text += StrCat(" ", std::bit_cast<uint32_t>((*values)[j]));
  }
  return text;
}

// Every solver, long intervals before short ones: what a full matrix had in memory a diagonal has
// after it.
std::vector<ResolvedOptions> OptionsOf(const SystemShape& shape,
                                       const std::vector<int64_t>& intervals) {
  std::vector<ResolvedOptions> all;
  for (const int64_t interval : intervals) {
    for (const SolverRow& row : Solvers()) {
      if (!Suits(row, shape)) continue;
      all.push_back(OptionsFor(row.name, shape.num_steps, interval, 1e-4));
      if (!row.iterative) continue;
      all.push_back(all.back());
      all.back().initial_guess = InitialGuess::kPrevious;
    }
  }
  ResolvedOptions reuse = OptionsFor("newton", shape.num_steps, intervals[0], 1e-4);
  reuse.jacobian_refresh = JacobianRefresh::kWhileContracting;
  reuse.warm_sweeps = 2;
  all.push_back(reuse);
  return all;
}

constexpr Kind kMixed[] = {Kind::kHuge,    Kind::kHealthy, Kind::kNaN,
                           Kind::kHealthy, Kind::kHealthy, Kind::kNaN,
                           Kind::kHuge,    Kind::kHealthy, Kind::kHugeGuess};

// Answers of new systems, each of which has solved nothing before.
std::vector<std::string> AnswersAlone(const BackendCase& backend, const SystemSpec& spec,
                                      const ResolvedOptions& options, int* overflows) {
  std::vector<std::string> answers;
  std::vector<Kind> kinds;
  for (const Kind kind : kMixed) {
    const SolverRig fresh(backend.create(), spec);
    kinds.push_back(kind);
    const Request request =
        Make(ShapeOf(spec), kinds, options.initial_guess == InitialGuess::kPrevious);
    const auto last = std::ssize(kinds) - 1;
    const Solved solved = fresh.Solve(options, SamplesOf(request.samples, last, 1));
    answers.push_back(AnswerOf(solved, 0));
    if (kind == Kind::kHealthy) {
      EXPECT_TRUE(solved.reports.at(0).converged) << "sample " << last;
    }
    if (kind == Kind::kHuge && solved.reports.at(0).termination == Termination::kNonFinite)
      ++*overflows;
    kinds.back() = Kind::kHealthy;
  }
  return answers;
}

// Options, and the answers of the mixed samples with them.
struct Tried {
  ResolvedOptions options;
  std::vector<std::string> alone;

  bool guesses() const { return options.initial_guess == InitialGuess::kPrevious; }
  std::string Name() const {
    return StrCat(options.solver, " C = ", options.shooting_interval,
                  guesses() ? " from a guess" : "");
  }
};

class IndependenceTest : public ::testing::TestWithParam<size_t> {};

TEST_P(IndependenceTest, OfSamplesThatOverflow) {
  const BackendCase& backend = BackendCases()[GetParam()];
  // The executor of kernels takes a thousand times as long, the reference twenty times, and what
  // sanitizers watch as well.
  const bool slow = backend.max_steps < 100 || backend.name == "reference" || kSanitized;
  const auto cases = slow ? CasesOf(12, {3}) : CasesOf(40, {1, 3, 5, 8, 17});
  int overflows = 0;
  for (const auto& system : cases) {
    const SystemShape shape = ShapeOf(system->spec);
    const SolverRig rig(backend.create(), system->spec);
    std::vector<Tried> tried;
    for (const ResolvedOptions& options :
         OptionsOf(shape, slow ? std::vector<int64_t>{2} : std::vector<int64_t>{8, 1})) {
      tried.push_back({options, AnswersAlone(backend, system->spec, options, &overflows)});
      const Tried& last = tried.back();
      SCOPED_TRACE(StrCat(system->name, " ", last.Name()));
      const Request all = Make(shape, {std::begin(kMixed), std::end(kMixed)}, last.guesses());
      const Solved together = rig.Solve(options, all.samples);
      for (size_t i = 0; i < last.alone.size(); ++i)
        EXPECT_TRUE(AnswerOf(together, i) == last.alone[i]) << "sample " << i << " of the batch";
    }
    // After every solver that overflowed, with what it left in memory of another shape.
    for (const Tried& before : tried) {
      for (const Tried& after : tried) {
        if (slow && &after != &before) continue;
        SCOPED_TRACE(StrCat(system->name, " ", after.Name(), " after ", before.Name()));
        for (const Kind kind : {Kind::kHuge, Kind::kNaN, Kind::kHugeGuess}) {
          if (kind == Kind::kHugeGuess && !before.guesses()) continue;
          rig.Solve(before.options, Make(shape, {kind, kind}, before.guesses()).samples);
          const Request healthy =
              Make(shape, std::vector<Kind>(4, Kind::kHealthy), after.guesses());
          const Solved solved = rig.Solve(after.options, SamplesOf(healthy.samples, 1, 3));
          EXPECT_TRUE(AnswerOf(solved, 0) == after.alone[1]);
          EXPECT_TRUE(AnswerOf(solved, 2) == after.alone[3]);
        }
      }
    }
  }
  EXPECT_GT(overflows, std::ssize(cases)) << "little was tried";
}

INSTANTIATE_TEST_SUITE_P(Backends, IndependenceTest,
                         ::testing::Range(size_t{0}, BackendCases().size()),
                         [](const auto& test) { return BackendCases()[test.param].name; });

}  // namespace
}  // namespace deeppcr::testing
