// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_PACKED_LAYERS_H_
#define DEEPPCR_TESTS_TESTING_PACKED_LAYERS_H_

// The tables of CPU kernels under test, and systems in the layout that the kernels take. Plain
// loops pack them here, not kernels/cpu/cpu_system.cc, so that the two check each other.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/kernels.h"
#include "kernels/problem/spec.h"

namespace deeppcr::testing {

struct KernelSet {
  std::string name;  // the instruction set
  cpu::Kernels (*kernels)(int64_t width);
};

// One row per instruction set of this machine, oldest first.
const std::vector<KernelSet>& KernelSets();

class PackedLayers {
 public:
  explicit PackedLayers(const DenseStackSpec& spec);
  const cpu::LayersView& view() const { return view_; }
  int64_t width() const { return view_.width; }

 private:
  AlignedBuffer<float> weights_, biases_, lane_mask_;
  AlignedBuffer<uint32_t> probe_seeds_;
  cpu::LayersView view_;
};

// Buffers of the intervals of one sample, all zero at first.
class IntervalBuffers {
 public:
  IntervalBuffers(const cpu::LayersView& layers, int64_t interval);

  int64_t num_intervals() const { return intervals_; }
  // [W]; column 0 is the state or the right-hand side, the other columns are the probes.
  float* State(int64_t p, int64_t column = 0) { return Row(states_, p, column); }
  float* Propagated(int64_t p, int64_t column = 0) { return Row(propagated_, p, column); }
  float* Prefix(int64_t p, int64_t column = 0) { return Row(prefixes_, p, column); }
  // [W (column), W], or [W] if diagonal.
  float* Dense(int64_t p) { return jacobians_.data() + p * width_ * width_; }
  float* Diagonal(int64_t p) { return jacobians_.data() + p * width_; }

  enum class Matrices { kNone, kDense, kDiagonal };
  cpu::PropagateArgs ToPropagate(Matrices matrices, bool probes);
  cpu::UpdateArgs ToUpdate(Matrices matrices, bool probes, double floor);

 private:
  float* Row(AlignedBuffer<float>& buffer, int64_t p, int64_t column) {
    return buffer.data() + (p * cpu::kColumns + column) * width_;
  }

  const cpu::LayersView layers_;
  const int64_t width_, interval_, intervals_;
  AlignedBuffer<float> states_, propagated_, prefixes_, jacobians_, scratch_;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_PACKED_LAYERS_H_
