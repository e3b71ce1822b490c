// SPDX-License-Identifier: Apache-2.0
// Gradients of the demo models and of a random one, from the real server.
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/engine.h"
#include "tests/integration/gradient_fixture.h"
#include "tests/testing/larger.h"

namespace deeppcr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GradientTest : public ServiceTest {
 protected:
  static void SetUpTestSuite() {
    repository_ = std::make_unique<testing::TemporaryDirectory>();
    testing::WriteRandomModel(repository_->File("net/1"), {});
    testing::WriteRandomModel(repository_->File("rough/1"), {.gain = 3.0, .type = "mlp"});
    for (const std::string name : {"digits-resnet", "digits-ddpm"})
      std::filesystem::copy(kModels + name, repository_->File(name),
                            std::filesystem::copy_options::recursive);
    server_ = testing::ServerProcess::Start(repository_->path(), {"--gradients"});
  }

  v1::GradientResponse Answer(const v1::GradientRequest& request) {
    v1::GradientResponse response;
    const grpc::Status status = Call(*stub_, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  void ExpectRefused(const v1::GradientRequest& request, grpc::StatusCode code,
                     const std::string& part) {
    v1::GradientResponse response;
    const grpc::Status status = Call(*stub_, request, &response);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(part));
  }

  // The outputs of the same request's Forward or Generate at another point.
  std::vector<float> OutputsAt(const v1::GradientRequest& of, const std::vector<float>& point) {
    grpc::ClientContext context;
    if (!of.has_generation()) {
      v1::ForwardRequest request;
      request.set_model(of.model());
      *request.mutable_options() = of.options();
      SetTensor({std::ssize(point) / kPixels, kPixels}, point, request.mutable_inputs());
      v1::ForwardResponse response;
      EXPECT_TRUE(stub_->Forward(&context, request, &response).ok());
      return Values(response.outputs());
    }
    v1::GenerateRequest request;
    request.set_model(of.model());
    *request.mutable_options() = of.options();
    *request.mutable_input() = of.generation();
    SetTensor({std::ssize(point) / kLatent, kLatent}, point,
              request.mutable_input()->mutable_initial_noise());
    v1::GenerateResponse response;
    EXPECT_TRUE(stub_->Generate(&context, request, &response).ok());
    return Values(response.samples());
  }

  // Compares a gradient at `point` with central differences of `objective`, a function of the
  // outputs, along a direction. The tolerance is what the difference over twice the distance is off
  // by, of which the shorter one has a quarter, and what float32 outputs leave of the difference;
  // and it says something: it is 5 % of the length of the gradient at most.
  void ExpectDerivative(const v1::GradientRequest& request, const std::vector<float>& point,
                        const std::vector<float>& gradient,
                        const std::function<double(const std::vector<float>&)>& objective) {
    double length = 0;
    for (const float g : gradient) length += double{g} * g;
    length = std::sqrt(length);
    // Half along the gradient, and half along a direction of its own.
    std::vector<float> direction = Normals(std::ssize(point), 11);
    double along = 0;
    const double size = std::sqrt(static_cast<double>(direction.size()));
    for (size_t i = 0; i < point.size(); ++i) {
      direction[i] = static_cast<float>(gradient[i] / length + direction[i] / size);
      along += double{gradient[i]} * direction[i];
    }
    const auto difference = [&](float distance) {
      std::vector<float> above = point, below = point;
      for (size_t i = 0; i < point.size(); ++i) {
        above[i] += distance * direction[i];
        below[i] -= distance * direction[i];
      }
      return (objective(OutputsAt(request, above)) - objective(OutputsAt(request, below))) /
             (2 * distance);
    };
    const double near = difference(2e-2F), far = difference(4e-2F);
    const double known = std::fabs(far - near) + 2e-3 * length;
    EXPECT_NEAR(along, near, known);
    EXPECT_LT(known, 0.05 * length) << "the differences say nothing";
  }
};

TEST_F(GradientTest, IsThatOfDifferencesOfForward) {
  const std::vector<float> point = Normals(kSamples * kPixels, 3);
  const std::vector<float> targets = Normals(kSamples * kClasses, 7);
  v1::GradientRequest request = OfResnet(point);
  request.set_loss(v1::LOSS_MSE);
  SetTensor({kSamples, kClasses}, targets, request.mutable_targets());
  const auto objective = [&](const std::vector<float>& outputs) {
    double sum = 0;
    for (size_t i = 0; i < outputs.size(); ++i)
      sum += (double{outputs[i]} - targets[i]) * (double{outputs[i]} - targets[i]) / kClasses;
    return sum;
  };
  for (const v1::BackwardWay way : {v1::BACKWARD_WAY_SEQUENTIAL, v1::BACKWARD_WAY_PARALLEL}) {
    request.set_way(way);
    const v1::GradientResponse response = Answer(request);
    EXPECT_THAT(response.input_gradients().shape(), ElementsAre(kSamples, kPixels));
    EXPECT_FALSE(response.has_initial_state_gradients());
    EXPECT_EQ(Values(response.outputs()), OutputsAt(request, point));
    ASSERT_EQ(response.losses_size(), kSamples);
    EXPECT_NEAR(response.losses(0) + response.losses(1), objective(Values(response.outputs())),
                1e-12);
    ExpectDerivative(request, point, Values(response.input_gradients()), objective);
  }
}

TEST_F(GradientTest, IsThatOfDifferencesOfGenerate) {
  const std::vector<float> point = Normals(kSamples * kLatent, 3);
  const std::vector<float> weights = Normals(kSamples * kPixels, 8);
  v1::GradientRequest request = OfDdpm(point);
  SetTensor({kSamples, kPixels}, weights, request.mutable_cotangents());
  for (const v1::BackwardWay way : {v1::BACKWARD_WAY_SEQUENTIAL, v1::BACKWARD_WAY_PARALLEL}) {
    request.set_way(way);
    const v1::GradientResponse response = Answer(request);
    EXPECT_THAT(response.initial_state_gradients().shape(), ElementsAre(kSamples, kLatent));
    EXPECT_FALSE(response.has_input_gradients());
    EXPECT_EQ(response.losses_size(), 0);
    ExpectDerivative(request, point, Values(response.initial_state_gradients()),
                     [&](const std::vector<float>& outputs) {
                       double sum = 0;
                       for (size_t i = 0; i < outputs.size(); ++i)
                         sum += double{weights[i]} * outputs[i];
                       return sum;
                     });
  }
}

TEST_F(GradientTest, HasTheBitsOfTheEngine) {
  const auto engine =
      Engine::Create({.backend = "cpu", .num_threads = 2, .gradients = true}).value();
  const std::vector<float> noise = Normals(kSamples * kLatent, 3);
  for (v1::GradientRequest request : {OfResnet(Normals(kSamples * kPixels, 3)), OfDdpm(noise)}) {
    const bool generates = request.has_generation();
    const auto model =
        engine->LoadModel(kModels + request.model() + "/1", nullptr, nullptr).value();
    const auto system = model->Find(generates ? kFewSteps : 0);
    const ModelInfo& info = model->info();
    const int64_t steps = generates ? kFewSteps : info.num_layers;
    const std::vector<float> of_outputs = Normals(kSamples * info.output_dim, 4);
    const std::vector<float> of_final = Normals(kSamples * kLatent, 5);
    SetTensor({kSamples, info.output_dim}, of_outputs, request.mutable_cotangents());
    SetTensor({kSamples, kLatent}, of_final, request.mutable_final_state_cotangents());
    request.mutable_options()->set_return_trajectory(true);
    request.add_gradients(v1::GRADIENT_BY_INITIAL_STATE);
    request.add_gradients(generates ? v1::GRADIENT_BY_STEP_NOISE : v1::GRADIENT_BY_INPUTS);
    for (const BackwardWay way : {BackwardWay::kSequential, BackwardWay::kParallel}) {
      const bool parallel = way == BackwardWay::kParallel;
      request.set_way(parallel ? v1::BACKWARD_WAY_PARALLEL : v1::BACKWARD_WAY_UNSPECIFIED);
      const v1::GradientResponse response = Answer(request);
      const std::vector<float> states = Values(response.trajectory());
      ASSERT_EQ(std::ssize(states), kSamples * (steps + 1) * kLatent);

      const std::vector<float> inputs = generates ? std::vector<float>() : Values(request.inputs());
      std::vector<float> initial(kSamples * kLatent),
          other(kSamples * (generates ? steps * kLatent : kPixels));
      std::vector<BackwardReport> reports(kSamples);
      BackwardItem item{.samples = {.num_samples = kSamples, .inputs = inputs, .seed = 5},
                        .states = states,
                        .of_outputs = of_outputs,
                        .of_final = of_final,
                        .initial = initial,
                        .reports = reports};
      if (generates) item.samples.initial_noise = noise;
      (generates ? item.step_noise : item.inputs) = other;
      const BackwardOptions options =
          ResolveBackward({.way = way}, *system->backward_limits(), steps).value();
      ASSERT_TRUE(system->GoBack(options, {&item, 1}).ok());

      EXPECT_EQ(Values(response.initial_state_gradients()), initial);
      EXPECT_EQ(Values(generates ? response.step_noise_gradients() : response.input_gradients()),
                other);
      const v1::BackwardReport& report = response.backward();
      EXPECT_EQ(report.way(), ToString(way));
      EXPECT_EQ(report.shooting_interval(), options.shooting_interval);
      EXPECT_GT(report.seconds(), 0);
      ASSERT_EQ(report.samples_size(), kSamples);
      EXPECT_EQ(report.samples(0).termination(), "direct");
      EXPECT_EQ(report.samples(0).dependent_stages(), reports[0].dependent_stages);
      EXPECT_EQ(report.samples(0).column_passes(), reports[0].column_passes);
    }
  }
}

// The ways add up in different orders: 1024 roundings of 6e-8 each way, and those of the matrices.
TEST_F(GradientTest, BothWaysAgree) {
  v1::GradientRequest request = OfResnet(Normals(kSamples * kPixels, 3));
  SetTensor({kSamples, kClasses}, Normals(kSamples * kClasses, 4), request.mutable_cotangents());
  request.set_way(v1::BACKWARD_WAY_SEQUENTIAL);
  const v1::GradientResponse sequential = Answer(request);
  request.set_way(v1::BACKWARD_WAY_PARALLEL);
  for (const int32_t interval : {0, 1, 5, 1024}) {
    request.set_shooting_interval(interval);
    const v1::GradientResponse parallel = Answer(request);
    EXPECT_EQ(parallel.backward().shooting_interval(), interval == 0 ? 32 : interval);
    EXPECT_GT(sequential.backward().samples(0).dependent_stages(),
              interval == 1024 ? 0 : parallel.backward().samples(0).dependent_stages());
    const std::vector<float> a = Values(sequential.input_gradients());
    const std::vector<float> b = Values(parallel.input_gradients());
    float largest = 0;
    for (const float x : a) largest = testing::Larger(largest, std::fabs(x));
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-4 * largest) << interval;
  }
}

