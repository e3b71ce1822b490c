// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <string>
#include <string_view>

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

}  // namespace

absl::Status Probe(const std::string& address) {
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
