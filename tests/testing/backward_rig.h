// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_BACKWARD_RIG_H_
#define DEEPPCR_TESTS_TESTING_BACKWARD_RIG_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend/backend.h"
#include "kernels/solver/sample_inputs.h"

namespace deeppcr::testing {

// Results of n samples with m cotangents each.
struct Gradients {
  std::vector<float> inputs;            // [n, m, input_dim]
  std::vector<float> initial;           // [n, m, D]
  std::vector<float> step_noise;        // [n, m, L, D], of systems that draw noise
  std::vector<float> deltas;            // [n, L, D], if they were asked for
  std::vector<float> state_cotangents;  // the same
  PassCount count;

  // True if all results are equal bit for bit.
  bool SameBits(const Gradients& other) const;
};

// What goes back: samples, their states, and the cotangents of their outputs.
struct BackwardRequest {
  SampleInputs samples;
  std::vector<float> states;  // [n, L + 1, D]
  int64_t columns = 1;
  std::vector<float> of_outputs;  // [n, m, output_dim]
  bool deltas = false, state_cotangents = false;
};

// A system on a backend, packed for the backward pass. A failed setup aborts the test program.
class BackwardRig {
 public:
  BackwardRig(std::unique_ptr<Backend> backend, const SystemSpec& spec);

  // The sequential way: all samples together.
  Gradients Sequential(const BackwardRequest& request) const;
  // The parallel way with C steps per interval, a sample after the other.
  Gradients Parallel(const BackwardRequest& request, int64_t shooting_interval) const;

  // True where the backend scans whole samples on its device, and the parallel way of all samples
  // together there.
  bool ScansTogether() const;
  Gradients ScannedTogether(const BackwardRequest& request, int64_t shooting_interval) const;

  const System& system() const { return *system_; }
  const SystemShape& shape() const { return shape_; }

 private:
  const SystemShape shape_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<System> system_;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_BACKWARD_RIG_H_
