// SPDX-License-Identifier: Apache-2.0
#include "server/local_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

// True if a connection to the socket is accepted, or waits to be.
bool IsServed(const sockaddr_un& address) {
  const int socket_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket_fd < 0) return true;
  const bool refused =
      connect(socket_fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 &&
      (errno == ECONNREFUSED || errno == ENOENT);
  close(socket_fd);
  return !refused;
}

}  // namespace

absl::Status ClearSocket(std::string_view flag, const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // gRPC would take a percent sign for the start of an escape.
  if (path.empty() || path.size() >= sizeof(address.sun_path) || path.find('%') != path.npos)
    return InvalidArgument("--", flag, ": expected a path of at most ",
                           sizeof(address.sun_path) - 1, " bytes without %, got ",
                           Quoted(path, 200));
  std::memcpy(address.sun_path, path.data(), path.size());
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

PrivateSockets::PrivateSockets() : before_(umask(0177)) {}

PrivateSockets::~PrivateSockets() { umask(before_); }

void LetOthersReach(const std::string& path) {
  const mode_t mask = umask(0);
  umask(mask);
  chmod(path.c_str(), 0777 & ~mask);
}

}  // namespace deeppcr
