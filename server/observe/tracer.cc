// SPDX-License-Identifier: Apache-2.0
#include "server/observe/tracer.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

#include "kernels/base/strings.h"
#include "nlohmann/json.hpp"

namespace deeppcr {
namespace {

// Bytes that may wait to be written; events beyond that are left out.
constexpr size_t kQueueBytes = size_t{8} << 20;

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}
bool IsZero(std::string_view text) { return text.find_first_not_of('0') == std::string_view::npos; }

int DigitOf(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

double Microseconds(Tracer::Clock::time_point time) {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

// The file of events, and the one before it. Used by one thread at a time.
class EventFile {
 public:
  EventFile(std::string path, int64_t max_bytes) : path_(std::move(path)), max_bytes_(max_bytes) {}

  // Begins the file anew; false if it cannot be written.
  bool Begin() {
    file_ = std::ofstream(path_, std::ios::trunc);
    // Readers accept an array that is never closed, so that a server may end at any time.
    file_ << "[" << std::flush;
    bytes_ = 1;
    return file_.good();
  }
  void Write(std::string_view events) {
    const auto size = static_cast<int64_t>(events.size());
    if (bytes_ + size > max_bytes_ && bytes_ > 1) {
      file_.close();
      std::rename(path_.c_str(), (path_ + ".1").c_str());
      Begin();
    }
    // What is longer than a whole file is left out.
    if (bytes_ + size > max_bytes_) return;
    file_ << events << std::flush;
    bytes_ += size;
  }

 private:
  const std::string path_;
  const int64_t max_bytes_;
  std::ofstream file_;
  int64_t bytes_ = 0;
};

}  // namespace

TraceParent ParseTraceParent(std::string_view header) {
  // Later versions may append fields.
  constexpr size_t kBytes = 55;
  const bool whole = header.size() == kBytes ||
                     (header.size() > kBytes && header[kBytes] == '-' && !header.starts_with("00"));
  if (!whole || header[2] != '-' || header[35] != '-' || header[52] != '-') return {};
  const std::string_view version = header.substr(0, 2), trace = header.substr(3, 32),
                         parent = header.substr(36, 16), flags = header.substr(53, 2);
  if (!IsHex(version) || !IsHex(trace) || !IsHex(parent) || !IsHex(flags) || version == "ff" ||
      IsZero(trace) || IsZero(parent))
    return {};
  return {trace, (DigitOf(flags[1]) & 1) != 0};
}

absl::StatusOr<std::unique_ptr<Tracer>> Tracer::Create(const std::string& path, double rate,
                                                       int64_t max_bytes) {
  std::unique_ptr<Tracer> tracer(new Tracer(rate));
  if (path.empty()) return tracer;
  auto file = std::make_shared<EventFile>(path, max_bytes);
  if (!file->Begin()) return InvalidArgument("--trace_file: ", path, " cannot be written");
  const auto write = [file](std::string_view events) { file->Write(events); };
  const auto notice = [](int64_t) { return std::string(); };
  tracer->file_ = std::make_unique<LogQueue>(write, notice, kQueueBytes);
  return tracer;
}

bool Tracer::Sample(bool asked) {
  if (file_ == nullptr) return false;
  if (asked && TakeAsked()) return true;
  const auto before = static_cast<double>(requests_.fetch_add(1, std::memory_order_relaxed));
  return static_cast<int64_t>((before + 1) * rate_) != static_cast<int64_t>(before * rate_);
}

bool Tracer::TakeAsked() {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (now - window_ >= std::chrono::seconds(1)) {
    window_ = now;
    asked_ = 0;
  }
  return ++asked_ <= kAskedPerSecond;
}

void Tracer::Write(const Request& request) {
  if (file_ == nullptr || request.stages.empty()) return;
  file_->Push(EventsOf(request));
}

// Nested events of one id: the request, and its stages within.
std::string Tracer::EventsOf(const Request& request) {
  const int64_t id = traced_.fetch_add(1, std::memory_order_relaxed);
  std::string events;
  const auto add = [&](std::string_view name, const char* phase, Clock::time_point time,
                       const nlohmann::ordered_json& arguments) {
    nlohmann::ordered_json event = {
        {"name", name}, {"cat", "request"},        {"ph", phase}, {"id", id}, {"pid", 1},
        {"tid", 1},     {"ts", Microseconds(time)}};
    if (!arguments.is_null()) event["args"] = arguments;
    // Names that a client chooses need not be UTF-8.
    events += event.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace) + ",\n";
  };
  const std::string name = StrCat(request.method, " ", request.model);
  add(name, "b", request.stages.front().begin,
      {{"model", request.model},
       {"version", request.version},
       {"solver", request.solver},
       {"samples", request.samples},
       {"batch_samples", request.batch_samples},
       {"code", request.code},
       {"request_id", request.request_id},
       {"trace_id", request.trace_id}});
  for (const Stage& stage : request.stages) {
    add(stage.name, "b", stage.begin, nullptr);
    add(stage.name, "e", stage.end, nullptr);
  }
  add(name, "e", request.stages.back().end, nullptr);
  return events;
}

}  // namespace deeppcr
