// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/rpc_targets.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "inference/grpc_service.grpc.pb.h"

namespace deeppcr::bench {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;

constexpr int kClientsPerConnection = 6;

int NumConnections(int clients) {
  return (clients + kClientsPerConnection - 1) / kClientsPerConnection;
}

class ForwardTarget final : public Target {
 public:
  ForwardTarget(const RpcWorkload& workload, std::vector<std::unique_ptr<Client>> connections)
      : connections_(std::move(connections)) {
    for (int64_t i = 0; i < workload.inputs.rows(); ++i) {
      v1::ForwardRequest& request = requests_.emplace_back();
      request.set_model(workload.model);
      if (!workload.solver.empty()) request.mutable_options()->set_solver(workload.solver);
      RowsToTensor(workload.inputs, i, 1, request.mutable_inputs());
    }
  }

  absl::StatusOr<RequestOutcome> Send(int client, int64_t index) const override {
    const auto reply = connections_[static_cast<size_t>(client / kClientsPerConnection)]->Forward(
        RequestOf(index));
    if (!reply.ok()) return reply.status();
    const v1::SolveReport& report = reply->report();
    return RequestOutcome{.solver = report.samples_size() > 0 ? report.samples(0).solver() : "",
                          .samples = report.samples_size(),
                          .queue_seconds = report.queue_seconds(),
                          .solve_seconds = report.solve_seconds()};
  }

  absl::StatusOr<std::vector<float>> Outputs(int64_t index,
                                             const std::string& solver) const override {
    v1::ForwardRequest request = RequestOf(index);
    request.mutable_options()->set_solver(solver);
    const auto reply = connections_.front()->Forward(request);
    if (!reply.ok()) return reply.status();
    if (reply->report().samples_size() != 1 || !reply->report().samples(0).converged())
      return absl::InternalError(absl::StrCat(solver, " did not converge"));
    auto outputs = TensorToArray(reply->outputs(), "outputs");
    if (!outputs.ok()) return outputs.status();
    return std::move(outputs->values);
  }

  absl::StatusOr<std::string> Reply(int64_t index) const override {
    const auto reply = connections_.front()->Forward(RequestOf(index));
    if (!reply.ok()) return reply.status();
    return reply->SerializeAsString();
  }

 private:
  const v1::ForwardRequest& RequestOf(int64_t index) const {
    return requests_[static_cast<size_t>(index) % requests_.size()];
  }

  const std::vector<std::unique_ptr<Client>> connections_;
  std::vector<v1::ForwardRequest> requests_;
};

using InferStub = inference::GRPCInferenceService::Stub;

// The parameter of this name in a reply, or an empty one.
const inference::InferParameter& ParameterOf(const ModelInferResponse& reply, const char* name) {
  const auto found = reply.parameters().find(name);
  return found == reply.parameters().end() ? inference::InferParameter::default_instance()
                                           : found->second;
}

class InferTarget final : public Target {
 public:
  InferTarget(const RpcWorkload& workload, std::vector<std::unique_ptr<InferStub>> connections)
      : connections_(std::move(connections)) {
    for (int64_t i = 0; i < workload.inputs.rows(); ++i) {
      ModelInferRequest& request = requests_.emplace_back();
      request.set_model_name(workload.model);
      if (!workload.solver.empty()) SetSolver(workload.solver, &request);
      v1::Tensor tensor;
      RowsToTensor(workload.inputs, i, 1, &tensor);
      auto* input = request.add_inputs();
      input->set_name("inputs");
      input->set_datatype("FP32");
      *input->mutable_shape() = tensor.shape();
      request.add_raw_input_contents(tensor.data());
    }
  }

  absl::StatusOr<RequestOutcome> Send(int client, int64_t index) const override {
    const auto reply = Call(static_cast<size_t>(client / kClientsPerConnection), RequestOf(index));
    if (!reply.ok()) return reply.status();
    return RequestOutcome{.solver = ParameterOf(*reply, "solver").string_param(),
                          .samples = 1,
                          .queue_seconds = ParameterOf(*reply, "queue_seconds").double_param(),
                          .solve_seconds = ParameterOf(*reply, "solve_seconds").double_param()};
  }

  absl::StatusOr<std::vector<float>> Outputs(int64_t index,
                                             const std::string& solver) const override {
    ModelInferRequest request = RequestOf(index);
    SetSolver(solver, &request);
    const auto reply = Call(0, request);
    if (!reply.ok()) return reply.status();
    // A server without iterations says nothing about convergence.
    const bool judged = reply->parameters().contains("converged");
    if (judged && !ParameterOf(*reply, "converged").bool_param())
      return absl::InternalError(absl::StrCat(solver, " did not converge"));
    if (reply->raw_output_contents_size() != 1) return absl::InternalError("expected one output");
    std::vector<float> outputs(reply->raw_output_contents(0).size() / sizeof(float));
    std::memcpy(outputs.data(), reply->raw_output_contents(0).data(),
                outputs.size() * sizeof(float));
    return outputs;
  }

  absl::StatusOr<std::string> Reply(int64_t index) const override {
    const auto reply = Call(0, RequestOf(index));
    if (!reply.ok()) return reply.status();
    return Serialize(*reply);
  }

 private:
  static void SetSolver(const std::string& solver, ModelInferRequest* request) {
    (*request->mutable_parameters())["solver"].set_string_param(solver);
  }

  // Serializes maps in a fixed order, which is not the default.
  static std::string Serialize(const ModelInferResponse& reply) {
    std::string bytes;
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    reply.SerializeToCodedStream(&coded);
    coded.Trim();
    return bytes;
  }

  const ModelInferRequest& RequestOf(int64_t index) const {
    return requests_[static_cast<size_t>(index) % requests_.size()];
  }

  absl::StatusOr<ModelInferResponse> Call(size_t connection,
                                          const ModelInferRequest& request) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    ModelInferResponse reply;
    const grpc::Status status = connections_[connection]->ModelInfer(&context, request, &reply);
    if (status.ok()) return reply;
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }

  const std::vector<std::unique_ptr<InferStub>> connections_;
  std::vector<ModelInferRequest> requests_;
};

absl::StatusOr<std::unique_ptr<Target>> ConnectForward(const RpcWorkload& workload,
                                                       const std::string& address, int clients) {
  std::vector<std::unique_ptr<Client>> connections;
  for (int i = 0; i < NumConnections(clients); ++i) {
    auto client = Client::Create({.server = address, .connection_index = i});
    if (!client.ok()) return client.status();
    if (absl::Status status = (*client)->Connect(absl::Seconds(10)); !status.ok()) return status;
    connections.push_back(*std::move(client));
  }
  return std::make_unique<ForwardTarget>(workload, std::move(connections));
}

absl::StatusOr<std::unique_ptr<Target>> ConnectInfer(const RpcWorkload& workload,
                                                     const std::string& address, int clients) {
  std::vector<std::unique_ptr<InferStub>> connections;
  for (int i = 0; i < NumConnections(clients); ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt("deeppcr.connection_index", i);  // keeps equal channels apart
    const auto channel =
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10)))
      return absl::UnavailableError(absl::StrCat(address, ": no connection"));
    connections.push_back(inference::GRPCInferenceService::NewStub(channel));
  }
  return std::make_unique<InferTarget>(workload, std::move(connections));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Target>> ConnectTarget(const RpcWorkload& workload,
                                                      const std::string& address, int clients) {
  return workload.protocol == Protocol::kForward ? ConnectForward(workload, address, clients)
                                                 : ConnectInfer(workload, address, clients);
}

}  // namespace deeppcr::bench
