// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_COMPILER_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_COMPILER_H_

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/cuda/program/source.h"
#include "kernels/cuda/program/view.h"
#include "kernels/cuda/runtime/device.h"

namespace deeppcr::cuda {

// The kernels of programs on a device: those that live already, those that a cache of files has, or
// new ones. Thread-safe.
class ProgramCompiler {
 public:
  // `device` must outlive this object and all kernels.
  explicit ProgramCompiler(Device& device) : device_(device) {}

  // Null where the program is to be interpreted: for want of a compiler, as the program is too long
  // for one, because the compiler fails, or as limits say that nothing is to be compiled that is
  // not there. limits.progress is told the reason, or the time that compiling took. Errors:
  // kCancelled soon after limits.token has fired.
  absl::StatusOr<std::shared_ptr<const DeviceCode>> KernelsOf(
      std::span<const ProgramInstruction> instructions, const KernelsWanted& wanted,
      const PackingLimits& limits);

 private:
  // The code of a source, from the cache's file or compiled.
  absl::StatusOr<std::string> CodeOf(const std::string& source, const std::string& key,
                                     const PackingLimits& limits) const;
  std::shared_ptr<const DeviceCode> Living(const std::string& key);
  // Why the compiler failed before; empty: it has not.
  std::string WhyNot(const std::string& key);

  Device& device_;
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<const DeviceCode>> living_;  // by key
  std::map<std::string, std::string> failed_;                      // by key: why
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_COMPILER_H_
