// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_OBSERVE_TRACE_FILE_H_
#define DEEPPCR_SERVER_OBSERVE_TRACE_FILE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/observe/log_queue.h"
#include "server/observe/request_trace.h"

namespace deeppcr {

// A file of events that Perfetto and chrome://tracing open. Thread-safe; never waits for the disk.
class TraceFile {
 public:
  // max_bytes: size at which the file is renamed to <path>.1, in place of the one before, and
  // begins anew. Errors: kInvalidArgument if the file cannot be made.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Create(const std::string& path,
                                                           int64_t max_bytes);
  void Write(const RequestTrace& request);

 private:
  TraceFile() = default;

  std::atomic<int64_t> written_{0};
  std::unique_ptr<LogQueue> queue_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_OBSERVE_TRACE_FILE_H_
