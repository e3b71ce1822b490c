// SPDX-License-Identifier: Apache-2.0
#include "server/observe/log.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/base/strings.h"
#include "nlohmann/json.hpp"
#include "server/observe/log_queue.h"

namespace deeppcr {
namespace {

constexpr std::array<std::string_view, 4> kLevelNames = {"debug", "info", "warn", "error"};

// Stderr may have been made non-blocking, by us or by whoever shares it. The queue's thread may
// stall here: lines dropped meanwhile are counted.
void WaitForStderr() {
  pollfd stderr_ready = {.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  poll(&stderr_ready, 1, -1);  // the write reports any error
}

// Writes past stdio, whose lock a stalled write would hold.
void WriteToStderr(std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      WaitForStderr();
      continue;
    }
    if (written <= 0) return;  // there is nowhere to report it
    line.remove_prefix(static_cast<size_t>(written));
  }
}

std::string Timestamp() {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
}

std::string TextValue(const LogField& field) {
  if (const auto* text = std::get_if<std::string_view>(&field.value)) {
    return Quoted(*text, text->size());
  }
  if (const auto* integer = std::get_if<int64_t>(&field.value)) return StrCat(*integer);
  return StrCat(std::get<double>(field.value));
}

std::string TextLine(std::string_view level, std::string_view event,
                     std::initializer_list<LogField> fields) {
  std::string line = StrCat(Timestamp(), " ", level, " ", event);
  for (const LogField& field : fields) {
    line += StrCat(" ", field.key, "=", TextValue(field));
  }
  return line;
}

std::string JsonLine(std::string_view level, std::string_view event,
                     std::initializer_list<LogField> fields) {
  nlohmann::ordered_json line = {{"time", Timestamp()}, {"level", level}, {"event", event}};
  for (const LogField& field : fields) {
    std::visit([&](const auto& value) { line[std::string(field.key)] = value; }, field.value);
  }
  // Names may hold any bytes: those that are not UTF-8 are replaced, where the default throws.
  return line.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

std::string MakeLine(LogFormat format, LogLevel level, std::string_view event,
                     std::initializer_list<LogField> fields, int64_t suppressed) {
  const std::string_view level_name = kLevelNames[static_cast<size_t>(level)];
  std::string line = format == LogFormat::kJson ? JsonLine(level_name, event, fields)
                                                : TextLine(level_name, event, fields);
  if (suppressed > 0 && format == LogFormat::kJson) {
    line.pop_back();
    line += StrCat(",\"suppressed\":", suppressed, "}");
  } else if (suppressed > 0) {
    line += StrCat(" suppressed=", suppressed);
  }
  line.push_back('\n');
  return line;
}

std::unique_ptr<LogQueue> StderrQueue(LogFormat format) {
  return std::make_unique<LogQueue>(WriteToStderr, [format](int64_t dropped) {
    return MakeLine(format, LogLevel::kWarn, "log_lines_dropped", {{"lines", dropped}}, 0);
  });
}

}  // namespace

LogLevel ParseLogLevel(std::string_view name) {
  for (size_t i = 0; i < kLevelNames.size(); ++i) {
    if (kLevelNames[i] == name) return static_cast<LogLevel>(i);
  }
  return LogLevel::kInfo;
}

Logger::Logger(LogFormat format, LogLevel level, Sink sink)
    : format_(format),
      level_(level),
      queue_(sink ? nullptr : StderrQueue(format)),
      sink_(std::move(sink)) {}

Logger::~Logger() = default;

void Logger::SetLevel(LogLevel level) {
  level_.store(level, std::memory_order_relaxed);
  LogAlways("log_level", {{"level", kLevelNames[static_cast<size_t>(level)]}});
}

void Logger::LogAlways(std::string_view event, std::initializer_list<LogField> fields) {
  Write(LogLevel::kInfo, event, fields, 0);
}

void Logger::Flush() {
  if (queue_ != nullptr) queue_->Flush();
}

void Logger::Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  if (enabled(level)) Write(level, event, fields, 0);
}

void Logger::LogLimited(LogLevel level, std::string_view event,
                        std::initializer_list<LogField> fields) {
  if (!enabled(level)) return;
  int64_t suppressed = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& windows = windows_[static_cast<size_t>(level)];
    auto found = windows.find(event);
    if (found == windows.end()) found = windows.emplace(std::string(event), Window{}).first;
    Window& window = found->second;
    const auto now = std::chrono::steady_clock::now();
    if (now - window.start >= std::chrono::seconds(1)) {
      window.start = now;
      window.written = 0;
    }
    if (window.written >= kLinesPerSecond) {
      ++window.suppressed;
      return;
    }
    ++window.written;
    std::swap(suppressed, window.suppressed);
  }
  Write(level, event, fields, suppressed);
}

void Logger::Write(LogLevel level, std::string_view event, std::initializer_list<LogField> fields,
                   int64_t suppressed) {
  std::string line = MakeLine(format_, level, event, fields, suppressed);
  if (queue_ != nullptr) return queue_->Push(std::move(line));
  std::lock_guard<std::mutex> lock(mutex_);
  sink_(line);
}

}  // namespace deeppcr
