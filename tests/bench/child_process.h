// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_BENCH_CHILD_PROCESS_H_
#define DEEPPCR_TESTS_BENCH_CHILD_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace deeppcr {

// A child process. The destructor stops it by SIGTERM, and waits for it.
class ChildProcess {
 public:
  // arguments[0] is the program's path. The program's standard output goes to standard error.
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& arguments);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  // False once the process has ended.
  bool running();

  // Waits until the file `path` holds a JSON object, and returns its member `key`.
  // Errors: kUnavailable if the program ends first, kDeadlineExceeded after `patience`.
  absl::StatusOr<int> AwaitPort(const std::string& path, const std::string& key,
                                absl::Duration patience);

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  pid_t pid_;  // 0: no process, or one that has ended and was waited for
};

}  // namespace deeppcr

#endif  // DEEPPCR_TESTS_BENCH_CHILD_PROCESS_H_
