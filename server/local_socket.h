// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_LOCAL_SOCKET_H_
#define DEEPPCR_SERVER_LOCAL_SOCKET_H_

#include <sys/types.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace deeppcr {

// Makes way for a socket at `path`: removes one that an earlier server left behind. gRPC would take
// any socket for left behind, that of a server that runs as well. Errors: kInvalidArgument for a
// path that is empty, too long for an address, or holds something else; kUnavailable if somebody
// serves there. Each names the flag.
absl::Status ClearSocket(std::string_view flag, const std::string& path);

// Lets nobody but the server's own user reach the sockets that are made while it lives, from their
// first moment on. Changes the mode of every file that the process makes in that time.
class PrivateSockets {
 public:
  PrivateSockets();
  ~PrivateSockets();
  PrivateSockets(const PrivateSockets&) = delete;
  PrivateSockets& operator=(const PrivateSockets&) = delete;

 private:
  const mode_t before_;
};

// Gives a socket the mode that other files of the server have.
void LetOthersReach(const std::string& path);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_LOCAL_SOCKET_H_
