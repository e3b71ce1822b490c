// SPDX-License-Identifier: Apache-2.0
// No answer that did not converge has an estimate of its error: by either protocol, on the command
// line and in the metrics. And every fallback has its reason.
#include <fstream>
#include <functional>

#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/generation_fixture.h"

namespace deeppcr {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kIterative[] = {"newton", "quasi_newton", "picard", "jacobi"};
constexpr v1::OnNoConvergence kAnswers[] = {v1::ON_NO_CONVERGENCE_RETURN,
                                            v1::ON_NO_CONVERGENCE_FALLBACK};

// A request that newton cannot answer.
struct Failure {
  std::string termination;  // reason why newton stops
  std::string model = "net";
  double rtol = 1e-6;
  int32_t max_iterations = 1;
  float input = 0.5f;
};
const std::vector<Failure>& Failures() {
  static const std::vector<Failure> failures = {
      {.termination = "max_iterations"},
      {.termination = "precision_limited", .rtol = 1e-7, .max_iterations = kLayers},
      {.termination = "non_finite", .model = "loud", .input = 3e38f}};
  return failures;
}

void SetOptions(const Failure& failure, const std::string& solver, v1::OnNoConvergence action,
                v1::SolverOptions* options) {
  options->set_solver(solver);
  options->set_rtol(failure.rtol);
  options->set_atol(0);
  options->set_max_iterations(failure.max_iterations);
  options->set_shooting_interval(1);
  options->set_initial_guess(v1::INITIAL_GUESS_CONSTANT);
  if (solver == "newton") options->set_warm_sweeps(0);
  options->set_on_no_convergence(action);
}

v1::Tensor InputsOf(const Failure& failure) {
  v1::Tensor inputs;
  std::vector<float> values(2 * kWidth, failure.input);
  for (size_t i = 0; i < values.size(); i += 3) values[i] = -values[i];
  SetTensor({2, kWidth}, values, &inputs);
  return inputs;
}

v1::ForwardRequest RequestOf(const Failure& failure, const std::string& solver,
                             v1::OnNoConvergence action) {
  v1::ForwardRequest request;
  request.set_model(failure.model);
  *request.mutable_inputs() = InputsOf(failure);
  SetOptions(failure, solver, action, request.mutable_options());
  return request;
}

// The names of all fields of a message, nested ones included, that are set, are estimates, and are
// not above 0.
std::vector<std::string> IdleEstimates(const Message& message) {
  std::vector<std::string> names;
  std::vector<const FieldDescriptor*> fields;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    const bool estimate = field->name().find("estimate") != std::string::npos;
    EXPECT_TRUE(!estimate || field->has_presence()) << field->full_name();
    if (estimate && reflection.HasField(message, field) &&
        !(reflection.GetDouble(message, field) > 0))
      names.push_back(field->full_name());
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map()) continue;
    const int count = field->is_repeated() ? reflection.FieldSize(message, field)
                                           : int{reflection.HasField(message, field)};
    for (int k = 0; k < count; ++k) {
      const Message& within = field->is_repeated()
                                  ? reflection.GetRepeatedMessage(message, field, k)
                                  : reflection.GetMessage(message, field);
      for (const std::string& name : IdleEstimates(within)) names.push_back(name);
    }
  }
  return names;
}

// `expected`: the reason why the solver gives up; empty if that is not known.
void ExpectHonest(const v1::SampleReport& sample, const std::string& expected,
                  const std::string& what) {
  const bool certified = sample.converged() && sample.solver() != "sequential";
  EXPECT_EQ(sample.has_error_estimate(), certified) << what;
  EXPECT_EQ(sample.has_output_error_estimate(), certified) << what;
  EXPECT_EQ(sample.has_rounding_estimate(),
            certified || sample.termination() == "precision_limited")
      << what;
  EXPECT_EQ(sample.fallback(), sample.has_attempt()) << what;
  const std::string reason =
      sample.fallback() ? sample.attempt().termination() : sample.termination();
  EXPECT_TRUE(expected.empty() || reason == expected) << what << ": " << reason;
}