TEST_F(GradientTest, CotangentsHaveTheBitsOfRequestsOfTheirOwn) {
  constexpr int64_t kColumns = 35;  // more than go back together
  for (v1::GradientRequest request :
       {OfResnet(Normals(kSamples * kPixels, 3)), OfDdpm(Normals(kSamples * kLatent, 3))}) {
    const int64_t dim = request.has_generation() ? kPixels : kClasses;
    const std::vector<float> all = Normals(kSamples * kColumns * dim, 4);
    request.add_gradients(v1::GRADIENT_BY_INITIAL_STATE);
    for (const v1::BackwardWay way : {v1::BACKWARD_WAY_SEQUENTIAL, v1::BACKWARD_WAY_PARALLEL}) {
      request.set_way(way);
      SetTensor({kSamples, kColumns, dim}, all, request.mutable_cotangents());
      const v1::GradientResponse together = Answer(request);
      EXPECT_THAT(together.initial_state_gradients().shape(),
                  ElementsAre(kSamples, kColumns, kLatent));
      const std::vector<float> got = Values(together.initial_state_gradients());
      ASSERT_EQ(std::ssize(got), kSamples * kColumns * kLatent);
      for (const int64_t column : {int64_t{0}, int64_t{31}, kColumns - 1}) {
        std::vector<float> one;
        for (int64_t i = 0; i < kSamples; ++i) {
          const auto first = all.begin() + (i * kColumns + column) * dim;
          one.insert(one.end(), first, first + dim);
        }
        SetTensor({kSamples, dim}, one, request.mutable_cotangents());
        const std::vector<float> alone = Values(Answer(request).initial_state_gradients());
        for (int64_t i = 0; i < kSamples; ++i) {
          const auto first = got.begin() + (i * kColumns + column) * kLatent;
          EXPECT_TRUE(std::equal(first, first + kLatent, alone.begin() + i * kLatent))
              << "column " << column << " of sample " << i;
        }
      }
    }
  }
}

