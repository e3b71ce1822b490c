// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <chrono>
#include <string>
#include <string_view>

#include "civetweb.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "kernels/base/strings.h"
#include "server/server.h"

namespace deeppcr {
namespace {

constexpr std::chrono::seconds kProbeDeadline(2);

// A HealthCheckResponse whose only field, status, is SERVING. So small a message needs no generated
// code, and Debian ships none for grpc.health.v1.
constexpr std::string_view kServing = "\x08\x01";

std::string Flatten(grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

absl::Status ProbeHttp(const std::string& address) {
  const auto where = ParseHostPort(address);
  if (!where.ok()) return where.status();
  std::array<char, 256> error{};
  mg_connection* connection =
      mg_download(where->host.c_str(), where->port, 0, error.data(), error.size(),
                  "GET /readyz HTTP/1.0\r\nHost: %s\r\n\r\n", where->host.c_str());
  if (connection == nullptr) return absl::UnavailableError(StrCat(address, ": ", error.data()));
  const mg_response_info* response = mg_get_response_info(connection);
  const int code = response == nullptr ? 0 : response->status_code;
  mg_close_connection(connection);
  if (code == 200) return absl::OkStatus();
  return absl::UnavailableError(StrCat(address, " answers, but is not ready"));
}

}  // namespace

absl::Status Probe(const std::string& address) {
  if (address.starts_with(kHttpScheme)) return ProbeHttp(address.substr(kHttpScheme.size()));
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kProbeDeadline);
  grpc::CompletionQueue queue;
  // An empty HealthCheckRequest asks for the server as a whole.
  const grpc::Slice empty("");
  grpc::ByteBuffer body(&empty, 1);
  const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", body, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) {
    return absl::UnavailableError(StrCat(address, ": ", status.error_message()));
  }
  if (Flatten(response) == kServing) return absl::OkStatus();
  return absl::UnavailableError(StrCat(address, " answers, but is not ready"));
}

}  // namespace deeppcr