class HonestyTest : public ServiceTest {
 protected:
  static void SetUpTestSuite() {
    repository_ = std::make_unique<testing::TemporaryDirectory>();
    testing::WriteRandomModel(repository_->File("net/1"), {});
    testing::WriteRandomModel(repository_->File("loud/1"), {.gain = 50});
    WriteDiffusionModel(repository_->File("ddim/1"), DdimConfig(), "DDIMScheduler");
    server_ = testing::ServerProcess::Start(repository_->path(), {"--shadow_rate=0"});
  }

  double Estimates(const std::string& model, const std::string& solver) {
    return std::max(0.0, Metric("deeppcr_error_estimate_count{model=\"" + model + "\",solver=\"" +
                                solver + "\",version=\"1\"}"));
  }
  double Fallbacks(const std::string& model, const std::string& reason) {
    return Metric("deeppcr_fallbacks_total{model=\"" + model + "\",reason=\"" + reason +
                  "\",version=\"1\"}");
  }

  static grpc::Status Infer(const inference::ModelInferRequest& request,
                            inference::ModelInferResponse* response) {
    const auto stub = inference::GRPCInferenceService::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    return stub->ModelInfer(&context, request, response);
  }

  // Runs the client; returns standard output and standard error.
  static std::string Cli(std::vector<std::string> arguments) {
    arguments.push_back("--server=" + server_->address());
    const testing::Finished finished = testing::RunProgram(DEEPPCR_CLIENT_BINARY, arguments);
    EXPECT_EQ(finished.exit_code, 0) << finished.output;
    return finished.output;
  }
  static std::vector<std::string> Flags(const Failure& failure, const std::string& action) {
    return {"--model=" + failure.model,
            "--rtol=" + std::to_string(failure.rtol * 1e7) + "e-7",
            "--atol=0",
            "--max_iterations=" + std::to_string(failure.max_iterations),
            "--shooting_interval=1",
            "--initial_guess=constant",
            "--on_no_convergence=" + action};
  }
  // Writes the inputs of the failure to a file.
  static std::string WriteInputs(const Failure& failure) {
    const std::string path = repository_->File(failure.termination + ".csv");
    std::ofstream file(path);
    const std::vector<float> values = Values(InputsOf(failure));
    for (size_t i = 0; i < values.size(); ++i)
      file << values[i] << ((i + 1) % kWidth == 0 ? "\n" : ",");
    return path;
  }
  static nlohmann::json JsonIn(const std::string& text) {
    return nlohmann::json::parse(text.substr(text.find("\n{") + 1), nullptr, false);
  }
};

TEST_F(HonestyTest, RepliesOfForward) {
  for (const Failure& failure : Failures()) {
    for (const std::string solver : kIterative) {
      const double estimates = Estimates(failure.model, solver);
      double certified = 0;
      for (const v1::OnNoConvergence action : kAnswers) {
        const std::string what =
            failure.termination + " " + solver + " " + v1::OnNoConvergence_Name(action);
        v1::ForwardResponse response;
        const grpc::Status status = Call(*stub_, RequestOf(failure, solver, action), &response);
        ASSERT_TRUE(status.ok()) << what << ": " << status.error_message();
        EXPECT_THAT(IdleEstimates(response), ::testing::IsEmpty()) << what;
        for (const v1::SampleReport& sample : response.report().samples()) {
          ExpectHonest(sample, solver == "newton" ? failure.termination : "", what);
          EXPECT_EQ(sample.fallback(),
                    action == v1::ON_NO_CONVERGENCE_FALLBACK && sample.solver() == "sequential")
              << what;
          certified += sample.has_error_estimate() ? 1 : 0;
        }
      }
      EXPECT_EQ(Estimates(failure.model, solver), estimates + certified) << solver;
    }
  }
}

