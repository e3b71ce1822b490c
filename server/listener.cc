// SPDX-License-Identifier: Apache-2.0
#include "server/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "kernels/base/file_lock.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "server/config.h"

namespace deeppcr {
namespace {

constexpr int kFlags = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
constexpr std::chrono::seconds kLockPatience{5};

std::string LockOf(const std::string& path) { return path + ".lock"; }

// Keeps other servers away from the file of a socket: between the look at what is there and the
// socket that listens, and between the look at whose file it is and its end, one of them could do
// the same.
absl::StatusOr<FileLock> LockFileOf(const std::string& path) {
  const auto end = std::chrono::steady_clock::now() + kLockPatience;
  while (true) {
    absl::StatusOr<FileLock> lock = FileLock::Take(LockOf(path));
    if (!absl::IsFailedPrecondition(lock.status()) || std::chrono::steady_clock::now() > end)
      return lock;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// True if a connection to the socket is accepted, or waits to be.
bool IsServed(const sockaddr_un& address) {
  const int socket_fd = socket(AF_UNIX, kFlags, 0);
  if (socket_fd < 0) return true;
  const bool refused =
      connect(socket_fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 &&
      (errno == ECONNREFUSED || errno == ENOENT);
  close(socket_fd);
  return !refused;
}

// Removes a socket that nobody serves any more.
absl::Status MakeWay(std::string_view flag, const std::string& path, const sockaddr_un& address) {
  struct stat status = {};
  if (lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return InvalidArgument("--", flag, ": ", path, ": ", std::strerror(errno));
  }
  if (!S_ISSOCK(status.st_mode))
    return InvalidArgument("--", flag, ": ", path, " is there, and is no socket");
  if (IsServed(address)) return absl::UnavailableError(StrCat("--", flag, ": ", path, " is taken"));
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return InvalidArgument("--", flag, ": ", path, ": ", std::strerror(errno));
}

int PortOf(int socket_fd) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  if (getsockname(socket_fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  // The port is at one place in both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

void SetPort(sockaddr* address, int port) {
  reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(static_cast<uint16_t>(port));
}

// Opens a socket at the address; -1, with errno, if it cannot be had.
int OpenAt(const addrinfo& address) {
  const int socket_fd = socket(address.ai_family, kFlags, 0);
  if (socket_fd < 0) return -1;
  // A server that starts again need not wait for the connections of the one before.
  const int on = 1;
  setsockopt(socket_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket_fd, address.ai_addr, address.ai_addrlen) == 0 &&
      listen(socket_fd, SOMAXCONN) == 0)
    return socket_fd;
  const int error = errno;
  close(socket_fd);
  errno = error;
  return -1;
}

}  // namespace

absl::StatusOr<Listener> Listener::Open(std::string_view flag, const std::string& address,
                                        SocketMode mode) {
  Listener listener;
  DEEPPCR_RETURN_IF_ERROR(address.starts_with(kUnixScheme)
                              ? listener.OpenFile(flag, address.substr(kUnixScheme.size()), mode)
                              : listener.OpenPort(flag, address));
  return listener;
}

absl::Status Listener::OpenFile(std::string_view flag, const std::string& path, SocketMode mode) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // Clients of gRPC would take a percent sign for the start of an escape.
  if (path.empty() || path.size() >= sizeof(address.sun_path) || path.find('%') != path.npos)
    return InvalidArgument("--", flag, ": expected a path of at most ",
                           sizeof(address.sun_path) - 1, " bytes without %, got ",
                           Quoted(path, 200));
  std::memcpy(address.sun_path, path.data(), path.size());
  const absl::StatusOr<FileLock> lock = LockFileOf(path);
  if (!lock.ok()) return WithContext(lock.status(), StrCat("--", flag));
  DEEPPCR_RETURN_IF_ERROR(MakeWay(flag, path, address));
  const int socket_fd = socket(AF_UNIX, kFlags, 0);
  if (socket_fd < 0)
    return absl::UnavailableError(StrCat("--", flag, ": ", path, ": ", std::strerror(errno)));
  sockets_.push_back(socket_fd);
  // The mode of an unbound socket, less the umask, is that of the file, from its first moment on.
  if (fchmod(socket_fd, mode == SocketMode::kPrivate ? 0600 : 0777) != 0 ||
      bind(socket_fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return InvalidArgument("--", flag, ": ", path, ": ", std::strerror(errno));
  path_ = path;
  struct stat status = {};
  if (lstat(path.c_str(), &status) == 0) inode_ = status.st_ino;
  if (listen(socket_fd, SOMAXCONN) == 0) return absl::OkStatus();
  return absl::UnavailableError(StrCat("--", flag, ": ", path, ": ", std::strerror(errno)));
}

absl::Status Listener::OpenPort(std::string_view flag, const std::string& address) {
  DEEPPCR_ASSIGN_OR_RETURN(const HostPort wanted, ParseHostPort(address));
  std::string host = wanted.host;
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  const auto cannot = [&](std::string_view why) {
    return absl::UnavailableError(StrCat("--", flag, ": cannot listen on ", address, ": ", why));
  };
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), "0", &hints, &found); error != 0)
    return cannot(gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, &freeaddrinfo);
  port_ = wanted.port;
  int absent = 0;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    SetPort(each->ai_addr, port_);
    const int socket_fd = OpenAt(*each);
    // A name may stand for an address of a kind that this machine lacks, such as ::1.
    if (socket_fd < 0 && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL)) {
      absent = errno;
      continue;
    }
    if (socket_fd < 0) return cannot(std::strerror(errno));
    sockets_.push_back(socket_fd);
    port_ = PortOf(socket_fd);
  }
  return sockets_.empty() ? cannot(std::strerror(absent)) : absl::OkStatus();
}

Listener::Listener(Listener&& other) noexcept
    : sockets_(std::exchange(other.sockets_, {})),
      port_(other.port_),
      path_(std::exchange(other.path_, {})),
      inode_(other.inode_) {}

// Another server may have put its own there since, if it found nobody that listens. One that is
// about to has the lock, and removes what it finds.
void Listener::RemoveFile() const {
  const absl::StatusOr<FileLock> lock = FileLock::Take(LockOf(path_));
  if (!lock.ok()) return;
  struct stat status = {};
  if (lstat(path_.c_str(), &status) == 0 && status.st_ino == inode_) unlink(path_.c_str());
}

Listener::~Listener() {
  if (!path_.empty()) RemoveFile();
  for (const int socket_fd : sockets_) close(socket_fd);
}

}  // namespace deeppcr
