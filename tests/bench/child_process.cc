// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/child_process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace deeppcr {

absl::StatusOr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& arguments) {
  std::vector<std::string> owned = arguments;
  std::vector<char*> pointers;
  for (std::string& argument : owned) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, pointers[0], &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return absl::NotFoundError(
        absl::StrCat("cannot start ", arguments[0], ": ", std::strerror(error)));
  }
  return ChildProcess(pid);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}

ChildProcess::~ChildProcess() {
  if (!running()) return;
  kill(pid_, SIGTERM);
  waitpid(pid_, nullptr, 0);
}

bool ChildProcess::running() {
  if (pid_ != 0 && waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = 0;
  return pid_ != 0;
}

absl::StatusOr<int> ChildProcess::AwaitPort(const std::string& path, const std::string& key,
                                            absl::Duration patience) {
  const absl::Time end = absl::Now() + patience;
  while (absl::Now() < end) {
    if (!running()) return absl::UnavailableError("the program ended before it was ready");
    std::ifstream file(path);
    // A file that is missing or half written parses to a discarded value.
    const auto json = nlohmann::json::parse(file, nullptr, false);
    if (json.is_object() && json.contains(key) && json[key].is_number_integer()) {
      return json[key].get<int>();
    }
    absl::SleepFor(absl::Milliseconds(50));
  }
  return absl::DeadlineExceededError(absl::StrCat("no ", key, " in ", path));
}

}  // namespace deeppcr
