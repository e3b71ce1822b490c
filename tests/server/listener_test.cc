// SPDX-License-Identifier: Apache-2.0
#include "server/listener.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <barrier>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "kernels/base/file_lock.h"
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

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// Leaves a socket that nobody serves, as a server does that is killed.
void LeaveSocket(const std::string& path) {
  const int socket_fd = socket(AF_UNIX, SOCK_STREAM, 0);
  const sockaddr_un address = AddressOf(path);
  ASSERT_EQ(bind(socket_fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  close(socket_fd);
}

bool IsReached(const std::string& path) {
  const int socket_fd = socket(AF_UNIX, SOCK_STREAM, 0);
  const sockaddr_un address = AddressOf(path);
  const bool reached =
      connect(socket_fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(socket_fd);
  return reached;
}

TEST(ListenerTest, OfServersThatStartAtOneMomentWithOneFileOneHasIt) {
  constexpr int kServers = 6, kRounds = 50;
  const TemporaryDirectory folder;
  const std::string path = folder.File("socket");
  std::vector<std::optional<Listener>> listeners(kServers);
  std::barrier start(kServers), opened(kServers), ended(kServers);
  const auto serve = [&](int me) {
    for (int round = 0; round < kRounds; ++round) {
      if (me == 0) LeaveSocket(path);
      start.arrive_and_wait();
      auto listener = Listener::Open("socket", "unix:" + path);
      if (listener.ok()) listeners[me].emplace(*std::move(listener));
      opened.arrive_and_wait();
      if (me == 0) {
        int having = 0;
        for (const auto& each : listeners) having += each.has_value() ? 1 : 0;
        EXPECT_EQ(having, 1) << "in round " << round;
        EXPECT_TRUE(IsReached(path)) << "in round " << round;
      }
      ended.arrive_and_wait();
      listeners[me].reset();
      start.arrive_and_wait();
    }
  };
  {
    std::vector<std::jthread> servers;
    for (int i = 0; i < kServers; ++i) servers.emplace_back(serve, i);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ListenerTest, AFileThatAnotherHoldsIsAnErrorThatNamesIt) {
  const TemporaryDirectory folder;
  const std::string path = folder.File("socket"), missing = folder.File("missing/socket");
  ExpectError(Listener::Open("socket", "unix:" + missing).status(), absl::StatusCode::kNotFound,
              "--socket: cannot open " + missing + ".lock: No such file or directory");
  const auto lock = FileLock::Take(path + ".lock");
  ASSERT_TRUE(lock.ok());
  ExpectError(Listener::Open("socket", "unix:" + path).status(),
              absl::StatusCode::kFailedPrecondition,
              "--socket: " + path + ".lock is locked by another process");
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
