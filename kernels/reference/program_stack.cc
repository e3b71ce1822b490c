// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/program/evaluate.h"
#include "kernels/program/program.h"
#include "kernels/reference/recurrence.h"
#include "kernels/reference/reference_ops.h"

namespace deeppcr::reference {
namespace {

// A layer that owns its numbers.
struct OwnedDense {
  explicit OwnedDense(const DenseSpec& from)
      : weight(from.weight.begin(), from.weight.end()), bias(from.bias.begin(), from.bias.end()) {
    spec = from;
    spec.weight = weight;
    spec.bias = bias;
  }
  OwnedDense(const OwnedDense&) = delete;
  OwnedDense& operator=(const OwnedDense&) = delete;

  // The layer, or the identity where there is none.
  std::vector<double> Apply(const std::vector<double>& x) const {
    return spec.rows == 0 ? x : Dense(spec, x);
  }

  const std::vector<float> weight, bias;
  DenseSpec spec;
};

// A stack of blocks: the outer layers of reference_ops.h around steps of a program in double.
class ProgramStackFamily final : public Family {
 public:
  explicit ProgramStackFamily(const StackProgramSpec& spec)
      : program_(*spec.program), encode_(spec.encode), decode_(spec.decode) {
    shape = ShapeOf(spec);
  }
  std::unique_ptr<Recurrence> Encode(const SampleInput& input) const override;
  std::vector<double> Decode(const std::vector<double>& z) const override {
    return decode_.Apply(z);
  }
  std::vector<double> DecodeJacobian(const std::vector<double>& z) const override {
    return DenseJacobian(decode_.spec, z);
  }
  double OutputAmplification(const std::vector<double>&) const override {
    return LargestRowSum(decode_.spec);
  }
  int64_t memory_bytes() const override { return program::MemoryBytes(program_); }

 private:
  const program::Program program_;
  const OwnedDense encode_, decode_;
};

class ProgramStackRecurrence final : public Recurrence {
 public:
  ProgramStackRecurrence(const program::Program& program, int64_t num_steps, std::vector<double> z0,
                         std::vector<double> by_inputs, std::vector<double> encode_slopes)
      : program_(program),
        num_steps_(num_steps),
        initial_(std::move(z0)),
        by_inputs_(std::move(by_inputs)),
        encode_slopes_(std::move(encode_slopes)) {}
  std::vector<double> EncodeDelta(const std::vector<double>& g) const override {
    std::vector<double> delta = g;
    for (size_t i = 0; i < delta.size(); ++i) delta[i] *= encode_slopes_[i];
    return delta;
  }
  std::vector<double> InitialByInputs() const override { return by_inputs_; }
  std::vector<double> Initial() const override { return initial_; }
  std::vector<double> Step(int64_t l, const std::vector<double>& z) const override {
    program::Evaluation evaluation(program_);
    evaluation.Run({.step = l - 1}, z);
    const auto next = evaluation.at(program_.output);
    return {next.begin(), next.end()};
  }
  std::vector<double> StepJacobian(int64_t l, const std::vector<double>& z) const override {
    const auto dim = static_cast<int64_t>(z.size());
    std::vector<double> unit(z.size() * z.size());
    for (int64_t i = 0; i < dim; ++i) unit[static_cast<size_t>(i * dim + i)] = 1;
    program::Evaluation evaluation(program_);
    evaluation.Run({.step = l - 1}, z);
    return evaluation.Tangents(unit, dim);
  }
  std::vector<std::vector<double>> CoarseTrajectory(PassCount*) const override {
    return std::vector<std::vector<double>>(static_cast<size_t>(num_steps_ + 1), initial_);
  }

 private:
  const program::Program& program_;
  const int64_t num_steps_;
  const std::vector<double> initial_, by_inputs_;
  const std::vector<double> encode_slopes_;  // [D] of the input layer's activation, or empty
};

std::unique_ptr<Recurrence> ProgramStackFamily::Encode(const SampleInput& input) const {
  const std::vector<double> x(input.inputs, input.inputs + shape.input_dim);
  const bool encodes = encode_.spec.rows > 0;
  return std::make_unique<ProgramStackRecurrence>(
      program_, shape.num_steps, encode_.Apply(x), DenseJacobian(encode_.spec, x),
      encodes ? DenseSlopes(encode_.spec, x) : std::vector<double>());
}

}  // namespace

std::unique_ptr<Family> NewFamily(const StackProgramSpec& spec) {
  return std::make_unique<ProgramStackFamily>(spec);
}

}  // namespace deeppcr::reference
