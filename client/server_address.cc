// SPDX-License-Identifier: Apache-2.0
#include "client/server_address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

constexpr absl::string_view kSocket = "unix:", kName = "dns:///";

absl::Status Mismatch(absl::string_view server) {
  return InvalidArgument(
      "server: expected host:port with a port from 1 to 65535, unix:file, dns:///host:port, or IP "
      "addresses of one kind with ports, by commas, got '",
      server, "'");
}

// The host of host:port, brackets included; empty if that is not its form. Anything with a slash,
// blank or bare colon would be read as another kind of gRPC target.
absl::string_view HostOf(absl::string_view text) {
  const size_t colon = text.rfind(':');
  int port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port) ||
      port < 1 || port > 65535)
    return {};
  const absl::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const bool plain = host.find_first_of("/:[] \t\r\n") == absl::string_view::npos;
  return plain || bracketed ? host : absl::string_view();
}

bool IsIpv4(absl::string_view host, in_addr* address) {
  return inet_pton(AF_INET, std::string(host).c_str(), address) == 1;
}

bool IsIpv6(absl::string_view host) {
  in6_addr address = {};
  if (!absl::ConsumePrefix(&host, "[") || !absl::ConsumeSuffix(&host, "]")) return false;
  return inet_pton(AF_INET6, std::string(host).c_str(), &address) == 1;
}

bool IsLoopback(absl::string_view host) {
  in_addr address = {};
  if (IsIpv4(host, &address)) return ntohl(address.s_addr) >> 24 == 127;
  return host == "[::1]" || host == "localhost";
}

}  // namespace

const char kFleetServiceConfig[] =
    R"({"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ""},
 "methodConfig": [{"name": [{"service": "deeppcr.v1.DeepPcr"}, {"service": "inference.GRPCInferenceService"}],
   "retryPolicy": {"maxAttempts": 3, "initialBackoff": "0.05s", "maxBackoff": "0.5s", "backoffMultiplier": 2,
                   "retryableStatusCodes": ["UNAVAILABLE"]}}]}
)";

absl::StatusOr<ServerAddress> ParseServerAddress(absl::string_view server) {
  if (absl::StartsWith(server, kSocket)) {
    if (server.size() == kSocket.size()) return Mismatch(server);
    return ServerAddress{.target = std::string(server), .is_socket = true, .is_loopback = true};
  }
  if (absl::StartsWith(server, kName)) {
    const absl::string_view host = HostOf(server.substr(kName.size()));
    if (host.empty()) return Mismatch(server);
    return ServerAddress{.target = std::string(server), .is_fleet = true};
  }
  const std::vector<absl::string_view> each = absl::StrSplit(server, ',');
  std::vector<absl::string_view> hosts;
  for (const absl::string_view address : each) hosts.push_back(HostOf(address));
  if (std::ranges::any_of(hosts, [](absl::string_view host) { return host.empty(); }))
    return Mismatch(server);
  ServerAddress result{.target = std::string(server),
                       .is_loopback = std::ranges::all_of(hosts, IsLoopback),
                       .is_list = hosts.size() > 1,
                       .is_fleet = hosts.size() > 1};
  if (!result.is_fleet) return result;
  in_addr unused = {};
  const bool v4 = std::ranges::all_of(hosts, [&](auto host) { return IsIpv4(host, &unused); });
  if (!v4 && !std::ranges::all_of(hosts, IsIpv6)) return Mismatch(server);
  result.target = StrCat(v4 ? "ipv4:" : "ipv6:", result.target);
  return result;
}

}  // namespace deeppcr
