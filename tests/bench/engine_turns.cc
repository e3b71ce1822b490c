// SPDX-License-Identifier: Apache-2.0
// Solves requests of one model as it is told, for comparisons of two commits that take turns
// (measure_against.py): of the engine it uses what older commits have too.
//
// Usage: engine_turns MODEL_FOLDER THREADS. Says "ready DEVICE", and for every line "SOLVER SAMPLES
// REPETITIONS" of its input "LEAST MEDIAN HASH": seconds of a solve, and a hash of the outputs.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/engine.h"

namespace deeppcr {
namespace {

[[noreturn]] void Fail(const absl::Status& status) {
  std::cerr << status << "\n";
  std::exit(1);
}

// Numbers in [0, 1) that are the same for every commit.
std::vector<float> Numbers(int64_t n) {
  std::vector<float> numbers(static_cast<size_t>(n));
  uint32_t state = 12345;
  for (float& x : numbers) {
    state = state * 1664525U + 1013904223U;
    x = static_cast<float>(state >> 8) * 0x1p-24F;
  }
  return numbers;
}

uint64_t HashOf(const std::vector<float>& outputs) {
  uint64_t hash = 1469598103934665603U;  // FNV-1a
  const auto* const bytes = reinterpret_cast<const unsigned char*>(outputs.data());
  for (size_t i = 0; i < outputs.size() * sizeof(float); ++i)
    hash = (hash ^ bytes[i]) * 1099511628211U;
  return hash;
}

void Serve(const std::string& folder, int threads) {
  EngineOptions options;
  options.backend = "cpu";
  options.num_threads = threads;
  const auto engine = Engine::Create(options);
  if (!engine.ok()) Fail(engine.status());
  const auto model = (*engine)->LoadModel(
      folder, [](LoadNews, std::string_view) {}, nullptr);
  if (!model.ok()) Fail(model.status());
  const ModelInfo& info = (*model)->info();
  const auto system = (*model)->Find();
  std::cout << "ready " << (*engine)->device() << std::endl;
  std::string solver;
  int64_t samples = 0;
  int repetitions = 0;
  while (std::cin >> solver >> samples >> repetitions) {
    SolveOptions solve;
    solve.solver = solver;
    const auto resolved = system->Resolve(solve, samples);
    if (!resolved.ok()) Fail(resolved.status());
    const std::vector<float> inputs = Numbers(samples * info.input_dim);
    std::vector<float> outputs(static_cast<size_t>(samples * info.output_dim));
    std::vector<SampleReport> reports(static_cast<size_t>(samples));
    std::vector<double> seconds;
    for (int r = 0; r < repetitions; ++r) {
      RunItem item;
      item.samples.num_samples = samples;
      if (info.generates()) {
        item.samples.seed = 7;
      } else {
        item.samples.inputs = inputs;
      }
      item.outputs = outputs;
      item.reports = reports;
      RunTimings timings;
      const auto begin = std::chrono::steady_clock::now();
      const absl::Status status = system->Run(*resolved, {&item, 1}, &timings);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      if (!status.ok()) Fail(status);
      seconds.push_back(took.count());
    }
    std::sort(seconds.begin(), seconds.end());
    std::cout << seconds[0] << " " << seconds[seconds.size() / 2] << " "
              << absl::StrCat(absl::Hex(HashOf(outputs), absl::kZeroPad16)) << std::endl;
  }
}

}  // namespace
}  // namespace deeppcr

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: engine_turns MODEL_FOLDER THREADS\n";
    return 2;
  }
  deeppcr::Serve(argv[1], std::atoi(argv[2]));
}
