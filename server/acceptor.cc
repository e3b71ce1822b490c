// SPDX-License-Identifier: Apache-2.0
#include "server/acceptor.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

// The pause after the system had no descriptor or no memory: without it the thread would spin on a
// connection that it cannot take.
constexpr std::chrono::milliseconds kPauseWithoutDescriptors(20);

std::optional<uint64_t> InodeOf(int socket_fd) {
  struct stat status = {};
  if (fstat(socket_fd, &status) != 0 || !S_ISSOCK(status.st_mode)) return std::nullopt;
  return status.st_ino;
}

}  // namespace

Acceptor::Acceptor(int64_t max_connections, std::function<void()> refused)
    : max_connections_(max_connections), refused_(std::move(refused)) {}

void Acceptor::Add(Listener listener, Handler handler, bool is_bounded) {
  doors_.push_back({std::move(listener), std::move(handler), is_bounded});
}

absl::Status Acceptor::Start() {
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) return absl::UnavailableError(StrCat("eventfd: ", std::strerror(errno)));
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void Acceptor::Stop() {
  if (thread_.joinable()) {
    eventfd_write(wake_, 1);
    thread_.join();
  }
  if (wake_ >= 0) close(std::exchange(wake_, -1));
  doors_.clear();
}

void Acceptor::Run() {
  std::vector<pollfd> waits = {{wake_, POLLIN, 0}};
  std::vector<const Door*> doors = {nullptr};
  for (const Door& door : doors_) {
    for (const int listening : door.listener.sockets()) {
      waits.push_back({listening, POLLIN, 0});
      doors.push_back(&door);
    }
  }
  while (true) {
    if (poll(waits.data(), waits.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    if (waits.front().revents != 0) return;
    for (size_t i = 1; i < waits.size(); ++i) {
      // One connection a turn from each: no address waits for another.
      if (waits[i].revents != 0 && !Accept(*doors[i], waits[i].fd))
        std::this_thread::sleep_for(kPauseWithoutDescriptors);
    }
  }
}

bool Acceptor::Accept(const Door& door, int listening) {
  const int socket_fd = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (socket_fd < 0)
    return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
  if (door.is_bounded && !HasRoom()) {
    // Counted before its client can know.
    refused_();
    close(socket_fd);
    return true;
  }
  // Replies are small, and must not wait to be sent with others. A UNIX socket has no such option.
  const int on = 1;
  setsockopt(socket_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (const auto inode = InodeOf(socket_fd); inode.has_value()) {
    const std::lock_guard lock(mutex_);
    connections_.push_back({socket_fd, *inode});
  }
  door.handler(socket_fd);
  return true;
}

bool Acceptor::HasRoom() {
  {
    const std::lock_guard lock(mutex_);
    if (static_cast<int64_t>(connections_.size()) < max_connections_) return true;
  }
  return connections() < max_connections_;
}

int64_t Acceptor::connections() {
  const std::lock_guard lock(mutex_);
  std::erase_if(connections_, [](const Connection& connection) {
    return InodeOf(connection.socket_fd) != connection.inode;
  });
  return static_cast<int64_t>(connections_.size());
}

}  // namespace deeppcr