TEST_F(GradientTest, GoesBackAlongStatesThatAreHandedIn) {
  v1::GradientRequest request = OfResnet(Normals(kSamples * kPixels, 3));
  SetTensor({kSamples, kClasses}, Normals(kSamples * kClasses, 4), request.mutable_cotangents());
  request.mutable_options()->set_return_trajectory(true);
  request.set_request_id("first");
  const v1::GradientResponse solved = Answer(request);
  EXPECT_EQ(solved.request_id(), "first");
  EXPECT_EQ(solved.report().samples_size(), kSamples);
  request.clear_options();
  *request.mutable_trajectory() = solved.trajectory();

  const v1::GradientResponse response = Answer(request);

  EXPECT_EQ(response.input_gradients().data(), solved.input_gradients().data());
  EXPECT_FALSE(response.has_outputs());
  EXPECT_FALSE(response.has_trajectory());
  EXPECT_EQ(response.report().samples_size(), 0);
  EXPECT_EQ(response.report().device(), solved.report().device());
  EXPECT_EQ(response.backward().samples_size(), kSamples);
}

double Largest(const std::vector<float>& a) {
  double largest = 0;
  for (const float x : a) largest = testing::Larger(largest, std::fabs(double{x}));
  return largest;
}

// At trajectories of newton, against the gradient at the sequential trajectory.
TEST_F(GradientTest, SaysWhatTheToleranceMakesOfIt) {
  for (v1::GradientRequest request :
       {OfResnet(Normals(kSamples * kPixels, 3)), OfDdpm(Normals(kSamples * kLatent, 3))}) {
    const int64_t dim = request.has_generation() ? kPixels : kClasses;
    SetTensor({kSamples, dim}, Normals(kSamples * dim, 4), request.mutable_cotangents());
    request.add_gradients(v1::GRADIENT_BY_INITIAL_STATE);
    request.set_estimate_error(true);
    const v1::GradientResponse sequential = Answer(request);
    for (const v1::SampleBackwardReport& report : sequential.backward().samples())
      EXPECT_FALSE(report.has_gradient_error_estimate());
    const std::vector<float> exact = Values(sequential.initial_state_gradients());
    request.mutable_options()->set_solver("newton");
    request.mutable_options()->set_rtol(1e-2);
    const v1::GradientResponse solved = Answer(request);
    const std::vector<float> got = Values(solved.initial_state_gradients());
    for (int64_t i = 0; i < kSamples; ++i) {
      const auto part = [&](const std::vector<float>& all) {
        return std::vector(all.begin() + i * kLatent, all.begin() + (i + 1) * kLatent);
      };
      std::vector<float> way = part(got);
      for (int64_t k = 0; k < kLatent; ++k) way[k] -= part(exact)[k];
      const auto& report = solved.backward().samples(static_cast<int>(i));
      ASSERT_EQ(solved.report().samples(static_cast<int>(i)).solver(), "newton");
      ASSERT_TRUE(report.has_gradient_error_estimate()) << request.model();
      // A relu has the same slope at all displaced states that are on its side of the kink.
      if (request.has_generation()) {
        EXPECT_GT(report.gradient_error_estimate(), 0);
      }
      EXPECT_LE(Largest(way) / Largest(part(got)), report.gradient_error_estimate() + 1e-5);
    }
    request.set_estimate_error(false);
    const v1::GradientResponse plain = Answer(request);
    EXPECT_EQ(plain.initial_state_gradients().data(), solved.initial_state_gradients().data());
    EXPECT_FALSE(plain.backward().samples(0).has_gradient_error_estimate());
  }
}

