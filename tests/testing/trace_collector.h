// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_TRACE_COLLECTOR_H_
#define DEEPPCR_TESTS_TESTING_TRACE_COLLECTOR_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

struct MHD_Daemon;

namespace deeppcr::testing {

// A collector of OpenTelemetry on a port of this machine that keeps what it is sent. Thread-safe.
class TraceCollector {
 public:
  TraceCollector();
  ~TraceCollector();

  // The URL of traces.
  std::string endpoint() const;
  // Answers the next messages with these statuses, and those that follow with 200.
  void AnswerWith(std::vector<int> statuses);
  // Has answers with other statuses than 200 ask for this pause.
  void SetRetryAfter(std::string seconds);
  // What it answers with 200.
  void SetReply(std::string reply);
  // Keeps replies back until it is told otherwise.
  void Hold(bool hold);
  // The messages that were answered with 200, once there are `count`, or after ten seconds.
  std::vector<nlohmann::json> Messages(size_t count);
  // Every span of these messages.
  std::vector<nlohmann::json> Spans(size_t count);
  // Every message that came, taken or not.
  int64_t posts();

 private:
  struct Handler;
  // The status of a message, and what to say with it.
  int Answer(const std::string& body, std::string& reply, std::string& retry_after);

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::vector<int> statuses_;
  std::vector<nlohmann::json> messages_;
  std::string reply_ = "{}", retry_after_;
  bool hold_ = false;
  int64_t posts_ = 0;

  MHD_Daemon* daemon_ = nullptr;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_TRACE_COLLECTOR_H_
