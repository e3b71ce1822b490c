// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_LISTENER_H_
#define DEEPPCR_SERVER_LISTENER_H_

// Sockets that listen: of an address of the network, all that a name stands for, or of a file.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace deeppcr {

// Who may connect to a UNIX socket: the server's own user, or whoever may use its other files.
enum class SocketMode { kPrivate, kOfFiles };

// Closes its sockets, and removes the file of a UNIX socket, when it goes. Not thread-safe.
class Listener {
 public:
  // address: host:port, port 0 for a free one, or unix:FILE, in place of a socket that an earlier
  // server has left there. `flag` is named in errors. Sockets do not block, and are not inherited.
  // Of servers that start at one moment with one file, one has it.
  // Errors: kUnavailable for an address that is taken, unknown or not this machine's;
  // kInvalidArgument for a path that is too long for an address, or holds something else; those of
  // FileLock for FILE.lock, which is held meanwhile.
  static absl::StatusOr<Listener> Open(std::string_view flag, const std::string& address,
                                       SocketMode mode = SocketMode::kOfFiles);

  Listener(Listener&& other) noexcept;
  Listener& operator=(Listener&&) = delete;
  ~Listener();

  const std::vector<int>& sockets() const { return sockets_; }
  int port() const { return port_; }  // 0 for a UNIX socket

 private:
  Listener() = default;
  absl::Status OpenFile(std::string_view flag, const std::string& path, SocketMode mode);
  absl::Status OpenPort(std::string_view flag, const std::string& address);
  void RemoveFile() const;

  std::vector<int> sockets_;
  int port_ = 0;
  std::string path_;    // of a UNIX socket that this object has made
  uint64_t inode_ = 0;  // of its file
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_LISTENER_H_
