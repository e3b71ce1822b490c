// SPDX-License-Identifier: Apache-2.0
// Attacks on the claims of diffusion models on the CPU, or, linked with cuda_cases.cc, on cuda:
// clips that act in most steps, kinked and smooth denoisers of both kinds with large outputs,
// guesses of every kind.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "kernels/program/denoiser_program.h"
#include "kernels/solver/registry.h"
#include "tests/testing/larger.h"
#include "tests/testing/random_diffusion.h"
#include "tests/testing/rounding_gate.h"
#include "tests/testing/solver_rig.h"

namespace deeppcr::testing {
namespace {

constexpr std::array kActivations = {Activation::kRelu, Activation::kLeakyRelu, Activation::kSilu,
                                     Activation::kTanh, Activation::kGelu};

// The number of processes to draw; the slow run of this test asks for more.
int NumProcesses() {
  const char* text = std::getenv("DEEPPCR_TEST_PROCESSES");
  return text == nullptr ? 300 : std::atoi(text);
}

DiffusionOptions DrawProcess(std::mt19937_64& random, uint64_t seed) {
  const auto uniform = [&](double low, double high) {
    return low + (high - low) * std::uniform_real_distribution<double>()(random);
  };
  DiffusionOptions options;
  options.kind = random() % 2 == 0 ? DenoiserKind::kResidualMlp : DenoiserKind::kAdaLnMlp;
  options.state_dim = 1 + static_cast<int64_t>(random() % 6);
  options.hidden_dim = 4 + static_cast<int64_t>(random() % 20);
  options.num_blocks = 1 + static_cast<int64_t>(random() % 2);
  options.num_steps = std::array{10, 25, 60}[random() % 3];
  options.clip = random() % 3 != 0;
  options.activation = kActivations[random() % kActivations.size()];
  options.output_gain = uniform(0.2, 1.5);
  options.input_scale = std::array{1.0, 1.0, 10.0}[random() % 3];
  options.first_signal = uniform(0.1, 0.6);
  options.ddpm = random() % 2 == 0;
  options.seed = seed;
  return options;
}

ResolvedOptions DrawOptions(std::mt19937_64& random, int64_t steps) {
  const SolverRow* row = nullptr;
  while (row == nullptr || !row->iterative || !Suits(*row, ShapeOf(DiffusionSpec())))
    row = &Solvers()[random() % Solvers().size()];
  ResolvedOptions options = OptionsFor(row->name, steps, std::array{1, 1, 4, 16}[random() % 4],
                                       std::array{1e-2, 1e-3, 1e-4, 1e-5}[random() % 4]);
  options.initial_guess = std::array{InitialGuess::kConstant, InitialGuess::kCoarse,
                                     InitialGuess::kPrevious}[random() % 3];
  options.warm_sweeps = std::array{0, 0, 3}[random() % 3];
  if (random() % 3 == 0) options.jacobian_refresh = JacobianRefresh::kWhileContracting;
  options.on_no_convergence = OnNoConvergence::kReturn;
  LimitIterations(random, &options);
  return options;
}

// The largest error at the ends of intervals, in tolerances.
double ErrorOf(const std::vector<float>& a, const std::vector<float>& b, int64_t steps, int64_t dim,
               const ResolvedOptions& options) {
  double worst = 0;
  for (int64_t l = 1; l <= steps; ++l) {
    if (l % options.shooting_interval != 0 && l != steps) continue;
    double size = 0, error = 0;
    for (int64_t i = l * dim; i < (l + 1) * dim; ++i) {
      size = Larger(size, std::fabs(double{a[i]}));
      error = Larger(error, std::fabs(double{a[i]} - b[i]));
    }
    worst = Larger(worst, error / (options.rtol * size + options.atol));
  }
  return worst;
}

struct ProcessClaims {
  int solves = 0, made = 0;
  double worst = 0;
};

// The denoiser as it is, which the backend compiles and optimises, or as the program that is
// written for it.
class CertificateDiffusionTest : public ::testing::TestWithParam<bool> {
 protected:
  void CountProcess(const DiffusionOptions& drawn, const DiffusionSpec& spec, int index,
                    std::mt19937_64& random, ProcessClaims* claims) const;
};

// Counts the claims of eight solves of a process, from guesses of every kind.
void CertificateDiffusionTest::CountProcess(const DiffusionOptions& drawn,
                                            const DiffusionSpec& spec, int index,
                                            std::mt19937_64& random, ProcessClaims* claims) const {
  const program::Program program = *program::ProgramOfDenoiser(spec);
  const SystemSpec system =
      GetParam() ? SystemSpec(program::WithProgram(spec, program)) : SystemSpec(spec);
  const SolverRig rig(NewBackendOfUsers(), system);
  SampleInputs request{.num_samples = 1, .seed = 5, .first_sample = static_cast<uint64_t>(index)};
  const Solved sequential = rig.Solve({.solver = "sequential"}, request);
  if (!sequential.reports[0].converged) return;
  // The previous trajectory is that of another sample: the same process with other noise.
  SampleInputs other = request;
  other.seed = 6;
  const Solved stale = rig.Solve({.solver = "sequential"}, other);
  for (int trial = 0; trial < 8; ++trial) {
    const ResolvedOptions options = DrawOptions(random, drawn.num_steps);
    request.initial_states = stale.trajectory;
    const Solved solved = rig.Solve(options, request);
    ++claims->solves;
    if (!solved.reports[0].converged) continue;
    ++claims->made;
    const double error = ErrorOf(solved.trajectory, sequential.trajectory, drawn.num_steps,
                                 ShapeOf(spec).state_dim, options);
    claims->worst = std::max(claims->worst, error);
    EXPECT_LE(error, 1) << "process " << index << ", trial " << trial << ", " << options.solver
                        << ", rtol " << options.rtol << ", C " << options.shooting_interval;
  }
}

void Print(const char* what, const ProcessClaims& claims) {
  std::printf("%s: %d claims of %d solves, the worst %.2f rtol off\n", what, claims.made,
              claims.solves, claims.worst);
}

TEST_P(CertificateDiffusionTest, NoClaimIsFalse) {
  ProcessClaims claims;
  for (int index = 0; index < NumProcesses(); ++index) {
    std::mt19937_64 random(index);
    const DiffusionOptions drawn = DrawProcess(random, 1000 + index);
    CountProcess(drawn, RandomDiffusion(drawn).spec(), index, random, &claims);
  }
  Print("random", claims);
  EXPECT_GT(claims.made, 4 * NumProcesses());
}

// Memories and learned scales of the noise, alone and together.
TEST_P(CertificateDiffusionTest, NoClaimOfASamplerWithAFormIsFalse) {
  ProcessClaims claims;
  for (int index = 0; index < NumProcesses(); ++index) {
    std::mt19937_64 random(index + 3'000'000);
    DiffusionOptions drawn = DrawProcess(random, 4'000'000 + index);
    drawn.form = std::array{
        SamplerForm{.carries = true}, SamplerForm{.noise_scale = NoiseScale::kLearnedRange},
        SamplerForm{.noise_scale = NoiseScale::kLearned},
        SamplerForm{.carries = true, .noise_scale = NoiseScale::kLearnedRange}}[index % 4];
    CountProcess(drawn, RandomDiffusion(drawn).spec(), index, random, &claims);
  }
  Print("forms", claims);
  EXPECT_GT(claims.made, 3 * NumProcesses());
}

// Draws kinked denoisers whose weights are small integers times a scale, so that terms cancel.
TEST_P(CertificateDiffusionTest, IntegerWeights) {
  ProcessClaims claims;
  for (int index = 0; index < NumProcesses(); ++index) {
    std::mt19937_64 random(index + 7'000'000);
    DiffusionOptions drawn = DrawProcess(random, 9'000'000 + index);
    drawn.activation = index % 3 == 0 ? Activation::kLeakyRelu : Activation::kRelu;
    drawn.largest_integer = index % 5 == 0 ? 2 : 1;
    drawn.num_blocks = 1 + index % 4;
    drawn.output_gain *= 4;
    CountProcess(drawn, RandomDiffusion(drawn).spec(), index, random, &claims);
  }
  Print("integer weights", claims);
  EXPECT_GT(claims.made, 2 * NumProcesses());
}

TEST_P(CertificateDiffusionTest, RoundingThatWakesAUnit) {
  for (const DenoiserKind kind : {DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp}) {
    ProcessClaims claims;
    for (int index = 0; index < 4 * NumProcesses(); ++index) {
      std::mt19937_64 random(index + 8'000'000);
      DiffusionOptions drawn = DrawProcess(random, 10'000'000 + index);
      drawn.kind = kind;
      // Beyond, the unit fills the next norm, where tangents see nothing of it: kernels/README.md.
      const int largest = kind == DenoiserKind::kAdaLnMlp ? 12 : 24;
      const RoundingGate gate(drawn, std::exp2(6 + index % largest), std::exp2(index % 7));
      CountProcess(drawn, gate.spec(), index, random, &claims);
    }
    Print(kind == DenoiserKind::kAdaLnMlp ? "rounding in adaLN" : "rounding in a residual MLP",
          claims);
    EXPECT_GT(claims.made, NumProcesses());
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, CertificateDiffusionTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Program" : "Named"; });

}  // namespace
}  // namespace deeppcr::testing
