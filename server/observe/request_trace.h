// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_OBSERVE_REQUEST_TRACE_H_
#define DEEPPCR_SERVER_OBSERVE_REQUEST_TRACE_H_

#include <chrono>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"

namespace deeppcr {

// What a request spent its time on. Views into the caller's memory.
struct RequestTrace {
  using Clock = std::chrono::steady_clock;
  struct Stage {
    std::string_view name;
    Clock::time_point begin, end;
  };

  std::string_view service, method, model, solver, request_id;
  std::string_view trace_id, parent_id;  // as in TraceParent; empty: the caller has none
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string_view code_name;
  int64_t version = 0, samples = 0, batch_samples = 0;
  std::span<const Stage> stages;  // in their order; the first begins and the last ends the request
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_OBSERVE_REQUEST_TRACE_H_
