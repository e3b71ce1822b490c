// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_AUTHORIZER_H_
#define DEEPPCR_SERVER_RPC_AUTHORIZER_H_

// Access control: which role a caller has shown. Addresses of peers decide nothing: a proxy, a
// sidecar or a forwarded port makes anybody a neighbour.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/schedule/client_account.h"

namespace deeppcr {

// Roles of callers: kInfer may run and describe models, kAdmin may also load and unload them.
enum class Role : uint8_t { kInfer, kAdmin };

struct AuthorizerOptions {
  // A file with a role and a token on each line, "infer TOKEN" or "admin TOKEN", tokens of
  // kMinTokenBytes..kMaxTokenBytes characters of [A-Za-z0-9._~+/=-]. After a blank may follow
  // "name=NAME", as models are named, and "share=S", of (0, 1]: tokens of one name are one client,
  // of one share. Empty lines and lines that begin with # mean nothing. Empty: calls need no token.
  std::string token_file;
  // The names of client certificates whose owners are kAdmin.
  std::set<std::string, std::less<>> admin_names;
  // Where calls need no token, also callers that have shown nothing are kAdmin.
  bool open_admin = false;
};

// What a caller has shown.
struct Shown {
  std::string_view header;                   // the metadata `authorization`; empty: none
  std::vector<std::string_view> names = {};  // of its certificate, which TLS has verified
  bool admin_socket = false;                 // the call came over the socket of administrators
};

// Thread-safe.
class Authorizer {
 public:
  explicit Authorizer(AuthorizerOptions options) : options_(std::move(options)) {}

  static constexpr size_t kMinTokenBytes = 16, kMaxTokenBytes = 512;

  // True if calls need a token.
  bool enabled() const { return !options_.token_file.empty(); }
  // True if callers that show nothing have this role.
  bool IsOpen(Role role) const {
    return !enabled() && (role == Role::kInfer || options_.open_admin);
  }
  // Reads the file. Tokens that were read before stay if that fails. Errors: those of ReadFile;
  // kInvalidArgument naming file and line.
  absl::Status Reload();

  // Errors: kUnauthenticated (no token, or an unknown one), kPermissionDenied (a lesser role).
  absl::Status Check(const Shown& shown, Role needed) const;
  // Who calls with this header of a call that passed Check: callers of one token are one. Empty
  // where calls need no token. Errors: kInternal.
  absl::StatusOr<std::string> Identify(std::string_view header) const;
  // The account of the client that calls with this header; null if its token has no name. Accounts
  // last as long as the authorizer, also while their shares change.
  std::shared_ptr<ClientAccount> ClientOf(std::string_view header) const;
  // Who calls, in words for the log; tells no token.
  std::string Describe(const Shown& shown) const;

 private:
  // What a token grants.
  struct Grant {
    Role role = Role::kInfer;
    std::string name;  // of the client; empty: none
    double share = 1;
    bool operator==(const Grant&) const = default;
  };
  // Grants by the SHA-256 of the token: how long a comparison takes tells nothing about a token.
  using Tokens = std::map<std::string, Grant>;
  static absl::StatusOr<Tokens> Parse(std::string_view text, const std::string& path);
  const Grant* Find(std::string_view header) const;

  const AuthorizerOptions options_;
  std::mutex reading_;  // one Reload at a time: an older file must not be published last
  mutable std::mutex mutex_;
  Tokens tokens_;
  std::map<std::string, std::shared_ptr<ClientAccount>, std::less<>> accounts_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_AUTHORIZER_H_
