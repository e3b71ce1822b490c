// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_LOCAL_SOCKET_H_
#define DEEPPCR_SERVER_LOCAL_SOCKET_H_

#include <string>

#include "absl/status/status.h"

namespace deeppcr {

// Makes way for a socket at `path`: removes one that an earlier server left behind. gRPC would take
// any socket for left behind, that of a server that runs as well. Errors: kInvalidArgument for a
// path that is empty, too long for an address, or holds something else; kUnavailable if somebody
// serves there.
absl::Status ClearSocket(const std::string& path);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_LOCAL_SOCKET_H_
