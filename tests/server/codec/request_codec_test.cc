// SPDX-License-Identifier: Apache-2.0
#include "server/codec/request_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "tests/testing/expect_error.h"
#include "tests/testing/fake_engine.h"

namespace deeppcr::testing {
namespace {

constexpr int64_t kMessageLimit = 1 << 20;

void SetTensor(std::vector<int64_t> shape, size_t count, v1::Tensor* tensor) {
  tensor->clear_shape();
  tensor->mutable_shape()->Add(shape.begin(), shape.end());
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) + 0.5f;
  tensor->set_data(values.data(), count * sizeof(float));
}

v1::ForwardRequest GoodRequest() {
  v1::ForwardRequest request;
  request.set_model("m");
  SetTensor({3, 2}, 6, request.mutable_inputs());
  return request;
}

const ModelInfo& Info() {
  static const FakeModel& model = *new FakeModel();
  return model.info();
}

absl::StatusOr<SolveInput> Decode(const v1::ForwardRequest& request) {
  return DecodeForward(request, Info(), kMessageLimit);
}

TEST(RequestCodecTest, ReadsInputsInPlace) {
  const v1::ForwardRequest request = GoodRequest();

  const auto input = Decode(request).value();

  EXPECT_EQ(input.num_samples, 3);
  EXPECT_EQ(reinterpret_cast<const char*>(input.inputs.values.data()),
            request.inputs().data().data());
  EXPECT_THAT(input.inputs.values, ::testing::ElementsAre(0.5f, 1.5f, 2.5f, 3.5f, 4.5f, 5.5f));
  EXPECT_GE(input.reply_bytes, 36);
}

TEST(RequestCodecTest, LeavesDefaultsToTheEngine) {
  const auto input = Decode(GoodRequest()).value();

  const SolveOptions defaults;
  EXPECT_EQ(input.options.solver, "auto");
  EXPECT_EQ(input.options.rtol, defaults.rtol);
  EXPECT_EQ(input.options.atol, defaults.atol);
  EXPECT_EQ(input.options.max_iterations, defaults.max_iterations);
  EXPECT_EQ(input.options.warm_sweeps, defaults.warm_sweeps);
  EXPECT_EQ(input.options.initial_guess, InitialGuess::kFromPlan);
  EXPECT_EQ(input.options.jacobian_refresh, JacobianRefresh::kFromPlan);
  EXPECT_EQ(input.options.on_no_convergence, OnNoConvergence::kFallback);
  EXPECT_FALSE(input.options.return_trajectory);
}

TEST(RequestCodecTest, ReadsEveryOption) {
  v1::ForwardRequest request = GoodRequest();
  v1::SolverOptions& options = *request.mutable_options();
  options.set_solver("newton");
  options.set_rtol(1e-3);
  options.set_atol(0);
  options.set_max_iterations(7);
  options.set_shooting_interval(8);
  options.set_warm_sweeps(0);
  options.set_initial_guess(v1::INITIAL_GUESS_PREVIOUS);
  options.set_jacobian_refresh(v1::JACOBIAN_REFRESH_WHILE_CONTRACTING);
  options.set_on_no_convergence(v1::ON_NO_CONVERGENCE_ERROR);
  options.set_return_trajectory(true);
  SetTensor({3, 9, 4}, 108, request.mutable_initial_states());

  const auto input = Decode(request).value();

  EXPECT_EQ(input.options.solver, "newton");
  // The name must not point into the request's memory: options outlive the request.
  EXPECT_NE(input.options.solver.data(), request.options().solver().data());
  EXPECT_EQ(input.options.rtol, 1e-3);
  EXPECT_EQ(input.options.atol, 0);
  EXPECT_EQ(input.options.max_iterations, 7);
  EXPECT_EQ(input.options.shooting_interval, 8);
  EXPECT_EQ(input.options.warm_sweeps, 0);
  EXPECT_EQ(input.options.initial_guess, InitialGuess::kPrevious);
  EXPECT_EQ(input.options.jacobian_refresh, JacobianRefresh::kWhileContracting);
  EXPECT_EQ(input.options.on_no_convergence, OnNoConvergence::kError);
  EXPECT_TRUE(input.options.return_trajectory);
  EXPECT_EQ(input.initial_states.values.size(), 108u);
}

struct BadRequest {
  std::string name;
  std::function<void(v1::ForwardRequest&)> spoil;
  std::string message_part;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

class RefusedForwardTest : public ::testing::TestWithParam<BadRequest> {};

TEST_P(RefusedForwardTest, NamesTheField) {
  v1::ForwardRequest request = GoodRequest();
  GetParam().spoil(request);

  ExpectError(Decode(request), GetParam().code, GetParam().message_part);
}

constexpr int64_t kHuge = int64_t{1} << 62;

INSTANTIATE_TEST_SUITE_P(
    Tensors, RefusedForwardTest,
    ::testing::Values(
        BadRequest{"NoInputs", [](auto& r) { r.clear_inputs(); },
                   "inputs: expected a tensor [n, 2], got none"},
        BadRequest{"Scalar", [](auto& r) { SetTensor({}, 1, r.mutable_inputs()); },
                   "inputs.shape: expected [n, 2] with n in [1, 16], got []"},
        BadRequest{"RankOne", [](auto& r) { SetTensor({6}, 6, r.mutable_inputs()); }, "got [6]"},
        BadRequest{"RankThree",
                   [](auto& r) {
                     SetTensor({3, 2, 1}, 6, r.mutable_inputs());
                   },
                   "got [3, 2, 1]"},
        BadRequest{"HighRank",
                   [](auto& r) { SetTensor(std::vector<int64_t>(1000, 1), 1, r.mutable_inputs()); },
                   "got rank 1000"},
        BadRequest{"Width",
                   [](auto& r) {
                     SetTensor({3, 3}, 9, r.mutable_inputs());
                   },
                   "got [3, 3]"},
        BadRequest{"NoSamples",
                   [](auto& r) {
                     SetTensor({0, 2}, 0, r.mutable_inputs());
                   },
                   "got [0, 2]"},
        BadRequest{"NegativeSamples", [](auto& r) { r.mutable_inputs()->set_shape(0, -1); },
                   "got [-1, 2]"},
        BadRequest{"TooManySamples",
                   [](auto& r) {
                     SetTensor({17, 2}, 34, r.mutable_inputs());
                   },
                   "got [17, 2]"},
        // Both extents wrap to a small number in 32 or 64 bits.
        BadRequest{"Samples32Bit",
                   [](auto& r) { r.mutable_inputs()->set_shape(0, (int64_t{1} << 32) + 3); },
                   "got [4294967299, 2]"},
        BadRequest{"Samples64Bit", [](auto& r) { r.mutable_inputs()->set_shape(0, kHuge); },
                   "got [4611686018427387904, 2]"},
        BadRequest{"FewBytes", [](auto& r) { r.mutable_inputs()->mutable_data()->pop_back(); },
                   "inputs.data: expected 24 bytes for shape [3, 2], got 23 bytes"},
        BadRequest{"ManyBytes", [](auto& r) { r.mutable_inputs()->mutable_data()->push_back(0); },
                   "got 25 bytes"},
        BadRequest{"NoBytes", [](auto& r) { r.mutable_inputs()->clear_data(); }, "got 0 bytes"},
        BadRequest{"StatesUnasked",
                   [](auto& r) {
                     SetTensor({3, 9, 4}, 108, r.mutable_initial_states());
                   },
                   "initial_states: expected none"},
        BadRequest{
            "StatesMissing",
            [](auto& r) { r.mutable_options()->set_initial_guess(v1::INITIAL_GUESS_PREVIOUS); },
            "initial_states: expected a tensor [n, 9, 4] for PREVIOUS, got none"},
        BadRequest{"StatesOfOtherSamples",
                   [](auto& r) {
                     r.mutable_options()->set_initial_guess(v1::INITIAL_GUESS_PREVIOUS);
                     SetTensor({2, 9, 4}, 72, r.mutable_initial_states());
                   },
                   "initial_states.shape: expected [n, 9, 4] with n = 3, got [2, 9, 4]"}),
    [](const auto& param) { return param.param.name; });

// A change of one option; the other options keep their defaults.
template <typename Set>
auto Option(Set set) {
  return [set](v1::ForwardRequest& request) { set(*request.mutable_options()); };
}
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

INSTANTIATE_TEST_SUITE_P(
    Options, RefusedForwardTest,
    ::testing::Values(
        BadRequest{"Solver", Option([](auto& o) { o.set_solver("magic\n"); }),
                   "options.solver: expected one of"},
        BadRequest{"SolverEscaped", Option([](auto& o) { o.set_solver("magic\n"); }),
                   "got \"magic\\n\""},
        BadRequest{"SolverCase", Option([](auto& o) { o.set_solver("Newton"); }), "options.solver"},
        BadRequest{"RtolLow", Option([](auto& o) { o.set_rtol(9e-8); }),
                   "options.rtol: expected a number in [1e-07, 0.1], got 9e-08"},
        BadRequest{"RtolHigh", Option([](auto& o) { o.set_rtol(0.11); }), "options.rtol"},
        BadRequest{"RtolNan", Option([](auto& o) { o.set_rtol(kNan); }), "got nan"},
        BadRequest{"AtolLow", Option([](auto& o) { o.set_atol(-1e-9); }), "options.atol"},
        BadRequest{"AtolHigh", Option([](auto& o) { o.set_atol(1.1); }), "options.atol"},
        BadRequest{"AtolNan", Option([](auto& o) { o.set_atol(kNan); }), "options.atol"},
        BadRequest{"IterationsZero", Option([](auto& o) { o.set_max_iterations(0); }),
                   "options.max_iterations: expected a number in [1, 10000], got 0"},
        BadRequest{"IterationsMany", Option([](auto& o) { o.set_max_iterations(10001); }),
                   "options.max_iterations"},
        BadRequest{"IntervalNegative", Option([](auto& o) { o.set_shooting_interval(-1); }),
                   "options.shooting_interval: expected a number in [0, 8], got -1"},
        BadRequest{"IntervalLong", Option([](auto& o) { o.set_shooting_interval(9); }),
                   "options.shooting_interval"},
        BadRequest{"SweepsNegative", Option([](auto& o) { o.set_warm_sweeps(-1); }),
                   "options.warm_sweeps: expected a number in [0, 64], got -1"},
        BadRequest{"SweepsMany", Option([](auto& o) { o.set_warm_sweeps(65); }),
                   "options.warm_sweeps"},
        BadRequest{"Guess",
                   Option([](auto& o) { o.set_initial_guess(static_cast<v1::InitialGuess>(99)); }),
                   "options.initial_guess: expected a value of InitialGuess, got 99"},
        BadRequest{"GuessCoarse",
                   Option([](auto& o) { o.set_initial_guess(v1::INITIAL_GUESS_COARSE); }),
                   "options.initial_guess"},
        BadRequest{"Refresh", Option([](auto& o) {
                     o.set_jacobian_refresh(static_cast<v1::JacobianRefresh>(-1));
                   }),
                   "options.jacobian_refresh: expected a value of JacobianRefresh, got -1"},
        BadRequest{"Action", Option([](auto& o) {
                     o.set_on_no_convergence(static_cast<v1::OnNoConvergence>(4));
                   }),
                   "options.on_no_convergence: expected a value of OnNoConvergence, got 4"}),
    [](const auto& param) { return param.param.name; });

TEST(RequestCodecTest, RequestIdsArePrintableAndShort) {
  EXPECT_TRUE(CheckRequestId("id", "").ok());
  EXPECT_TRUE(CheckRequestId("id", std::string(128, '~')).ok());
  for (const std::string& wrong :
       {std::string(129, 'a'), std::string("a\nb"), std::string("\xc3\xa9")})
    ExpectError(CheckRequestId("id", wrong), absl::StatusCode::kInvalidArgument,
                "id: expected at most 128 printable");
}

TEST(RequestCodecTest, AcceptsEdgesOfEveryRange) {
  for (const double rtol : {1e-7, 0.1}) {
    v1::ForwardRequest request = GoodRequest();
    v1::SolverOptions& options = *request.mutable_options();
    options.set_rtol(rtol);
    options.set_atol(rtol == 0.1 ? 1.0 : 0.0);
    options.set_max_iterations(rtol == 0.1 ? 10000 : 1);
    options.set_warm_sweeps(rtol == 0.1 ? 64 : 0);
    options.set_shooting_interval(rtol == 0.1 ? 8 : 0);
    EXPECT_TRUE(Decode(request).ok()) << Decode(request).status();
  }
}

TEST(RequestCodecTest, RefusesSolversTheModelDoesNotTake) {
  ModelInfo info = Info();
  info.solvers = {"sequential", "auto"};
  v1::ForwardRequest request = GoodRequest();
  request.mutable_options()->set_solver("newton");

  ExpectError(DecodeForward(request, info, kMessageLimit), absl::StatusCode::kInvalidArgument,
              "expected one of sequential, auto, got \"newton\"");
}

TEST(RequestCodecTest, RefusesARepliesAboveTheMessageLimit) {
  ModelInfo info = Info();
  info.num_layers = int64_t{1} << 40;
  info.state_dim = int64_t{1} << 20;
  v1::ForwardRequest request = GoodRequest();
  request.mutable_options()->set_return_trajectory(true);

  const auto overflowing = DecodeForward(request, info, kMessageLimit);
  EXPECT_FALSE(overflowing.ok());
  info.num_layers = 1 << 16;
  info.state_dim = 64;
  ExpectError(DecodeForward(request, info, kMessageLimit), absl::StatusCode::kResourceExhausted,
              "the limit is 1048576");
  request.mutable_options()->set_return_trajectory(false);
  EXPECT_TRUE(DecodeForward(request, info, kMessageLimit).ok());
}

TEST(RequestCodecTest, ChecksModelFields) {
  EXPECT_TRUE(CheckModelFields("a.B_c-9", 0).ok());
  EXPECT_TRUE(CheckModelFields(std::string(128, 'a'), 7).ok());
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("a/b"),
        std::string("../etc"), std::string("a b"), std::string("a\0b", 3),
        std::string("caf\xc3\xa9"), std::string(129, 'a')}) {
    ExpectError(CheckModelFields(name, 0), absl::StatusCode::kInvalidArgument, "model: expected");
  }
  ExpectError(CheckModelFields("m", -1), absl::StatusCode::kInvalidArgument, "version: expected");
}