TEST_F(GradientTest, CrossEntropyIsItsFormula) {
  v1::GradientRequest request = OfResnet(Normals(kSamples * kPixels, 3));
  request.set_loss(v1::LOSS_CROSS_ENTROPY);
  request.add_target_classes(4);
  request.add_target_classes(9);
  const v1::GradientResponse response = Answer(request);
  const std::vector<float> outputs = Values(response.outputs());
  std::vector<float> cotangents;
  for (int64_t i = 0; i < kSamples; ++i) {
    double sum = 0;
    const float* const y = outputs.data() + i * kClasses;
    for (int64_t j = 0; j < kClasses; ++j) sum += std::exp(double{y[j]});
    const int32_t label = request.target_classes(static_cast<int>(i));
    EXPECT_NEAR(response.losses(static_cast<int>(i)), std::log(sum) - y[label],
                1e-12 * std::log(sum));
    for (int64_t j = 0; j < kClasses; ++j)
      cotangents.push_back(static_cast<float>(std::exp(double{y[j]}) / sum - (j == label ? 1 : 0)));
  }
  request.clear_loss();
  request.clear_target_classes();
  SetTensor({kSamples, kClasses}, cotangents, request.mutable_cotangents());
  const std::vector<float> got = Values(response.input_gradients());
  const std::vector<float> want = Values(Answer(request).input_gradients());
  float largest = 0;
  for (const float x : want) largest = testing::Larger(largest, std::fabs(x));
  // The largest output is taken out of the sum there: a rounding of the cotangents.
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5 * largest);
}

