// SPDX-License-Identifier: Apache-2.0
#include "client/server_address.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

TEST(ServerAddressTest, OneServerIsNoFleet) {
  for (const char* text : {"host:8001", "10.0.0.1:1", "[::1]:8001", "localhost:65535"}) {
    const auto address = ParseServerAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->target, text);
    EXPECT_FALSE(address->is_fleet || address->is_socket);
  }
  const auto socket = ParseServerAddress("unix:/run/x.sock");
  ASSERT_TRUE(socket.ok());
  EXPECT_TRUE(socket->is_socket && socket->is_loopback);
  EXPECT_FALSE(socket->is_fleet);
}

TEST(ServerAddressTest, NamesAndListsAreFleets) {
  for (const auto& [text, target] : {std::pair{"dns:///fleet:8001", "dns:///fleet:8001"},
                                     {"10.0.0.1:1,10.0.0.2:2", "ipv4:10.0.0.1:1,10.0.0.2:2"},
                                     {"[::1]:1,[fe80::2]:2", "ipv6:[::1]:1,[fe80::2]:2"}}) {
    const auto address = ParseServerAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->target, target);
    EXPECT_TRUE(address->is_fleet);
    EXPECT_FALSE(address->is_loopback) << "one of them may be elsewhere";
  }
  EXPECT_TRUE(ParseServerAddress("127.0.0.1:1,127.8.0.2:2")->is_loopback);
  EXPECT_FALSE(ParseServerAddress("127.0.0.1:1,10.0.0.2:2")->is_loopback);
}

TEST(ServerAddressTest, RefusesTheRest) {
  for (const char* text : {"",
                           "host",
                           ":8001",
                           "host:",
                           "host:0",
                           "host:65536",
                           "host:http",
                           "unix:",
                           "::1:80",
                           "[]:80",
                           "a b:80",
                           "dns:///",
                           "dns:///host",
                           "dns://1.1.1.1/host:80",
                           "ipv4:1.1.1.1:80",
                           "xds:///host:80",
                           "a:1,b:2",
                           "10.0.0.1:1,[::1]:2",
                           "10.0.0.1:1,",
                           ",10.0.0.1:1",
                           "10.0.0.1:1,10.0.0.2",
                           "10.0.0.1:1, 10.0.0.2:2"})
    ExpectError(ParseServerAddress(text).status(), absl::StatusCode::kInvalidArgument,
                "expected host:port");
}

// deploy/README.md tells other clients to use the same.
TEST(ServerAddressTest, TheServiceConfigIsTheDocumentedOne) {
  std::ifstream file(DEEPPCR_SOURCE_DIR "/deploy/README.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_NE(text.str().find(std::string("```json\n") + kFleetServiceConfig + "```\n"),
            std::string::npos);
}

}  // namespace
}  // namespace deeppcr::testing
