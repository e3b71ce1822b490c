// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_CLIENT_RUN_BINARY_H_
#define DEEPPCR_TESTS_CLIENT_RUN_BINARY_H_

// Runs the `deeppcr` binary, which DEEPPCR_BINARY names, as a user does.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/client/fake_service.h"

namespace deeppcr {

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

inline std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline std::string TempPath(const std::string& name) {
  return ::testing::TempDir() + "cli_test_" + std::to_string(getpid()) + "_" + name;
}

// Returns the exit code. `arguments` go through the shell; standard error goes to the file `err`.
inline int RunShell(const std::string& arguments, const std::string& in, const std::string& out,
                    const std::string& err) {
  const std::string command =
      std::string(DEEPPCR_BINARY) + " " + arguments + " <" + in + " >" + out + " 2>" + err;
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Runs the binary with `input` as standard input.
inline Outcome RunBinary(const std::string& arguments, const std::string& input = "") {
  const std::string in = TempPath("stdin");
  const std::string out = TempPath("stdout");
  const std::string err = TempPath("stderr");
  std::ofstream(in, std::ios::binary) << input;
  const int code = RunShell(arguments, in, out, err);
  return {code, Slurp(out), Slurp(err)};
}

class CliTest : public ::testing::Test {
 protected:
  Outcome RunAtServer(const std::string& arguments, const std::string& input = "") {
    return RunBinary(arguments + " --server " + service_.address(), input);
  }
  FakeService service_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_TESTS_CLIENT_RUN_BINARY_H_
