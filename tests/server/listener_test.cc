// SPDX-License-Identifier: Apache-2.0
#include "server/listener.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {
namespace {

int FamilyOf(int socket_fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  EXPECT_EQ(getsockname(socket_fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  return address.ss_family;
}

mode_t ModeOf(const std::string& path) {
  struct stat status = {};
  EXPECT_EQ(stat(path.c_str(), &status), 0);
  return status.st_mode & 0777;
}

TEST(ListenerTest, AFreePortIsOneForAllAddressesOfAName) {
  const auto listener = Listener::Open("listen", "localhost:0");
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_GT(listener->port(), 0);
  ASSERT_FALSE(listener->sockets().empty());
  for (const int socket_fd : listener->sockets()) {
    sockaddr_storage address = {};
    socklen_t size = sizeof(address);
    ASSERT_EQ(getsockname(socket_fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
    EXPECT_EQ(ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port), listener->port());
  }
}

TEST(ListenerTest, TakesIpv6) {
  const auto listener = Listener::Open("listen", "[::1]:0");
  if (!listener.ok()) GTEST_SKIP() << "no IPv6 here: " << listener.status();
  ASSERT_EQ(listener->sockets().size(), 1u);
  EXPECT_EQ(FamilyOf(listener->sockets().front()), AF_INET6);
}

TEST(ListenerTest, AnAddressThatCannotBeHadIsAnErrorThatNamesIt) {
  const auto first = Listener::Open("listen", "127.0.0.1:0");
  ASSERT_TRUE(first.ok());
  const std::string taken = "127.0.0.1:" + std::to_string(first->port());
  ExpectError(Listener::Open("listen", taken).status(), absl::StatusCode::kUnavailable,
              ("--listen: cannot listen on " + taken + ": Address already in use").c_str());
  ExpectError(Listener::Open("listen", "192.0.2.1:0").status(), absl::StatusCode::kUnavailable,
              "--listen: cannot listen on 192.0.2.1:0: Cannot assign");
  ExpectError(Listener::Open("listen", "no-such-host.invalid:0").status(),
              absl::StatusCode::kUnavailable, "--listen: cannot listen on no-such-host.invalid:0");
}

TEST(ListenerTest, ASocketHasItsModeAndGoesWithItsListener) {
  const TemporaryDirectory folder;
  const std::string path = folder.File("socket");
  const mode_t mask = umask(0);
  umask(mask);
  {
    const auto listener = Listener::Open("admin", "unix:" + path, SocketMode::kPrivate);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_EQ(listener->port(), 0);
    EXPECT_EQ(ModeOf(path), 0600u);
    ExpectError(Listener::Open("socket", "unix:" + path).status(), absl::StatusCode::kUnavailable,
                "--socket: " + path + " is taken");
    EXPECT_TRUE(std::filesystem::exists(path)) << "who came in vain takes nothing away";
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  {
    const auto first = Listener::Open("socket", "unix:" + path);
    ASSERT_TRUE(first.ok());
    std::filesystem::remove(path);
    std::ofstream(path) << "another's";
  }
  EXPECT_TRUE(std::filesystem::exists(path)) << "what another has put there since stays";
  std::filesystem::remove(path);
  const auto listener = Listener::Open("socket", "unix:" + path);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_EQ(ModeOf(path), 0777 & ~mask);
}

}  // namespace
}  // namespace deeppcr::testing