TEST_F(GradientTest, BatchesDoNotChangeBits) {
  const double before = Metric("deeppcr_batch_samples_sum{model=\"digits-resnet\",version=\"1\"}");
  v1::GradientRequest request = OfResnet(Normals(kSamples * kPixels, 3));
  SetTensor({kSamples, kClasses}, Normals(kSamples * kClasses, 4), request.mutable_cotangents());
  const v1::GradientResponse alone = Answer(request);
  int shared = 0;
  for (int round = 0; round < 20 && shared == 0; ++round) {
    std::vector<v1::GradientResponse> responses(24);
    std::vector<std::thread> threads;
    for (v1::GradientResponse& response : responses)
      threads.emplace_back([&] { response = Answer(request); });
    for (std::thread& thread : threads) thread.join();
    for (const v1::GradientResponse& response : responses) {
      EXPECT_EQ(response.input_gradients().data(), alone.input_gradients().data());
      EXPECT_EQ(response.outputs().data(), alone.outputs().data());
      shared += response.report().batch_samples() > kSamples ? 1 : 0;
    }
  }
  EXPECT_GT(shared, 0);
  EXPECT_GT(Metric("deeppcr_batch_samples_sum{model=\"digits-resnet\",version=\"1\"}"), before);
}

// Cotangents that take minutes to go back.
v1::GradientRequest LongRequest() {
  constexpr int64_t kColumns = 4096;
  v1::GradientRequest request = OfDdpm(Normals(8 * kLatent, 3));
  request.mutable_generation()->set_num_inference_steps(1000);
  SetTensor({8, kColumns, kLatent}, std::vector<float>(8 * kColumns * kLatent, 1.0f),
            request.mutable_final_state_cotangents());
  return request;
}

