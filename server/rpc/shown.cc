// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/shown.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "deeppcr/v1/deeppcr.grpc.pb.h"
#include "grpc/grpc_security_constants.h"
#include "inference/grpc_service.grpc.pb.h"
#include "kernels/base/strings.h"
#include "server/observe/method.h"
#include "server/rpc/grpc_status.h"

namespace deeppcr {
namespace {

std::string_view View(const grpc::string_ref& text) { return {text.data(), text.size()}; }

std::string_view Find(const CallMetadata& metadata, const char* key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? std::string_view() : View(found->second);
}

// The method of ours that the path "/service/name" calls; nothing for those that anybody may call.
std::optional<Method> MethodAt(std::string_view path) {
  for (const std::string_view service :
       {v1::DeepPcr::service_full_name(), inference::GRPCInferenceService::service_full_name()}) {
    if (path.size() < service.size() + 2 || path.substr(1, service.size()) != service) continue;
    const std::string_view name = path.substr(service.size() + 2);
    const auto method = std::ranges::find(kMethodNames, name, &MethodName::name);
    if (method != kMethodNames.end()) return method->method;
  }
  return std::nullopt;
}

// The names in the certificate that the peer has shown and TLS has verified: the subject's
// alternative names, or its common name where it has none. They live as long as `peer`.
std::vector<std::string_view> NamesOf(const grpc::AuthContext& peer) {
  std::vector<std::string_view> names;
  if (!peer.IsPeerAuthenticated()) return names;
  for (const grpc::string_ref& name : peer.GetPeerIdentity()) names.push_back(View(name));
  return names;
}

// True on the socket of --admin_listen: no other UNIX socket has local credentials.
bool IsOfAdminSocket(std::string_view address, const grpc::AuthContext& peer) {
  if (!address.starts_with("unix:")) return false;
  const auto types = peer.FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
  return std::ranges::any_of(types, [](const auto& type) { return View(type) == "local"; });
}

// Lives as long as both.
Shown ShownBy(const grpc::ServerContextBase& rpc, const grpc::AuthContext& peer) {
  return {.header = AuthorizationIn(rpc.client_metadata()),
          .names = NamesOf(peer),
          .admin_socket = IsOfAdminSocket(rpc.peer(), peer)};
}

}  // namespace

std::string_view AuthorizationIn(const CallMetadata& metadata) {
  return Find(metadata, "authorization");
}

absl::Status CheckCaller(const Authorizer& authorizer, const grpc::ServerContextBase& rpc,
                         Role needed) {
  // The way to the rest is long, and most servers' calls need not go it.
  if (authorizer.IsOpen(needed)) return absl::OkStatus();
  const std::shared_ptr<const grpc::AuthContext> peer = rpc.auth_context();
  return authorizer.Check(ShownBy(rpc, *peer), needed);
}

std::string PeerOf(const grpc::ServerContextBase& rpc) {
  std::string peer = rpc.peer();
  // Only this process is believed, whose calls have no address.
  if (peer != "unknown" && !peer.starts_with("inproc")) return peer;
  const std::string_view http_peer = Find(rpc.client_metadata(), kHttpPeer);
  return http_peer.empty() ? peer : std::string(http_peer);
}

std::string DescribeCaller(const Authorizer& authorizer, const grpc::ServerContextBase& rpc) {
  const std::shared_ptr<const grpc::AuthContext> peer = rpc.auth_context();
  return authorizer.Describe(ShownBy(rpc, *peer));
}

grpc::Status TokenGate::Process(const InputMetadata& metadata, grpc::AuthContext* peer,
                                OutputMetadata*, OutputMetadata*) {
  const std::optional<Method> method = MethodAt(Find(metadata, ":path"));
  if (!method.has_value()) return grpc::Status::OK;
  // Whether the caller may administer is the method's own question.
  const absl::Status status = authorizer_.Check(
      {.header = AuthorizationIn(metadata), .names = NamesOf(*peer)}, Role::kInfer);
  if (status.ok()) return grpc::Status::OK;
  metrics_.CountRequest("", *method, status.raw_code());
  logger_.LogLimited(LogLevel::kInfo, "request_refused",
                     {{"method", NameOf(*method)},
                      {"code", StatusCodeName(status.code())},
                      {"message", ToStd(status.message())}});
  return ToGrpcStatus(status);
}

}  // namespace deeppcr
