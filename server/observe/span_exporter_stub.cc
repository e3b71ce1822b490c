// SPDX-License-Identifier: Apache-2.0
// In place of span_exporter.cc where DEEPPCR_ENABLE_OTLP is OFF.
#include "server/observe/span_exporter.h"

namespace deeppcr {

class SpanExporter::Sender {};

absl::StatusOr<std::unique_ptr<SpanExporter>> SpanExporter::Create(Options) {
  return absl::UnimplementedError(
      "--otlp_traces_endpoint: this server was built without DEEPPCR_ENABLE_OTLP, as bundles with "
      "tests are");
}

SpanExporter::SpanExporter(std::unique_ptr<Sender> sender) : sender_(std::move(sender)) {}
SpanExporter::~SpanExporter() = default;

void SpanExporter::Write(const RequestTrace&) {}
SpanExporter::Counts SpanExporter::counts() const { return {}; }

}  // namespace deeppcr