TEST(CheckFiniteTest, NamesTheFirstBadIndex) {
  std::vector<float> values(1000, 1.0f);
  EXPECT_TRUE(CheckFinite(values, "inputs").ok());

  values[997] = std::nanf("");
  values[998] = 1.0f;
  ExpectError(CheckFinite(values, "inputs"), absl::StatusCode::kInvalidArgument,
              "inputs.data: expected finite values, got nan at flat index 997");
  values[5] = -std::numeric_limits<float>::infinity();
  ExpectError(CheckFinite(values, "inputs"), absl::StatusCode::kInvalidArgument,
              "got -inf at flat index 5");
}

v1::CompareRequest GoodCompare() {
  v1::CompareRequest request;
  request.set_model("m");
  SetTensor({3, 2}, 6, request.mutable_inputs());
  return request;
}

absl::StatusOr<CompareInput> Decode(const v1::CompareRequest& request) {
  return DecodeCompare(request, Info(), kMessageLimit);
}

TEST(CompareCodecTest, HasDefaultRows) {
  const auto input = Decode(GoodCompare()).value();

  ASSERT_EQ(input.rows.size(), 3u);
  EXPECT_EQ(input.rows[0].solver, "sequential");
  EXPECT_EQ(input.rows[1].solver, "newton");
  EXPECT_EQ(input.rows[2].solver, "auto");
  EXPECT_EQ(input.repetitions, kDefaultRepetitions);
  EXPECT_FALSE(input.sequential_added);
}

