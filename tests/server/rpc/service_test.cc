// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/service.h"

#include <gtest/gtest.h>

namespace deeppcr {
namespace {

TEST(IsLoopbackPeerTest, KnowsThisMachine) {
  for (const char* peer :
       {"ipv4:127.0.0.1:1234", "ipv4:127.8.9.10:1", "ipv6:[::1]:1234", "ipv6:%5B::1%5D:1234",
        "ipv6:%5b::1%5d:1234", "ipv6:[::ffff:127.0.0.1]:5", "unix:/tmp/socket",
        "unix:", "unix-abstract:name"}) {
    EXPECT_TRUE(IsLoopbackPeer(peer)) << peer;
  }
}

TEST(IsLoopbackPeerTest, KnowsNoOther) {
  for (const char* peer :
       {"", "ipv4:10.0.0.127:1234", "ipv4:128.0.0.1:127", "ipv4:1270.0.0.1:1", "ipv6:[::2]:1234",
        "ipv6:[::1234]:1", "ipv6:[fe80::1]:1", "ipv6:[::ffff:10.0.0.1]:127", "ipv6:[2001::1]:1",
        "127.0.0.1:1234", "dns:localhost", "unknown", "IPV4:127.0.0.1:1"}) {
    EXPECT_FALSE(IsLoopbackPeer(peer)) << peer;
  }
}

}  // namespace
}  // namespace deeppcr
