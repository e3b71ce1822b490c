// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_OBSERVE_LOG_H_
#define DEEPPCR_SERVER_OBSERVE_LOG_H_

// Structured logs: one line per event, JSON or text. Never request data, only names and sizes.

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <variant>

namespace deeppcr {

class LogQueue;

enum class LogLevel : uint8_t { kDebug, kInfo, kWarn, kError };
enum class LogFormat : uint8_t { kJson, kText };

// "debug", "info", "warn" or "error"; anything else counts as info.
LogLevel ParseLogLevel(std::string_view name);

struct LogField {
  std::string_view key;
  std::variant<std::string_view, int64_t, double> value;
};

// Thread-safe; a line is written in one piece.
class Logger {
 public:
  using Sink = std::function<void(std::string_view line)>;

  // The default sink is stderr, through a queue: a stalled pipe drops lines and stops no caller.
  // Any other sink is called at once.
  Logger(LogFormat format, LogLevel level, Sink sink = nullptr);
  // Flushes, for a limited time.
  ~Logger();

  // Waits until lines are written, for a limited time; for an exit without destructors.
  void Flush();

  bool enabled(LogLevel level) const { return level >= this->level(); }
  LogLevel level() const { return level_.load(std::memory_order_relaxed); }
  // Changes the level, which a line says whatever the level.
  void SetLevel(LogLevel level);

  void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields);
  // Logs at the level info, whatever the level of the log: who changes what, that too.
  void LogAlways(std::string_view event, std::initializer_list<LogField> fields);

  // Logs as Log does, but at most kLinesPerSecond of one event at one level: a flood of refusals
  // must not become a flood of lines, nor hide a worse line of the same name. The next line that
  // passes carries the number left out as `suppressed`.
  void LogLimited(LogLevel level, std::string_view event, std::initializer_list<LogField> fields);

  static constexpr int kLinesPerSecond = 5;

 private:
  struct Window {
    std::chrono::steady_clock::time_point start{};
    int written = 0;
    int64_t suppressed = 0;
  };
  void Write(LogLevel level, std::string_view event, std::initializer_list<LogField> fields,
             int64_t suppressed);

  const LogFormat format_;
  std::atomic<LogLevel> level_;
  const std::unique_ptr<LogQueue> queue_;  // null with a sink of the caller's
  const Sink sink_;
  std::mutex mutex_;
  // Windows by level, then by event; events are literals of ours.
  std::array<std::map<std::string, Window, std::less<>>, 4> windows_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_OBSERVE_LOG_H_
