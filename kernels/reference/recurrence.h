// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_REFERENCE_RECURRENCE_H_
#define DEEPPCR_KERNELS_REFERENCE_RECURRENCE_H_

#include <cstdint>
#include <memory>
#include <vector>

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
  // z_0 .. z_L of SolveSpace::GuessCoarse; z_0 everywhere where the family has no coarse guess.
  virtual std::vector<std::vector<double>> CoarseTrajectory(PassCount* count) const = 0;
};

// A model that owns its numbers.
class Family {
 public:
  virtual ~Family() = default;
  virtual std::unique_ptr<Recurrence> Encode(const SampleInput& input) const = 0;
  virtual std::vector<double> Decode(const std::vector<double>& z) const = 0;
  // Largest row sum of the absolute Jacobian of Decode at z.
  virtual double OutputAmplification(const std::vector<double>& z) const = 0;
  virtual int64_t memory_bytes() const = 0;

  SystemShape shape;
};

std::unique_ptr<Family> NewFamily(const DenseStackSpec& spec);
std::unique_ptr<Family> NewFamily(const DiffusionSpec& spec);
std::unique_ptr<Family> NewFamily(const DiffusionProgramSpec& spec);
std::unique_ptr<Family> NewFamily(const StackProgramSpec& spec);

}  // namespace deeppcr::reference

#endif  // DEEPPCR_KERNELS_REFERENCE_RECURRENCE_H_
