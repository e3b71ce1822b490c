// SPDX-License-Identifier: Apache-2.0
#include "kernels/solver/backward_slices.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/solver/sample_inputs.h"

namespace deeppcr {
namespace {

using Clock = std::chrono::steady_clock;

// Slices grow up to this many times the least number of cotangents.
constexpr int64_t kMostTimes = 128;
// Seconds below which the next slice is larger, and above which it is smaller.
constexpr double kShort = 0.03, kLong = 0.06;

int64_t RowsOf(const BackwardItem& item) { return item.samples.num_samples * item.columns; }

// Rows [first, first + n) of `of` that an array, which may be absent, has.
template <class T>
std::span<T> Part(std::span<T> all, int64_t first, int64_t n, int64_t of) {
  const int64_t size = static_cast<int64_t>(all.size()) / of;
  return all.subspan(static_cast<size_t>(first * size), static_cast<size_t>(n * size));
}

// Samples [first, first + n) with all columns.
BackwardItem SamplesOf(const BackwardItem& item, int64_t first, int64_t n) {
  const int64_t all = item.samples.num_samples;
  BackwardItem part = item;
  part.samples = SamplesOf(item.samples, first, n);
  part.states = Part(item.states, first, n, all);
  part.of_outputs = Part(item.of_outputs, first, n, all);
  part.of_final = Part(item.of_final, first, n, all);
  part.inputs = Part(item.inputs, first, n, all);
  part.initial = Part(item.initial, first, n, all);
  part.step_noise = Part(item.step_noise, first, n, all);
  part.deltas = Part(item.deltas, first, n, all);
  part.encode_deltas = Part(item.encode_deltas, first, n, all);
  part.state_cotangents = Part(item.state_cotangents, first, n, all);
  part.reports = Part(item.reports, first, n, all);
  return part;
}

// Columns [first, first + n) of an item of one sample, which has no deltas.
BackwardItem ColumnsOf(const BackwardItem& item, int64_t first, int64_t n, BackwardReport* report) {
  BackwardItem part = item;
  part.columns = n;
  part.of_outputs = Part(item.of_outputs, first, n, item.columns);
  part.of_final = Part(item.of_final, first, n, item.columns);
  part.inputs = Part(item.inputs, first, n, item.columns);
  part.initial = Part(item.initial, first, n, item.columns);
  part.step_noise = Part(item.step_noise, first, n, item.columns);
  part.reports = {report, 1};
  return part;
}

class Slices {
 public:
  Slices(GoBackFunction go_back, absl::FunctionRef<void(double)> pause, int64_t rows,
         int64_t least_rows)
      : go_back_(go_back), pause_(pause), least_(least_rows), left_(rows), size_(least_rows) {}

  absl::Status Run(std::span<BackwardItem> items) {
    while (!items.empty()) {
      size_t whole = 0;
      for (int64_t rows = 0; whole < items.size(); ++whole) {
        rows += RowsOf(items[whole]);
        if (rows > size_) break;
      }
      if (whole == 0) {
        DEEPPCR_RETURN_IF_ERROR(RunSamples(items.front()));
        items = items.subspan(1);
      } else {
        DEEPPCR_RETURN_IF_ERROR(RunSlice(items.first(whole)));
        items = items.subspan(whole);
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status RunSamples(const BackwardItem& item) {
    for (int64_t first = 0; first < item.samples.num_samples;) {
      const int64_t n =
          std::min(std::max<int64_t>(1, size_ / item.columns), item.samples.num_samples - first);
      BackwardItem part = SamplesOf(item, first, n);
      DEEPPCR_RETURN_IF_ERROR(RowsOf(part) > size_ ? RunColumns(part) : RunSlice({&part, 1}));
      first += n;
    }
    return absl::OkStatus();
  }
  absl::Status RunColumns(const BackwardItem& item) {
    BackwardReport all;
    for (int64_t first = 0; first < item.columns;) {
      const int64_t n = std::min(size_, item.columns - first);
      BackwardReport report;
      BackwardItem part = ColumnsOf(item, first, n, &report);
      DEEPPCR_RETURN_IF_ERROR(RunSlice({&part, 1}));
      all.termination = std::max(all.termination, report.termination);
      all.dependent_stages = std::max(all.dependent_stages, report.dependent_stages);
      all.column_passes += report.column_passes;
      first += n;
    }
    item.reports[0] = all;
    return absl::OkStatus();
  }
  absl::Status RunSlice(std::span<BackwardItem> slice) {
    const Clock::time_point start = Clock::now();
    DEEPPCR_RETURN_IF_ERROR(go_back_(slice));
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    for (const BackwardItem& item : slice) left_ -= RowsOf(item);
    if (seconds < kShort) size_ = std::min(2 * size_, kMostTimes * least_);
    if (seconds > kLong) size_ = std::max(size_ / 2, least_);
    if (left_ > 0) pause_(seconds);
    return absl::OkStatus();
  }

  const GoBackFunction go_back_;
  const absl::FunctionRef<void(double)> pause_;
  const int64_t least_;  // rows of a slice
  int64_t left_;         // rows that have not gone back
  int64_t size_;         // rows of the next slice
};

}  // namespace

absl::Status GoBackInSlices(std::span<BackwardItem> items, int64_t least_rows,
                            GoBackFunction go_back, absl::FunctionRef<void(double seconds)> pause) {
  int64_t rows = 0;
  for (const BackwardItem& item : items) rows += RowsOf(item);
  return Slices(go_back, pause, rows, least_rows).Run(items);
}

}  // namespace deeppcr
