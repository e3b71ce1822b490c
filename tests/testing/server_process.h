// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_SERVER_PROCESS_H_
#define DEEPPCR_TESTS_TESTING_SERVER_PROCESS_H_

// The real server as a process of its own, and small clients for protocols that have no library
// here.

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {

// The result of running a program; `output` is stdout and stderr together.
struct Finished {
  int exit_code = -1;  // -1: the program did not end by itself in time
  std::string output;
};
Finished RunProgram(const std::string& program, const std::vector<std::string>& arguments,
                    double seconds = 20);

class ServerProcess {
 public:
  // Starts the server with `flags` and, unless the path is empty, --model_repository, on free ports
  // (on loopback, unless --listen is among `flags`), and waits until the server has tried every
  // model. Null, with a test failure and the log, if that does not happen.
  static std::unique_ptr<ServerProcess> Start(const std::string& repository,
                                              std::vector<std::string> flags = {});
  // Kills the process if it still runs.
  ~ServerProcess();

  std::string address() const;
  int grpc_port() const { return grpc_port_; }
  int http_port() const { return http_port_; }
  int rest_port() const { return rest_port_; }  // 0 without --rest_listen
  bool ready() const { return ready_; }         // value in the port file

  void Signal(int signal) const;
  // The exit code; nothing if the process still runs after `seconds` or was killed by a signal.
  std::optional<int> Wait(double seconds);

  // What the process has logged. A thread of its own writes the lines: while it runs, that of an
  // event may come after the event.
  std::string Log() const;
  // As soon as it has this text, or as it is after 20 seconds without.
  std::string LogOnceItHas(std::string_view text) const;

  // The reply, with headers, to a GET request at the HTTP port; empty if there is none.
  std::string Get(const std::string& path) const {
    return Http("GET " + path + " HTTP/1.0\r\n\r\n");
  }
  std::string Http(const std::string& request, int port = 0) const;

 private:
  ServerProcess() = default;
  bool AwaitPorts(double seconds);

  TemporaryDirectory directory_;
  pid_t pid_ = -1;
  int grpc_port_ = 0;
  int http_port_ = 0, rest_port_ = 0;
  bool ready_ = false;
};

// A residual network with seeded random weights of scale `gain` / sqrt(width).
struct RandomModel {
  int64_t layers = 32;
  int64_t width = 8;
  int64_t outputs = 3;
  int max_batch_size = 16;
  double gain = 1.0;
  std::string type = "resnet";
  unsigned seed = 1;
};
void WriteRandomModel(const std::string& directory, const RandomModel& shape);

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_SERVER_PROCESS_H_
