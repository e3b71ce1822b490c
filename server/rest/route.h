// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_REST_ROUTE_H_
#define DEEPPCR_SERVER_REST_ROUTE_H_

// The paths of the v2 protocol's REST form.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace deeppcr {

enum class RestMethod : uint8_t {
  kServerMetadata,  // GET v2
  kLive,            // GET v2/health/live
  kReady,           // GET v2/health/ready
  kMetadata,        // GET v2/models/NAME[/versions/N]
  kModelReady,      // GET .../ready
  kConfig,          // GET .../config
  kStatistics,      // GET .../stats, and v2/models/stats of all
  kInfer,           // POST .../infer
  kIndex,           // POST v2/repository/index
  kLoad,            // POST v2/repository/models/NAME/load
  kUnload,          // POST v2/repository/models/NAME/unload
};

struct Route {
  RestMethod method = RestMethod::kServerMetadata;
  bool posts = false;  // the HTTP method is POST, else GET
  std::string model, version;
};

// The route of a path that is decoded already, such as "/v2/models/net/infer"; nothing for a path
// that leads nowhere. Names are not checked.
std::optional<Route> ParseRoute(std::string_view path);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_REST_ROUTE_H_
