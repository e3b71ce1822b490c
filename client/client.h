// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_CLIENT_H_
#define DEEPPCR_CLIENT_CLIENT_H_

// A typed client of one DeepPCR server, or of a fleet of them. Requests and replies are the
// messages of deeppcr.v1; see client/array.h for the way from plain arrays to tensors and back.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "deeppcr/v1/deeppcr.pb.h"

namespace deeppcr {

struct ClientOptions {
  std::string server = "127.0.0.1:8001";        // of ParseServerAddress: one server, or a fleet
  absl::Duration deadline = absl::Seconds(60);  // for calls that name none; positive
  // PEM files. tls_ca: the authorities that sign servers' certificates; empty: no TLS. tls_cert and
  // tls_key: this client's certificate and key, for servers that ask for them.
  std::string tls_ca, tls_cert, tls_key;
  std::string token;                // sent as "authorization: Bearer TOKEN"; empty: none
  int max_connect_attempts = 3;     // connections tried before a call gives up; at least 1
  int max_reply_bytes = 256 << 20;  // larger replies are refused
  // Clients of equal options share a TCP connection within a process; a different index makes a
  // connection of its own.
  int connection_index = 0;
};

// The result of a health check of the server or of one model.
enum class Health { kServing, kNotServing, kUnknown };

// The trace id, 32 hex digits, of the call that ended with this error; empty for one that sent
// none.
std::string TraceIdOf(const absl::Status& status);

// Thread-safe: any number of threads may call at a time; all calls share one connection.
//
// Every call bears a W3C traceparent of its own, by whose trace id the server's log and traces know
// it, and the same id as x-request-id, for requests that have none and for proxies; TraceIdOf tells
// that of a call that failed.
//
// Errors: the status code and message of the server. kUnavailable if no connection could be made,
// kDeadlineExceeded at the deadline, kInternal for a reply that breaks the protocol.
//
// Retries: a call whose connection cannot be made is tried again, max_connect_attempts times,
// always inside its deadline: nothing has been sent then. Once a request may have reached the
// server, this class never sends it again (gRPC itself repeats only requests that provably never
// left, or that the server reports as unprocessed). In a fleet gRPC makes a call that ends with
// kUnavailable again, twice at most: the same request has the same answer, and a load that is
// repeated loads again.
class Client {
 public:
  // Does not connect yet. Errors: kInvalidArgument for an address of no such form, options
  // out of range, or a token that would leave this machine without TLS; the error of a file that
  // cannot be read.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const ClientOptions& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const std::string& server() const;

  // Makes the connection, so that the first call does not pay for it.
  absl::Status Connect(absl::Duration deadline) const;

  // `deadline` is relative to the call; zero takes ClientOptions::deadline.
  absl::StatusOr<v1::ForwardResponse> Forward(const v1::ForwardRequest& request,
                                              absl::Duration deadline = {}) const;
  absl::StatusOr<v1::GenerateResponse> Generate(const v1::GenerateRequest& request,
                                                absl::Duration deadline = {}) const;
  // Generate with progress: on_progress is called in this thread for every progress message before
  // the result.
  absl::StatusOr<v1::GenerateResponse> StreamGenerate(
      const v1::GenerateRequest& request,
      const std::function<void(const v1::GenerateProgress&)>& on_progress,
      absl::Duration deadline = {}) const;
  absl::StatusOr<v1::CompareResponse> Compare(const v1::CompareRequest& request,
                                              absl::Duration deadline = {}) const;
  // Takes cotangents or a loss back through a solve; a server may have no gradients.
  absl::StatusOr<v1::GradientResponse> Gradient(const v1::GradientRequest& request,
                                                absl::Duration deadline = {}) const;
  // Gradient by the parameters of a model: on_piece is called in this thread for every piece before
  // the result; an error that it gives ends the call, and is its error.
  absl::StatusOr<v1::GradientResponse> StreamGradient(
      const v1::GradientRequest& request,
      const std::function<absl::Status(const v1::ParameterPiece&)>& on_piece,
      absl::Duration deadline = {}) const;
  absl::StatusOr<v1::ListModelsResponse> ListModels(absl::Duration deadline = {}) const;
  // version 0: the latest ready version.
  absl::StatusOr<v1::GetModelResponse> GetModel(const std::string& model, int64_t version = 0,
                                                absl::Duration deadline = {}) const;
  // GetModel with the text of a plan.json in the reply's plan_file.
  absl::StatusOr<v1::GetModelResponse> GetModelWithPlanFile(const std::string& model,
                                                            int64_t version = 0,
                                                            absl::Duration deadline = {}) const;
  // version 0: the highest in the repository. Returns when the model is ready, which takes seconds.
  absl::StatusOr<v1::LoadModelResponse> LoadModel(const std::string& model, int64_t version = 0,
                                                  absl::Duration deadline = {}) const;
  // version 0: every version.
  absl::Status UnloadModel(const std::string& model, int64_t version = 0,
                           absl::Duration deadline = {}) const;
  // An empty service asks for the whole server. Errors: kNotFound for a name that the server does
  // not know.
  absl::StatusOr<Health> CheckHealth(const std::string& service,
                                     absl::Duration deadline = {}) const;

 private:
  class Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_CLIENT_H_
