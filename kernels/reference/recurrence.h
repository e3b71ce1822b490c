// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_REFERENCE_RECURRENCE_H_
#define DEEPPCR_KERNELS_REFERENCE_RECURRENCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"

namespace deeppcr::reference {

// The steps of one sample, which a family makes from the sample's input.
class Recurrence {
 public:
  virtual ~Recurrence() = default;
  // z_0, [D].
  virtual std::vector<double> Initial() const = 0;
  // f_l(z), l = 1..L.
  virtual std::vector<double> Step(int64_t l, const std::vector<double>& z) const = 0;
  // df_l/dz at z, [D, D] row-major.
  virtual std::vector<double> StepJacobian(int64_t l, const std::vector<double>& z) const = 0;
  // By the sample's inputs, [D, input_dim] row-major each, empty for zero: dz_0, and df_l at z.
  virtual std::vector<double> InitialByInputs() const { return {}; }
  virtual std::vector<double> StepByInputs(int64_t l, const std::vector<double>& z) const {
    (void)l, (void)z;
    return {};
  }
  // The factors of the noise of step l at z, [sample_dim].
  virtual std::vector<double> NoiseFactors(int64_t l, const std::vector<double>& z) const {
    (void)l, (void)z;
    return {};
  }
  // The factor of the initial noise in z_0.
  virtual double InitialFactor() const { return 1; }
  // Dense stacks: the cotangent of the pre-activations of layer l, from g_l, at z_{l-1}.
  virtual std::vector<double> Delta(int64_t l, const std::vector<double>& z,
                                    const std::vector<double>& g) const {
    (void)l, (void)z, (void)g;
    return {};
  }
  // The same of the input layer, from g_0.
  virtual std::vector<double> EncodeDelta(const std::vector<double>& g) const {
    (void)g;
    return {};
  }
  // z_0 .. z_L of SolveSpace::GuessCoarse; z_0 everywhere where the family has no coarse guess.
  virtual std::vector<std::vector<double>> CoarseTrajectory(PassCount* count) const = 0;
};

// A model that owns its numbers.
class Family {
 public:
  virtual ~Family() = default;
  virtual std::unique_ptr<Recurrence> Encode(const SampleInput& input) const = 0;
  virtual std::vector<double> Decode(const std::vector<double>& z) const = 0;
  // Jacobian of Decode at z by all of it but the memory, [output_dim, sample_dim] row-major.
  virtual std::vector<double> DecodeJacobian(const std::vector<double>& z) const = 0;
  // Largest row sum of the absolute Jacobian of Decode at z.
  virtual double OutputAmplification(const std::vector<double>& z) const = 0;
  virtual int64_t memory_bytes() const = 0;
  // See System::Repack.
  virtual absl::Status Repack(const DenseStackSpec& spec, int64_t begin, int64_t end) {
    (void)spec, (void)begin, (void)end;
    return absl::UnimplementedError("only dense stacks take other weights");
  }
  // True for dense stacks.
  virtual bool has_parameter_gradients() const { return false; }

  SystemShape shape;
};

std::unique_ptr<Family> NewFamily(const DenseStackSpec& spec);
std::unique_ptr<Family> NewFamily(const DiffusionSpec& spec);
std::unique_ptr<Family> NewFamily(const DiffusionProgramSpec& spec);
std::unique_ptr<Family> NewFamily(const StackProgramSpec& spec);

}  // namespace deeppcr::reference

#endif  // DEEPPCR_KERNELS_REFERENCE_RECURRENCE_H_