TEST_F(HonestyTest, NewtonFailsAsPlannedAndIsCountedByReason) {
  for (const Failure& failure : Failures()) {
    const double before = Fallbacks(failure.model, failure.termination);
    v1::ForwardResponse returned, fallen;
    const auto ask = [&](v1::OnNoConvergence action, v1::ForwardResponse* response) {
      return Call(*stub_, RequestOf(failure, "newton", action), response);
    };
    ASSERT_TRUE(ask(v1::ON_NO_CONVERGENCE_RETURN, &returned).ok());
    ASSERT_TRUE(ask(v1::ON_NO_CONVERGENCE_FALLBACK, &fallen).ok());

    EXPECT_FALSE(returned.report().samples(0).converged());
    const v1::SampleReport& failed = returned.report().samples(0);
    const v1::SampleReport& sample = fallen.report().samples(0);
    EXPECT_EQ(sample.termination(), failure.model == "loud" ? "non_finite" : "direct");
    EXPECT_EQ(sample.attempt().solver(), "newton");
    EXPECT_EQ(sample.attempt().termination(), failed.termination());
    EXPECT_EQ(sample.attempt().iterations(), failed.iterations());
    EXPECT_EQ(sample.attempt().chord_corrections(), failed.chord_corrections());
    EXPECT_EQ(sample.attempt().update(), failed.update());
    EXPECT_EQ(sample.attempt().rounding_estimate(), failed.rounding_estimate());
    EXPECT_EQ(sample.dependent_stages(), failed.dependent_stages() + kLayers);
    EXPECT_EQ(sample.column_passes(), failed.column_passes() + 1);
    EXPECT_EQ(Fallbacks(failure.model, failure.termination), before + 2);
  }
}

TEST_F(HonestyTest, TheErrorNamesTheReasonAndNoEstimate) {
  for (const Failure& failure : Failures()) {
    v1::ForwardResponse response;
    const grpc::Status status =
        Call(*stub_, RequestOf(failure, "newton", v1::ON_NO_CONVERGENCE_ERROR), &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
    EXPECT_THAT(status.error_message(), AllOf(HasSubstr("ended with " + failure.termination),
                                              HasSubstr("update"), Not(HasSubstr("estimate"))));
  }
}

inference::ModelInferRequest InferRequestOf(const Failure& failure, const std::string& action) {
  inference::ModelInferRequest request;
  request.set_model_name(failure.model);
  auto* input = request.add_inputs();
  input->set_name("inputs");
  input->set_datatype("FP32");
  *input->mutable_shape() = InputsOf(failure).shape();
  request.add_raw_input_contents(InputsOf(failure).data());
  auto& parameters = *request.mutable_parameters();
  parameters["solver"].set_string_param("newton");
  parameters["rtol"].set_double_param(failure.rtol);
  parameters["atol"].set_double_param(0);
  parameters["max_iterations"].set_int64_param(failure.max_iterations);
  parameters["shooting_interval"].set_int64_param(1);
  parameters["warm_sweeps"].set_int64_param(0);
  parameters["initial_guess"].set_string_param("constant");
  parameters["on_no_convergence"].set_string_param(action);
  return request;
}

TEST_F(HonestyTest, ParametersOfV2) {
  for (const Failure& failure : Failures()) {
    for (const std::string action : {"return", "fallback"}) {
      inference::ModelInferResponse response;
      const grpc::Status status = Infer(InferRequestOf(failure, action), &response);
      ASSERT_TRUE(status.ok()) << status.error_message();
      const auto& parameters = response.parameters();
      for (const auto& [name, value] : parameters)
        EXPECT_THAT(name, Not(HasSubstr("estimate"))) << failure.termination << " " << action;
      const bool fell = action == "fallback";
      EXPECT_EQ(parameters.at("fallbacks").int64_param(), fell ? 2 : 0);
      EXPECT_EQ(parameters.contains("attempt_termination"), fell);
      EXPECT_EQ(parameters.at(fell ? "attempt_termination" : "termination").string_param(),
                failure.termination);
    }
  }
}

TEST_F(HonestyTest, WhatADeadlineStoppedHasNoReplyAndNoEstimate) {
  const double estimates = Estimates("net", "newton");
  inference::ModelInferRequest request = InferRequestOf({.rtol = 1e-3}, "return");
  (*request.mutable_parameters())["timeout"].set_int64_param(1);
  inference::ModelInferResponse response;

  const grpc::Status status = Infer(request, &response);

  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), Not(HasSubstr("estimate")));
  EXPECT_EQ(response.ByteSizeLong(), 0u);
  EXPECT_EQ(Estimates("net", "newton"), estimates);
}