TEST_F(GradientTest, EndsAtItsDeadline) {
  grpc::ClientContext context;
  const auto start = std::chrono::steady_clock::now();
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
  v1::GradientResponse response;
  const grpc::Status status = stub_->Gradient(&context, LongRequest(), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  const std::string in_flight = "deeppcr_requests_in_flight{method=\"Gradient\"}";
  for (int i = 0; i < 1000 && Metric(in_flight) != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(Metric(in_flight), 0);
  ExpectServing();
}

TEST_F(GradientTest, EndsWhenItsClientCancels) {
  grpc::ClientContext context;
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    context.TryCancel();
  });
  v1::GradientResponse response;
  const grpc::Status status = stub_->Gradient(&context, LongRequest(), &response);
  canceller.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  const std::string in_flight = "deeppcr_requests_in_flight{method=\"Gradient\"}";
  for (int i = 0; i < 1000 && Metric(in_flight) != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(Metric(in_flight), 0);
  ExpectServing();
}

TEST_F(GradientTest, RefusesRepliesAboveTheLimitAndTooManyCotangents) {
  v1::GradientRequest request = OfDdpm(Normals(kSamples * kLatent, 3));
  SetTensor({kSamples, 2000, kLatent}, Normals(kSamples * 2000 * kLatent, 3),
            request.mutable_final_state_cotangents());
  request.add_gradients(v1::GRADIENT_BY_STEP_NOISE);
  ExpectRefused(request, grpc::StatusCode::RESOURCE_EXHAUSTED,
                "Ask for fewer samples, cotangents or gradients");

  SetTensor({kSamples, 4097, kLatent}, Normals(kSamples * 4097 * kLatent, 3),
            request.mutable_final_state_cotangents());
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT,
                "final_state_cotangents.shape[1]: expected a number in [1, 4096], got 4097 (model "
                "\"digits-ddpm\")");
}

TEST_F(GradientTest, RefusesStatesAboveTheBudget) {
  const auto server =
      testing::ServerProcess::Start(repository_->path(), {"--gradients", "--max_queue_bytes=1MiB"});
  ASSERT_NE(server, nullptr);
  v1::GradientRequest request = OfResnet(Normals(64 * kPixels, 3));
  SetTensor({64, kClasses}, Normals(64 * kClasses, 4), request.mutable_cotangents());
  v1::GradientResponse response;
  const grpc::Status status = Call(*Connect(server->address()), request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(),
            "the states of the solve would have 4198400 bytes; the limit is 1048576. Ask for fewer "
            "samples");
}

TEST_F(GradientTest, RefusesValuesThatAreNotFinite) {
  v1::GradientRequest request = OfResnet(Normals(kSamples * kPixels, 3));
  std::vector<float> values = Normals(kSamples * kClasses, 4);
  values[3] = std::nanf("");
  SetTensor({kSamples, kClasses}, values, request.mutable_cotangents());
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT,
                "cotangents.data: expected finite values, got nan at flat index 3");
}

TEST_F(GradientTest, SaysWhereAGradientOverflows) {
  v1::GradientRequest request;
  request.set_model("rough");
  // The derivative grows from layer to layer while the states are small.
  SetTensor({2, kWidth}, std::vector<float>(2 * kWidth, 1e-20f), request.mutable_inputs());
  SetTensor({2, kOutputs}, {1, 1, 1, 3e38f, 3e38f, 3e38f}, request.mutable_cotangents());
  request.mutable_options()->set_solver("sequential");
  const v1::GradientResponse response = Answer(request);
  ASSERT_EQ(response.backward().samples_size(), 2);
  EXPECT_EQ(response.backward().samples(0).termination(), "direct");
  EXPECT_EQ(response.backward().samples(1).termination(), "non_finite");

  request.mutable_options()->set_on_no_convergence(v1::ON_NO_CONVERGENCE_ERROR);
  ExpectRefused(request, grpc::StatusCode::ABORTED,
                "the gradient of sample 1 ended with non_finite (on_no_convergence is error)");
}

TEST_F(GradientTest, GivesNoGradientOfStatesThatHaveNotConverged) {
  v1::GradientRequest request;
  request.set_model("net");
  SetTensor({1, kWidth}, std::vector<float>(kWidth, 3e38f), request.mutable_inputs());
  SetTensor({1, kOutputs}, {1, 1, 1}, request.mutable_cotangents());
  ExpectRefused(request, grpc::StatusCode::ABORTED,
                "sample 0 did not converge: sequential ended with non_finite, and its states have "
                "no gradient");
}

