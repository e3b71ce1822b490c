// SPDX-License-Identifier: Apache-2.0
#include "server/observe/trace_file.h"

#include <cstdio>
#include <fstream>
#include <string_view>
#include <utility>

#include "kernels/base/strings.h"
#include "nlohmann/json.hpp"

namespace deeppcr {
namespace {

// Bytes that may wait to be written; events beyond that are left out.
constexpr size_t kQueueBytes = size_t{8} << 20;

double Microseconds(RequestTrace::Clock::time_point time) {
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

// Nested events of one id: the request, and its stages within.
std::string EventsOf(const RequestTrace& request, int64_t id) {
  std::string events;
  const auto add = [&](std::string_view name, const char* phase,
                       RequestTrace::Clock::time_point time,
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
       {"code", request.code_name},
       {"request_id", request.request_id},
       {"trace_id", request.trace_id}});
  for (const RequestTrace::Stage& stage : request.stages) {
    add(stage.name, "b", stage.begin, nullptr);
    add(stage.name, "e", stage.end, nullptr);
  }
  add(name, "e", request.stages.back().end, nullptr);
  return events;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Create(const std::string& path,
                                                             int64_t max_bytes) {
  auto file = std::make_shared<EventFile>(path, max_bytes);
  if (!file->Begin()) return InvalidArgument("--trace_file: ", path, " cannot be written");
  const auto write = [file](std::string_view events) { file->Write(events); };
  const auto notice = [](int64_t) { return std::string(); };
  std::unique_ptr<TraceFile> trace(new TraceFile);
  trace->queue_ = std::make_unique<LogQueue>(write, notice, kQueueBytes);
  return trace;
}

void TraceFile::Write(const RequestTrace& request) {
  queue_->Push(EventsOf(request, written_.fetch_add(1, std::memory_order_relaxed)));
}

}  // namespace deeppcr
