// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_ACCEPTOR_H_
#define DEEPPCR_SERVER_ACCEPTOR_H_

// The connections of the gRPC server, counted and bounded. gRPC 1.51 itself takes as many as there
// are descriptors, and tells nobody how many it has.

#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "server/listener.h"

namespace deeppcr {

class Acceptor {
 public:
  // Takes a connected socket, which it owns from then on.
  using Handler = std::function<void(int socket_fd)>;

  // refused: called, on the acceptor's thread, for each connection beyond the limit. It is closed
  // at once: its client learns sooner that it should go elsewhere than by waiting.
  Acceptor(int64_t max_connections, std::function<void()> refused);
  ~Acceptor() { Stop(); }
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // Before Start. The connections of a door that is not bounded count, and are never refused.
  void Add(Listener listener, Handler handler, bool is_bounded = true);
  // Errors: kUnavailable, if the system has no descriptor left.
  absl::Status Start();
  // Accepts no more, and closes what listens. Connections stay as they are.
  void Stop();

  // The number of connections that are open. Thread-safe.
  int64_t connections();

 private:
  struct Door {
    Listener listener;
    Handler handler;
    bool is_bounded;
  };
  // An accepted socket. Its descriptor alone does not tell whether it is still open: whoever closed
  // it may have got the number for something else.
  struct Connection {
    int socket_fd;
    uint64_t inode;
  };

  void Run();
  // Accepts one connection, if one waits; false if none does or none can be taken now.
  bool Accept(const Door& door, int listening);
  // True if there is room for another connection.
  bool HasRoom();

  const int64_t max_connections_;
  const std::function<void()> refused_;
  std::vector<Door> doors_;
  int wake_ = -1;  // an eventfd; readable once the thread should end
  std::thread thread_;
  std::mutex mutex_;  // guards what follows
  std::vector<Connection> connections_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_ACCEPTOR_H_