TEST_F(GradientTest, CountsInMetrics) {
  v1::GradientRequest request;
  request.set_model("net");
  *request.mutable_inputs() = MakeRequest().inputs();
  SetTensor({2, kOutputs}, {1, 1, 1, 1, 1, 1}, request.mutable_cotangents());
  request.mutable_options()->set_solver("newton");
  Answer(request);
  const std::string labels =
      "_count{method=\"Gradient\",model=\"net\",solver=\"newton\",version=\"1\"}";
  const std::string backward =
      "deeppcr_stage_duration_seconds_count{model=\"net\",stage=\"backward\",version=\"1\"}";
  // A request is counted when gRPC is done with its reply, a moment after the client has it.
  for (int i = 0; i < 1000 && Metric(backward) < 1; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const double counted = Metric(backward);
  EXPECT_GE(counted, 1);
  EXPECT_GE(Metric("deeppcr_request_duration_seconds" + labels), 1);
  EXPECT_GE(Metric("deeppcr_solve_duration_seconds" + labels), 1);
  EXPECT_GE(Metric("deeppcr_requests_total{code=\"OK\",method=\"Gradient\",model=\"net\"}"), 1);

  v1::ForwardResponse response;
  const std::string sent =
      "deeppcr_stage_duration_seconds_count{model=\"net\",stage=\"send\",version=\"1\"}";
  const double before = Metric(sent);
  ASSERT_TRUE(deeppcr::Call(*stub_, MakeRequest(), &response).ok());
  for (int i = 0; i < 1000 && Metric(sent) < before + 1; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(Metric(backward), counted) << "Forward goes no way back";
}

TEST_F(GradientTest, IsAStageOfItsTrace) {
  const testing::TemporaryDirectory folder;
  const auto server = testing::ServerProcess::Start(
      repository_->path(), {"--gradients", "--trace_file=" + folder.File("trace")});
  ASSERT_NE(server, nullptr);
  const auto stub = Connect(server->address());
  v1::GradientRequest request;
  request.set_model("net");
  *request.mutable_inputs() = MakeRequest().inputs();
  SetTensor({2, kOutputs}, {1, 1, 1, 1, 1, 1}, request.mutable_cotangents());
  v1::ForwardResponse forward;
  ASSERT_TRUE(deeppcr::Call(*stub, MakeRequest(), &forward).ok());
  v1::GradientResponse response;
  ASSERT_TRUE(Call(*stub, request, &response).ok());
  server->Signal(SIGTERM);
  ASSERT_EQ(server->Wait(20), 0);
  std::ifstream file(folder.File("trace"));
  const std::string trace{std::istreambuf_iterator<char>(file), {}};
  const size_t forward_at = trace.find("\"name\":\"Forward net\"");
  const size_t at = trace.find("\"name\":\"Gradient net\"");
  ASSERT_NE(forward_at, std::string::npos);
  ASSERT_NE(at, std::string::npos);
  EXPECT_GT(trace.find("\"name\":\"backward\""), at) << "Forward goes no way back";
  size_t stage_at = at;
  for (const char* stage : {"recv", "queue", "encode", "solve", "decode", "backward", "send"}) {
    stage_at = trace.find("\"name\":\"" + std::string(stage) + "\"", stage_at);
    EXPECT_NE(stage_at, std::string::npos) << stage;
  }
}

TEST_F(GradientTest, IsRefusedUnlessTheOperatorAllowsIt) {
  const auto server = testing::ServerProcess::Start(repository_->path());
  ASSERT_NE(server, nullptr);
  const auto without = Connect(server->address());
  v1::GradientRequest request = OfResnet(Normals(kSamples * kPixels, 3));
  SetTensor({kSamples, kClasses}, Normals(kSamples * kClasses, 4), request.mutable_cotangents());
  v1::GradientResponse response;
  const grpc::Status status = Call(*without, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(status.error_message(),
            "the server was started without gradients; start it with --gradients");

  v1::GetModelRequest named;
  named.set_model("digits-resnet");
  for (v1::DeepPcr::Stub* stub : {without.get(), stub_.get()}) {
    v1::GetModelResponse model;
    grpc::ClientContext context;
    ASSERT_TRUE(stub->GetModel(&context, named, &model).ok());
    EXPECT_EQ(model.gradients(), stub == stub_.get());
  }
}

}  // namespace
}  // namespace deeppcr