TEST_F(HonestyTest, RowsOfCompare) {
  for (const Failure& failure : Failures()) {
    v1::CompareRequest request;
    request.set_model(failure.model);
    *request.mutable_inputs() = InputsOf(failure);
    for (const v1::OnNoConvergence action : kAnswers)
      SetOptions(failure, "newton", action, request.add_options());
    request.set_repetitions(1);
    v1::CompareResponse response;
    grpc::ClientContext context;

    const grpc::Status status = stub_->Compare(&context, request, &response);

    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_THAT(IdleEstimates(response), ::testing::IsEmpty());
    for (const v1::CompareRow& row : response.rows()) EXPECT_FALSE(row.has_error_estimate());
    ASSERT_EQ(response.rows(0).unconverged_reasons_size(), 1);
    EXPECT_EQ(response.rows(0).unconverged_reasons(0).termination(), failure.termination);
    EXPECT_EQ(response.rows(0).unconverged_reasons(0).samples(), 2);
    ASSERT_EQ(response.rows(1).fallback_reasons_size(), 1);
    EXPECT_EQ(response.rows(1).fallback_reasons(0).termination(), failure.termination);
    EXPECT_EQ(response.rows(1).fallback_reasons(0).samples(), 2);
  }
}

TEST_F(HonestyTest, GenerationAndItsProgress) {
  for (const int32_t most : {1, 16}) {
    v1::GenerateRequest request = DdimRequest(2);
    v1::SolverOptions& options = *request.mutable_options();
    options.set_rtol(1e-7);
    options.set_atol(0);
    options.set_max_iterations(most);
    options.set_shooting_interval(1);
    options.set_initial_guess(v1::INITIAL_GUESS_CONSTANT);
    options.set_on_no_convergence(v1::ON_NO_CONVERGENCE_RETURN);
    const double estimates = Estimates("ddim", "newton");

    const Streamed streamed = Stream(*stub_, request);

    ASSERT_EQ(streamed.results.size(), 1u) << streamed.status.error_message();
    ASSERT_FALSE(streamed.progress.empty());
    for (const v1::GenerateProgress& progress : streamed.progress)
      EXPECT_FALSE(progress.has_error_estimate());
    const v1::SolveReport& report = streamed.results[0].report();
    EXPECT_THAT(IdleEstimates(report), ::testing::IsEmpty());
    for (const v1::SampleReport& sample : report.samples()) {
      EXPECT_FALSE(sample.converged());
      ExpectHonest(sample, most == 1 ? "max_iterations" : "precision_limited", "");
    }
    EXPECT_EQ(Estimates("ddim", "newton"), estimates);
  }
}

TEST_F(HonestyTest, WhatConvergedHasItsEstimateEverywhere) {
  v1::ForwardRequest request = MakeRequest(2);
  request.mutable_options()->set_solver("newton");
  v1::ForwardResponse response;
  const double estimates = Estimates("net", "newton");
  ASSERT_TRUE(Call(*stub_, request, &response).ok());
  EXPECT_THAT(IdleEstimates(response), ::testing::IsEmpty());
  ExpectHonest(response.report().samples(1), "converged", "");
  EXPECT_EQ(Estimates("net", "newton"), estimates + 2);
  EXPECT_THAT(Cli({"compare", "net", "--row=newton", "--json=-"}), HasSubstr("\"error_estimate\""));
}