TEST(CompareCodecTest, AddsTheBaselineThatSpeedupsNeed) {
  v1::CompareRequest request = GoodCompare();
  request.add_options()->set_solver("newton");

  const auto input = Decode(request).value();

  EXPECT_TRUE(input.sequential_added);
  ASSERT_EQ(input.rows.size(), 2u);
  EXPECT_EQ(input.rows[0].solver, "sequential");
}

struct BadCompare {
  std::string name;
  std::function<void(v1::CompareRequest&)> spoil;
  std::string message_part;
};

class RefusedCompareTest : public ::testing::TestWithParam<BadCompare> {};

TEST_P(RefusedCompareTest, NamesTheField) {
  v1::CompareRequest request = GoodCompare();
  GetParam().spoil(request);

  ExpectError(Decode(request), absl::StatusCode::kInvalidArgument, GetParam().message_part);
}

INSTANTIATE_TEST_SUITE_P(
    Fields, RefusedCompareTest,
    ::testing::Values(
        BadCompare{"NoInputs", [](auto& r) { r.clear_inputs(); }, "inputs: expected a tensor"},
        BadCompare{"NoSolver", [](auto& r) { r.add_options(); },
                   "options[0].solver: expected the name of a solver, got none"},
        BadCompare{"Solver",
                   [](auto& r) {
                     r.add_options()->set_solver("newton");
                     r.add_options()->set_solver("magic");
                   },
                   "options[1].solver: expected one of"},
        BadCompare{"Trajectory",
                   [](auto& r) {
                     r.add_options()->set_solver("newton");
                     r.mutable_options(0)->set_return_trajectory(true);
                   },
                   "options[0].return_trajectory"},
        BadCompare{"Previous",
                   [](auto& r) {
                     r.add_options()->set_solver("newton");
                     r.mutable_options(0)->set_initial_guess(v1::INITIAL_GUESS_PREVIOUS);
                   },
                   "options[0].initial_guess"},
        BadCompare{"Rtol",
                   [](auto& r) {
                     r.add_options()->set_solver("newton");
                     r.mutable_options(0)->set_rtol(1);
                   },
                   "options[0].rtol"},
        BadCompare{"Rows",
                   [](auto& r) {
                     for (int i = 0; i < 17; ++i) r.add_options()->set_solver("auto");
                   },
                   "options: expected at most 16 rows, got 17"},
        BadCompare{"RepetitionsNegative", [](auto& r) { r.set_repetitions(-1); },
                   "repetitions: expected a number in [1, 100], got -1"},
        BadCompare{"RepetitionsMany", [](auto& r) { r.set_repetitions(101); }, "repetitions"}),
    [](const auto& param) { return param.param.name; });

TEST(CompareCodecTest, BoundsTheWork) {
  ModelInfo info = Info();
  info.max_batch_size = 4096;
  v1::CompareRequest request;
  SetTensor({4096, 2}, 8192, request.mutable_inputs());
  request.set_repetitions(6);

  ExpectError(DecodeCompare(request, info, kMessageLimit), absl::StatusCode::kInvalidArgument,
              "got 4096 * 6 * 3");
}

}  // namespace
}  // namespace deeppcr::testing
