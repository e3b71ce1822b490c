// SPDX-License-Identifier: Apache-2.0
#include "server/rest/route.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace deeppcr {
namespace {

TEST(RouteTest, PathsLeadToMethods) {
  struct Case {
    const char* path;
    RestMethod method;
    bool posts;
    const char *model, *version;
  };
  for (const Case& each : std::vector<Case>{
           {"/v2", RestMethod::kServerMetadata, false, "", ""},
           {"/v2/health/live", RestMethod::kLive, false, "", ""},
           {"/v2/health/ready", RestMethod::kReady, false, "", ""},
           {"/v2/models/net", RestMethod::kMetadata, false, "net", ""},
           {"/v2/models/net/versions/3", RestMethod::kMetadata, false, "net", "3"},
           {"/v2/models/net/ready", RestMethod::kModelReady, false, "net", ""},
           {"/v2/models/net/versions/3/ready", RestMethod::kModelReady, false, "net", "3"},
           {"/v2/models/net/config", RestMethod::kConfig, false, "net", ""},
           {"/v2/models/net/stats", RestMethod::kStatistics, false, "net", ""},
           {"/v2/models/stats", RestMethod::kStatistics, false, "", ""},
           {"/v2/models/net/infer", RestMethod::kInfer, true, "net", ""},
           {"/v2/models/net/versions/3/infer", RestMethod::kInfer, true, "net", "3"},
           {"/v2/repository/index", RestMethod::kIndex, true, "", ""},
           {"/v2/repository/models/net/load", RestMethod::kLoad, true, "net", ""},
           {"/v2/repository/models/net/unload", RestMethod::kUnload, true, "net", ""}}) {
    const auto route = ParseRoute(each.path);
    ASSERT_TRUE(route.has_value()) << each.path;
    EXPECT_EQ(route->method, each.method) << each.path;
    EXPECT_EQ(route->posts, each.posts) << each.path;
    EXPECT_EQ(route->model, each.model) << each.path;
    EXPECT_EQ(route->version, each.version) << each.path;
  }
}

TEST(RouteTest, OthersLeadNowhere) {
  for (const char* path : {"",
                           "/",
                           "v2",
                           "/v2/",
                           "/v1",
                           "/v2/models",
                           "/v2/models/",
                           "/v2/models//infer",
                           "/v2/models/net/versions",
                           "/v2/models/net/other",
                           "/v2/models/net/infer/more",
                           "/v2/models/net/versions/3/infer/more",
                           "/v2/health",
                           "/v2/health/other",
                           "/v2/repository",
                           "/v2/repository/models/net",
                           "/v2/repository/models/net/other",
                           "/v2/repository/index/more",
                           "/v2/a/b/c/d/e/f/g/h/i",
                           "/metrics",
                           "//v2"})
    EXPECT_FALSE(ParseRoute(path).has_value()) << path;
}

}  // namespace
}  // namespace deeppcr
