// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_SERVER_ADDRESS_H_
#define DEEPPCR_CLIENT_SERVER_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace deeppcr {

// Where a server is, or several of one fleet.
struct ServerAddress {
  std::string target;      // as gRPC takes it
  bool is_socket = false;  // of this machine, without TLS
  bool is_loopback = false;
  bool is_list = false;
  bool is_fleet = false;  // calls are balanced and repeated, by kFleetServiceConfig
};

// Takes host:port, unix:file, dns:///host:port for all addresses of a name, or IP addresses of one
// kind with ports, separated by commas. IPv6 addresses stand in brackets.
// Errors: kInvalidArgument.
absl::StatusOr<ServerAddress> ParseServerAddress(absl::string_view server);

// gRPC's service config for fleets, that of deploy/README.md: round robin over servers that say
// that they are healthy; calls that a server could not take are made again elsewhere.
extern const char kFleetServiceConfig[];

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_SERVER_ADDRESS_H_
