// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_AUTHORIZER_H_
#define DEEPPCR_SERVER_RPC_AUTHORIZER_H_

// Access control: bearer tokens with roles.

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace deeppcr {

// Roles of callers: kInfer may run and describe models, kAdmin may also load and unload them.
enum class Role : uint8_t { kInfer, kAdmin };

// Thread-safe.
class Authorizer {
 public:
  // path: a file with a role and a token on each line, "infer TOKEN" or "admin TOKEN", tokens of
  // kMinTokenBytes..kMaxTokenBytes characters of [A-Za-z0-9._~+/=-]; empty lines and lines that
  // begin with # mean nothing. An empty path: everybody may call everything.
  explicit Authorizer(std::string path) : path_(std::move(path)) {}

  static constexpr size_t kMinTokenBytes = 16, kMaxTokenBytes = 512;

  bool enabled() const { return !path_.empty(); }
  // Reads the file. Tokens that were read before stay if that fails. Errors: those of ReadFile;
  // kInvalidArgument naming file and line.
  absl::Status Reload();

  // header: the call's metadata `authorization`, empty if it has none.
  // Errors: kUnauthenticated (no token, or an unknown one), kPermissionDenied (a lesser role).
  absl::Status Check(std::string_view header, Role needed) const;
  // Who calls with this header, which passed Check: callers of one token are one. Empty where
  // everybody may call. Errors: kInternal.
  absl::StatusOr<std::string> Identify(std::string_view header) const;

 private:
  // Roles by the SHA-256 of the token: how long a comparison takes tells nothing about a token.
  using Tokens = std::map<std::string, Role>;
  static absl::StatusOr<Tokens> Parse(std::string_view text, const std::string& path);

  const std::string path_;
  mutable std::mutex mutex_;
  Tokens tokens_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_AUTHORIZER_H_
