// SPDX-License-Identifier: Apache-2.0
#include "server/acceptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

namespace deeppcr {
namespace {

// A client's end of a connection to a port of this machine.
class Peer {
 public:
  explicit Peer(int port) : socket_fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(socket_fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Peer() { close(socket_fd_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  bool connected() const { return connected_; }
  // True if the other side closes the connection.
  bool Closed() const {
    char byte = 0;
    return recv(socket_fd_, &byte, 1, 0) <= 0;
  }

 private:
  int socket_fd_;
  bool connected_ = false;
};

class AcceptorTest : public ::testing::Test {
 protected:
  static constexpr int kLimit = 2;

  void SetUp() override {
    auto listener = Listener::Open("listen", "127.0.0.1:0");
    ASSERT_TRUE(listener.ok()) << listener.status();
    port_ = listener->port();
    acceptor_.Add(*std::move(listener), [this](int socket_fd) {
      const std::lock_guard lock(mutex_);
      accepted_.push_back(socket_fd);
    });
    ASSERT_TRUE(acceptor_.Start().ok());
  }
  void TearDown() override {
    acceptor_.Stop();
    for (const int socket_fd : accepted_) close(socket_fd);
  }

  size_t Accepted() {
    const std::lock_guard lock(mutex_);
    return accepted_.size();
  }
  int Take() {
    const std::lock_guard lock(mutex_);
    const int socket_fd = accepted_.back();
    accepted_.pop_back();
    return socket_fd;
  }
  void AwaitAccepted(size_t count) {
    for (int i = 0; i < 2000 && Accepted() < count; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_EQ(Accepted(), count);
  }

  std::mutex mutex_;
  std::vector<int> accepted_;
  std::atomic<int> refused_{0};
  int port_ = 0;
  Acceptor acceptor_{kLimit, [this] { ++refused_; }};
};

TEST_F(AcceptorTest, TakesAsManyConnectionsAsItMayAndClosesTheNext) {
  const Peer first(port_), second(port_);
  AwaitAccepted(2);
  const Peer third(port_);
  EXPECT_TRUE(third.Closed());
  EXPECT_EQ(refused_, 1);
  EXPECT_EQ(acceptor_.connections(), 2);
}

TEST_F(AcceptorTest, AConnectionThatHasEndedMakesRoomAlsoIfItsNumberIsInUseAgain) {
  const Peer first(port_), second(port_);
  AwaitAccepted(2);
  const int ended = Take();
  close(ended);
  // A file, and then another socket, where the connection was.
  const int file = open("/dev/null", O_RDONLY);
  ASSERT_EQ(file, ended);
  EXPECT_EQ(acceptor_.connections(), 1);
  const Peer third(port_);
  AwaitAccepted(2);
  close(file);
  const int other = Take();
  const int unrelated = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(dup2(unrelated, other), other);
  EXPECT_EQ(acceptor_.connections(), 1);
  close(unrelated);
  close(other);
  EXPECT_EQ(refused_, 0);
}

TEST_F(AcceptorTest, ListensNoMoreOnceItHasStoppedAndLeavesConnectionsOpen) {
  const Peer first(port_);
  AwaitAccepted(1);
  acceptor_.Stop();
  const Peer second(port_);
  EXPECT_FALSE(second.connected());
  EXPECT_EQ(acceptor_.connections(), 1);
  EXPECT_EQ(send(accepted_.front(), "x", 1, 0), 1);
  EXPECT_FALSE(first.Closed());
}

}  // namespace
}  // namespace deeppcr
