// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/server_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "nlohmann/json.hpp"

namespace deeppcr::testing {
namespace {

using Clock = std::chrono::steady_clock;

std::string ReadAll(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Starts a program with stdout and stderr going to the file `log`.
pid_t Spawn(const std::string& program, const std::vector<std::string>& arguments,
            const std::string& log) {
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(file, 1);
  dup2(file, 2);
  execv(program.c_str(), argv.data());
  _exit(127);
}

std::optional<int> WaitFor(pid_t* pid, double seconds) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  while (*pid > 0) {
    int status = 0;
    if (waitpid(*pid, &status, WNOHANG) == *pid) {
      *pid = -1;
      if (WIFEXITED(status)) return WEXITSTATUS(status);
      return std::nullopt;
    }
    if (Clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return std::nullopt;
}

void Kill(pid_t* pid) {
  if (*pid <= 0) return;
  kill(*pid, SIGKILL);
  waitpid(*pid, nullptr, 0);
  *pid = -1;
}

NamedTensor Random(std::mt19937& random, std::string name, std::vector<int64_t> shape,
                   double scale) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  std::normal_distribution<float> normal(0, static_cast<float>(scale));
  NamedTensor tensor = {std::move(name), std::move(shape), {}};
  for (int64_t i = 0; i < count; ++i) tensor.values.push_back(normal(random));
  return tensor;
}

}  // namespace

Finished RunProgram(const std::string& program, const std::vector<std::string>& arguments,
                    double seconds) {
  TemporaryDirectory directory;
  const std::string log = directory.File("log");
  pid_t pid = Spawn(program, arguments, log);
  const std::optional<int> code = WaitFor(&pid, seconds);
  Kill(&pid);
  return {code.value_or(-1), ReadAll(log)};
}

std::unique_ptr<ServerProcess> ServerProcess::Start(const std::string& repository,
                                                    std::vector<std::string> flags) {
  std::unique_ptr<ServerProcess> server(new ServerProcess());
  const auto is_listen = [](const std::string& flag) { return flag.starts_with("--listen="); };
  if (std::none_of(flags.begin(), flags.end(), is_listen)) flags.push_back("--listen=127.0.0.1:0");
  if (!repository.empty()) flags.push_back("--model_repository=" + repository);
  flags.insert(flags.end(), {"--http_listen=127.0.0.1:0",
                             "--port_file=" + server->directory_.File("ports.json")});
  server->pid_ = Spawn(DEEPPCR_SERVER_BINARY, flags, server->directory_.File("log"));
  // The server measures plans before its ports open, perhaps under a sanitizer.
  if (server->AwaitPorts(180)) return server;
  ADD_FAILURE() << "the server did not start:\n" << server->Log();
  return nullptr;
}

bool ServerProcess::AwaitPorts(double seconds) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < deadline && !WaitFor(&pid_, 0).has_value() && pid_ > 0) {
    const auto ports =
        nlohmann::json::parse(ReadAll(directory_.File("ports.json")), nullptr, false);
    if (ports.is_object()) {
      grpc_port_ = ports["grpc_port"];
      http_port_ = ports["http_port"];
      rest_port_ = ports.value("rest_port", 0);
      ready_ = ports["ready"];
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

ServerProcess::~ServerProcess() { Kill(&pid_); }

std::string ServerProcess::address() const { return "127.0.0.1:" + std::to_string(grpc_port_); }

void ServerProcess::Signal(int signal) const { kill(pid_, signal); }

std::optional<int> ServerProcess::Wait(double seconds) { return WaitFor(&pid_, seconds); }

std::string ServerProcess::Log() const { return ReadAll(directory_.File("log")); }

std::string ServerProcess::LogOnceItHas(std::string_view text) const {
  std::string log;
  for (const auto deadline = Clock::now() + std::chrono::seconds(20);
       (log = Log()).find(text) == std::string::npos && Clock::now() < deadline;)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return log;
}

std::string ServerProcess::Http(const std::string& request, int port) const {
  const int socket_fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port > 0 ? port : http_port_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval patience = {10, 0};
  setsockopt(socket_fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  std::string reply;
  if (connect(socket_fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      send(socket_fd, request.data(), request.size(), MSG_NOSIGNAL) > 0) {
    char buffer[4096];
    for (ssize_t n; (n = recv(socket_fd, buffer, sizeof(buffer), 0)) > 0;) {
      reply.append(buffer, static_cast<size_t>(n));
    }
  }
  close(socket_fd);
  return reply;
}

void WriteRandomModel(const std::string& directory, const RandomModel& shape) {
  std::mt19937 random(shape.seed);
  const double scale = shape.gain / std::sqrt(static_cast<double>(shape.width));
  const nlohmann::json config = {{"model_type", shape.type},
                                 {"input_dim", shape.width},
                                 {"output_dim", shape.outputs},
                                 {"state_dim", shape.width},
                                 {"num_layers", shape.layers},
                                 {"activation", "tanh"},
                                 {"max_batch_size", shape.max_batch_size}};
  const absl::Status status =
      WriteModel(directory, config.dump(),
                 {Random(random, "layers.weight", {shape.layers, shape.width, shape.width}, scale),
                  Random(random, "layers.bias", {shape.layers, shape.width}, 0.1),
                  Random(random, "output.weight", {shape.outputs, shape.width}, scale)});
  ASSERT_TRUE(status.ok()) << status;
}

}  // namespace deeppcr::testing
