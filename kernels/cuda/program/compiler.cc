// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/program/compiler.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/file.h"
#include "kernels/base/sha256.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {
namespace {

constexpr int64_t kMostCodeBytes = int64_t{256} << 20;
constexpr size_t kDigestBytes = 64;
constexpr int64_t kMostFailures = 1000;  // that are remembered

void Say(const PackingLimits& limits, LoadNews news, absl::string_view text) {
  if (limits.progress != nullptr && *limits.progress) (*limits.progress)(news, ToStd(text));
}

// A file of the cache: the digest of key and code, and the code. The digest guards against damage
// and against files under the name of another compiler, device or program.
std::string PathOf(const PackingLimits& limits, const std::string& key) {
  return StrCat(limits.code_cache_dir, "/code-", key.substr(0, 32), ".cubin");
}
absl::StatusOr<std::string> ReadCode(const std::string& path, const std::string& key) {
  DEEPPCR_ASSIGN_OR_RETURN(std::string text, ReadFile(path, kMostCodeBytes));
  const std::string_view all = text;
  if (all.size() < kDigestBytes) return InvalidArgument(path, ": the file is damaged");
  DEEPPCR_ASSIGN_OR_RETURN(const std::string digest,
                           Sha256Hex(StrCat(key, all.substr(kDigestBytes))));
  if (digest != all.substr(0, kDigestBytes)) return InvalidArgument(path, ": the file is damaged");
  return text.substr(kDigestBytes);
}
absl::Status WriteCode(const std::string& path, const std::string& key, const std::string& code) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::string digest, Sha256Hex(key + code));
  return WriteFileAtomically(path, digest + code);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const DeviceCode>> ProgramCompiler::KernelsOf(
    std::span<const ProgramInstruction> instructions, const KernelsWanted& wanted,
    const PackingLimits& limits) {
  const absl::StatusOr<DeviceCompiler*> found = device_.compiler();
  if (!found.ok()) {
    Say(limits, LoadNews::kStep, found.status().message());
    return nullptr;
  }
  DeviceCompiler* const compiler = *found;
  if (const int64_t count = NumOfElements(instructions); count > kMostCompiledElements) {
    Say(limits, LoadNews::kStep,
        StrCat("the step is interpreted: of its ", instructions.size(), " instructions ", count,
               " are on elements, and at most ", kMostCompiledElements, " are compiled"));
    return nullptr;
  }
  const std::string source = SourceOf(instructions, wanted);
  DEEPPCR_ASSIGN_OR_RETURN(const std::string key,
                           Sha256Hex(StrCat(compiler->name(), "\n", source)));
  if (std::shared_ptr<const DeviceCode> living = Living(key)) return living;
  if (const std::string why = WhyNot(key); !why.empty()) {
    Say(limits, LoadNews::kStep, why);
    return nullptr;
  }
  absl::StatusOr<std::shared_ptr<const DeviceCode>> code = [&]() {
    absl::StatusOr<std::string> text = CodeOf(source, key, limits);
    return text.ok() ? compiler->Load(*text) : text.status();
  }();
  if (absl::IsCancelled(code.status())) return code;
  if (absl::IsNotFound(code.status())) {
    Say(limits, LoadNews::kStep, "the step is interpreted, as nothing is compiled for a request");
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  if (!code.ok()) {
    const std::string why =
        StrCat("the step is interpreted, as it was not compiled: ", code.status().message());
    Say(limits, LoadNews::kProblem, why);
    // A compiler that failed fails again.
    if (std::ssize(failed_) >= kMostFailures) failed_.clear();
    failed_[key] = why;
    return nullptr;
  }
  std::erase_if(living_, [](const auto& entry) { return entry.second.expired(); });
  living_[key] = *code;
  return code;
}

std::string ProgramCompiler::WhyNot(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = failed_.find(key);
  return found == failed_.end() ? "" : found->second;
}

std::shared_ptr<const DeviceCode> ProgramCompiler::Living(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = living_.find(key);
  return found == living_.end() ? nullptr : found->second.lock();
}

absl::StatusOr<std::string> ProgramCompiler::CodeOf(const std::string& source,
                                                    const std::string& key,
                                                    const PackingLimits& limits) const {
  const bool cached = !limits.code_cache_dir.empty();
  if (cached) {
    absl::StatusOr<std::string> code = ReadCode(PathOf(limits, key), key);
    if (code.ok()) {
      Say(limits, LoadNews::kStep, "took the compiled step from the cache");
      return code;
    }
    if (!absl::IsNotFound(code.status()))
      Say(limits, LoadNews::kProblem, StrCat("code cache: not taken: ", code.status().message()));
  }
  if (!limits.compiles) return absl::NotFoundError("there is no code");
  DeviceCompiler& compiler = **device_.compiler();
  Say(limits, LoadNews::kStep, "compiling the step");
  const auto start = std::chrono::steady_clock::now();
  const CancelToken limited(start + std::chrono::seconds(kMostCompileSeconds), limits.token);
  absl::StatusOr<std::string> code = compiler.Compile(source, &limited);
  if (absl::IsCancelled(code.status()) && !Fired(limits.token))
    return absl::DeadlineExceededError(
        StrCat("the compiler was not done after ", kMostCompileSeconds, " s"));
  if (!code.ok()) return code;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  Say(limits, LoadNews::kStep,
      absl::StrFormat("compiled the step in %.1f s (%s)", took.count(), ToAbsl(compiler.name())));
  if (cached) {
    if (const absl::Status kept = WriteCode(PathOf(limits, key), key, *code); !kept.ok())
      Say(limits, LoadNews::kProblem, StrCat("code cache: ", kept.message()));
  }
  return code;
}

}  // namespace deeppcr::cuda
