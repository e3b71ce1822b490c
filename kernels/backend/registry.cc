// SPDX-License-Identifier: Apache-2.0
#include "kernels/backend/registry.h"

#include <array>
#include <cstdlib>
#include <utility>

#include "kernels/backend/cuda_evidence.h"
#include "kernels/backend/module.h"
#include "kernels/base/strings.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"

namespace deeppcr {
namespace {

absl::StatusOr<std::unique_ptr<Backend>> NewCuda() { return LoadBackendModule("deeppcr_cuda"); }
absl::StatusOr<std::unique_ptr<Backend>> NewCpu() { return cpu::NewCpuBackend(); }
absl::StatusOr<std::unique_ptr<Backend>> NewReference() { return reference::NewReferenceBackend(); }

// Rates. cuda: the tensor-free flops of an H200 that a solve of one sample reaches and the cap on a
// layer (assumed: no GPU has run the planner). cpu: one core with AVX2 at width 16 and its chain of
// dependent instructions. reference: its plain loops.
using Automatic = BackendRow::Automatic;
constexpr BackendRow kCuda = {
    "cuda",   Automatic::kNever, "no GPU has passed the tests of this code",
    &NewCuda, {2e12, 65e-9},     true};
constexpr BackendRow kCpu = {"cpu", Automatic::kYes, nullptr, &NewCpu, {25e9, 14e-9}};
constexpr BackendRow kReference = {
    "reference", Automatic::kNotFirst, "it is the tests' oracle", &NewReference, {0.5e9, 0}};

// cuda as `auto` takes it once a GPU has passed the tests of this code.
constexpr BackendRow TestedCuda() {
  BackendRow row = kCuda;
  row.automatic = Automatic::kYes;
  row.why_not = nullptr;
  return row;
}

// The backend of a row that can run here, with those that its models are checked against.
absl::StatusOr<SelectedBackend> Select(const BackendRow& row) {
  absl::StatusOr<std::unique_ptr<Backend>> backend = row.create();
  if (!backend.ok()) return backend.status();
  SelectedBackend selected{*std::move(backend), row.rates};
  if (!row.self_check) return selected;
  for (const BackendRow& other : Backends()) {
    if (other.self_check) continue;
    if (absl::StatusOr<std::unique_ptr<Backend>> oracle = other.create(); oracle.ok())
      selected.oracles.push_back(*std::move(oracle));
  }
  return selected;
}

absl::StatusOr<SelectedBackends> SelectAutomatically() {
  SelectedBackends selected;
  std::string passed_over;  // backends before the first, and why
  const auto pass_over = [&](const BackendRow& row, std::string_view how, std::string_view why) {
    passed_over += StrCat(passed_over.empty() ? "" : "; ", row.name, how, why);
  };
  for (const BackendRow& row : Backends()) {
    const bool first = selected.backends.empty();
    if (row.automatic == Automatic::kNever || (first && row.automatic == Automatic::kNotFirst)) {
      pass_over(row, " only when asked for: ", row.why_not);
      continue;
    }
    absl::StatusOr<SelectedBackend> backend = Select(row);
    if (!backend.ok()) {
      pass_over(row, " cannot run here: ", ToStd(backend.status().message()));
      continue;
    }
    if (first) selected.reason = passed_over.empty() ? "fastest that runs here" : passed_over;
    selected.backends.push_back(*std::move(backend));
  }
  if (!selected.backends.empty()) return selected;
  return absl::UnavailableError(StrCat("no backend can run here: ", passed_over));
}

}  // namespace

std::span<const BackendRow> Backends() {
  static const std::array<BackendRow, 3> rows = {*kCudaEvidence != '\0' ? TestedCuda() : kCuda,
                                                 kCpu, kReference};
  return rows;
}

absl::StatusOr<SelectedBackends> SelectBackends(std::string_view name) {
  const char* forced = std::getenv("DEEPPCR_FORCE_BACKEND");
  if (name == "auto" && forced != nullptr && *forced != '\0') name = forced;
  if (name == "auto") return SelectAutomatically();
  for (const BackendRow& row : Backends()) {
    if (row.name != name) continue;
    absl::StatusOr<SelectedBackend> backend = Select(row);
    if (!backend.ok()) return backend.status();
    SelectedBackends selected{.backends = {}, .reason = "asked for"};
    selected.backends.push_back(*std::move(backend));
    return selected;
  }
  const auto name_of = [](const BackendRow& row) { return std::string(row.name); };
  return InvalidArgument("backend: expected auto or one of ", StrJoin(Backends(), ", ", name_of),
                         ", got ", Quoted(name));
}

}  // namespace deeppcr
