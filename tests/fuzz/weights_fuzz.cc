// SPDX-License-Identifier: Apache-2.0
// The safetensors reader, and that of step tables. Accepted files are checked against the format by
// independent means.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/model/step_table.h"
#include "kernels/model/weights.h"
#include "tests/fuzz/fuzz_target.h"

namespace deeppcr::fuzz {
namespace {

#if defined(DEEPPCR_FUZZ_PLANTED_BUG)
// Reads the header like the real reader, with a layout check that is off in one comparison: it
// refuses gaps but not overlaps, as readers did that compared offsets with the file only.
absl::StatusOr<Tensors> Parse(std::string_view bytes) {
  const auto all = std::as_bytes(std::span<const char>(bytes));
  DEEPPCR_ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensorsHeader(all));
  const auto data = all.subspan(static_cast<size_t>(header.data_offset));
  int64_t covered = 0;
  for (TensorEntry& entry : header.entries) {
    std::vector<TensorEntry> alone = {entry};
    const bool gap = entry.begin > covered;
    alone[0].end -= entry.begin;
    alone[0].begin = 0;
    DEEPPCR_RETURN_IF_ERROR(CheckSafetensorsLayout(alone, alone[0].end));
    if (gap || entry.end > static_cast<int64_t>(data.size())) {
      return absl::InvalidArgumentError("gap or cut short");
    }
    covered = std::max(covered, entry.end);
    entry.data = data.subspan(static_cast<size_t>(entry.begin), static_cast<size_t>(alone[0].end));
  }
  if (covered != static_cast<int64_t>(data.size()))
    return absl::InvalidArgumentError("extra bytes");
  return Tensors(std::move(header.entries));
}
#else
absl::StatusOr<Tensors> Parse(std::string_view bytes) { return ParseSafetensors(bytes); }
#endif

void RequireSizeOfShape(const TensorEntry& entry) {
  __extension__ using Wide = unsigned __int128;
  // 8 extents below 2^63 overflow even 128 bits, so the product is cut off well above any size of
  // data.
  constexpr Wide kTooMuch = Wide{1} << 64;
  Wide bytes = static_cast<Wide>(DtypeSize(entry.dtype));
  for (const int64_t extent : entry.shape) {
    Require(extent >= 0, "an extent is not negative");
    bytes = std::min(bytes * static_cast<Wide>(extent), kTooMuch);
  }
  Require(bytes == entry.data.size(), "a tensor has the bytes of its shape and dtype");
}

// Requires that the views tile the bytes behind the header.
void RequireExactCover(const Tensors& tensors, std::string_view bytes) {
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  std::vector<std::span<const std::byte>> views;
  for (const TensorEntry& entry : tensors.entries()) {
    if (!entry.data.empty()) views.push_back(entry.data);
  }
  std::sort(views.begin(), views.end(),
            [](const auto& a, const auto& b) { return a.data() < b.data(); });
  const auto all = std::as_bytes(std::span<const char>(bytes));
  const std::byte* next = all.data() + sizeof(header_size) + header_size;
  for (const auto& view : views) {
    Require(view.data() == next, "tensors leave no gap and do not overlap");
    next = view.data() + view.size();
  }
  Require(next == all.data() + all.size(), "tensors end where the file ends");
}

void RequireNamesInOrder(const Tensors& tensors) {
  const auto entries = tensors.entries();
  for (size_t i = 0; i < entries.size(); ++i) {
    Require(i == 0 || entries[i - 1].name < entries[i].name, "names are distinct and sorted");
    Require(entries[i].name.find('\0') == std::string::npos, "names hold no NUL");
    Require(tensors.Find(entries[i].name) == &entries[i], "a tensor is found by its name");
  }
}

void RequireFiniteOrRefused(const TensorEntry& entry) {
  const absl::StatusOr<std::vector<float>> values = ToFloat(entry);
  if (!values.ok()) return RequireCleanRefusal(values.status());
  Require(std::all_of(values->begin(), values->end(), [](float x) { return std::isfinite(x); }),
          "converted values are finite");
}

// Step tables are safetensors files too; what a backend makes of an accepted one is finite.
void TryStepTable(std::string_view bytes) {
  const absl::StatusOr<StepTables> table = ParseStepTable(bytes);
  if (!table.ok()) return RequireCleanRefusal(table.status());
  const auto size = std::ssize(table->steps);
  Require(size >= 1 && size <= 65536, "a step table has 1 to 65536 steps");
  Require(table->clip_range > 0, "the clip range is above 0");
  Require(std::isfinite(table->initial_scale) && table->initial_scale > 0,
          "the initial scale is finite and above 0");
  for (const ReverseStep& step : table->steps) {
    const ReverseCoefficients c = ToFloat(step);
    const HoldCoefficients hold = HoldOf(step);
    const ReverseCoefficients of_memory = ToFloat(PartOf(step, StepPart::kMemory));
    const MemoryHold held = MemoryHoldOf(step);
    for (const float value :
         {c.x0_z, c.x0_m, c.z_z, c.z_m, c.z_x0, c.sigma, hold.z, hold.raw, hold.clipped, hold.sigma,
          static_cast<float>(step.timestep), of_memory.z_z, of_memory.z_m, of_memory.z_x0,
          held.recall, held.next.z, held.next.raw, held.next.clipped})
      Require(std::isfinite(value), "coefficients are finite as float32");
    Require(step.z_c == 0 || table->form.carries, "a memory that is read is carried");
  }
}

}  // namespace

bool TryInput(std::string_view bytes) {
  const absl::StatusOr<Tensors> tensors = Parse(bytes);
  if (!tensors.ok()) {
    RequireCleanRefusal(tensors.status());
    return false;
  }
  TryStepTable(bytes);
  RequireNamesInOrder(*tensors);
  RequireExactCover(*tensors, bytes);
  for (const TensorEntry& entry : tensors->entries()) {
    RequireSizeOfShape(entry);
    RequireFiniteOrRefused(entry);
  }
  return true;
}

}  // namespace deeppcr::fuzz
