// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/program_backend.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/program/cost.h"
#include "kernels/program/dense_stack.h"

namespace deeppcr::testing {
namespace {

class ProgramBackend final : public Backend {
 public:
  explicit ProgramBackend(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

  std::string_view name() const override { return backend_->name(); }
  std::string_view device() const override { return backend_->device(); }
  DeviceClass device_class() const override { return backend_->device_class(); }
  absl::StatusOr<std::unique_ptr<System>> NewSystem(const SystemSpec& spec,
                                                    const PackingLimits& limits) const override {
    if (const auto* stack = std::get_if<DenseStackSpec>(&spec)) {
      DEEPPCR_ASSIGN_OR_RETURN(const program::Program made, program::ProgramOfStack(*stack));
      const StackProgramSpec of_program = {.num_steps = stack->num_steps,
                                           .state_dim = stack->state_dim,
                                           .program = &made,
                                           .step_weights = program::StepWeights(made),
                                           .encode = stack->encode,
                                           .decode = stack->decode};
      return backend_->NewSystem(of_program, limits);
    }
    return backend_->NewSystem(spec, limits);
  }

 private:
  std::unique_ptr<Backend> backend_;
};

}  // namespace

std::unique_ptr<Backend> WithProgramsForStacks(std::unique_ptr<Backend> backend) {
  return std::make_unique<ProgramBackend>(std::move(backend));
}

}  // namespace deeppcr::testing
