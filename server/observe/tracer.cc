// SPDX-License-Identifier: Apache-2.0
#include "server/observe/tracer.h"

#include <algorithm>

#include "kernels/base/status_macros.h"

namespace deeppcr {
namespace {

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}
bool IsZero(std::string_view text) { return text.find_first_not_of('0') == std::string_view::npos; }

int DigitOf(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

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
  return {trace, parent, (DigitOf(flags[1]) & 1) != 0};
}

absl::StatusOr<std::unique_ptr<Tracer>> Tracer::Create(const TracerOptions& options) {
  std::unique_ptr<Tracer> tracer(new Tracer(options.rate));
  if (!options.file.empty()) {
    DEEPPCR_ASSIGN_OR_RETURN(tracer->file_, TraceFile::Create(options.file, options.max_bytes));
  }
  if (!options.endpoint.empty()) {
    DEEPPCR_ASSIGN_OR_RETURN(tracer->exporter_, SpanExporter::Create({.endpoint = options.endpoint,
                                                                      .version = options.version,
                                                                      .lost = options.lost}));
  }
  return tracer;
}

bool Tracer::Sample(bool asked) {
  if (!enabled()) return false;
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

void Tracer::Write(const RequestTrace& request) {
  if (request.stages.empty()) return;
  if (file_ != nullptr) file_->Write(request);
  if (exporter_ != nullptr) exporter_->Write(request);
}

SpanExporter::Counts Tracer::spans() const {
  return exporter_ != nullptr ? exporter_->counts() : SpanExporter::Counts();
}

}  // namespace deeppcr