TEST_F(HonestyTest, TheCommandLineSaysWhyAndShowsNoEstimate) {
  for (const Failure& failure : Failures()) {
    const std::string in = "--in=" + WriteInputs(failure);
    for (const std::string action : {"return", "fallback"}) {
      std::vector<std::string> forward = Flags(failure, action);
      forward.insert(forward.begin(), "forward");
      forward.insert(forward.end(), {in, "--out=/dev/null", "--format=csv", "--report=-",
                                     "--solver=newton", "--warm_sweeps=0"});
      const std::string said = Cli(forward);
      EXPECT_THAT(said, HasSubstr((action == "return" ? "did not converge ("
                                                      : "fell back to sequential (") +
                                  failure.termination + " 2)"));
      EXPECT_THAT(said, Not(HasSubstr("error_estimate"))) << said;

      std::vector<std::string> compare = Flags(failure, action);
      compare.insert(compare.begin(), "compare");
      compare.insert(compare.end(), {in, "--repetitions=1", "--row=newton,warm_sweeps=0"});
      const std::string table = Cli(compare);
      EXPECT_THAT(table, HasSubstr(action == "return" ? "no: " + failure.termination + " 2"
                                                      : "fell back (" + failure.termination));
      compare.push_back("--json=-");
      EXPECT_THAT(Cli(compare), Not(HasSubstr("error_estimate")));
    }
  }
}

TEST_F(HonestyTest, TheCommandLineDrawsNoEstimateOfUnconvergedSamples) {
  const std::string conditioning = repository_->File("conditioning.csv");
  std::ofstream(conditioning) << "1,2,3,4,5\n";
  const std::vector<std::string> generate = {"generate",
                                             "ddim",
                                             "--num=2",
                                             "--conditioning=" + conditioning,
                                             "--solver=newton",
                                             "--rtol=1e-7",
                                             "--atol=0",
                                             "--max_iterations=1",
                                             "--shooting_interval=1",
                                             "--initial_guess=constant",
                                             "--on_no_convergence=return"};
  const std::string table = Cli(generate);
  EXPECT_THAT(table, HasSubstr("did not converge (max_iterations 2)"));
  EXPECT_THAT(table, HasSubstr("all but max_iterations 2"));
  std::vector<std::string> json = generate;
  json.insert(json.end(), {"--json=-", "--quiet"});
  const nlohmann::json figures = JsonIn(Cli(json));
  ASSERT_FALSE(figures.is_discarded());
  EXPECT_TRUE(figures["solvers"][0]["max_error_estimate"].is_null());
  EXPECT_FALSE(figures["requests"][0]["samples"][0].contains("error_estimate"));
}

TEST_F(HonestyTest, TheLogNamesTheReasonsOfFallbacks) {
  // The log has only some of the lines of one name in a second.
  for (int i = 0; i < 100; ++i) {
    v1::ForwardResponse response;
    const v1::ForwardRequest request =
        RequestOf(Failures()[0], "newton", v1::ON_NO_CONVERGENCE_FALLBACK);
    ASSERT_TRUE(Call(*stub_, request, &response).ok());
    if (server_->Log().find("\"reasons\":\"max_iterations 2\"") != std::string::npos) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  FAIL() << server_->Log();
}

// The choice that GetModel reports for a solver is the one that requests for the solver run with.
TEST_F(HonestyTest, GetModelSaysWhatEverySolverRunsWith) {
  v1::GetModelRequest about;
  about.set_model("net");
  v1::GetModelResponse model;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->GetModel(&context, about, &model).ok());
  ASSERT_EQ(model.plan().choices_size(), static_cast<int>(std::size(kIterative)));
  const std::string listed = Cli({"models", "net", "--plan"});
  for (const v1::SolverChoice& choice : model.plan().choices()) {
    v1::ForwardRequest request = MakeRequest(1);
    request.mutable_options()->set_solver(choice.solver());
    v1::ForwardResponse response;
    ASSERT_TRUE(Call(*stub_, request, &response).ok());
    EXPECT_EQ(response.report().shooting_interval(), choice.shooting_interval());
    EXPECT_EQ(response.report().initial_guess(), choice.initial_guess());
    EXPECT_EQ(response.report().samples(0).warm_sweeps(), choice.warm_sweeps());
    EXPECT_GT(choice.max_iterations(), 0);
    EXPECT_THAT(listed, HasSubstr("\n" + choice.solver() + " "));
  }
}

}  // namespace
}  // namespace deeppcr
