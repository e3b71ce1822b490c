// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/authorizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "kernels/base/linked_file.h"
#include "kernels/base/sha256.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 20;
constexpr std::string_view kBearer = "bearer ";

bool IsTokenCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         std::string_view("._~+/=-").find(c) != std::string_view::npos;
}

bool IsToken(std::string_view text) {
  return text.size() >= Authorizer::kMinTokenBytes && text.size() <= Authorizer::kMaxTokenBytes &&
         std::all_of(text.begin(), text.end(), IsTokenCharacter);
}

// The text after "Bearer ", in any case; empty if the header does not begin with that.
std::string_view TokenOf(std::string_view header) {
  if (header.size() <= kBearer.size() ||
      !std::equal(kBearer.begin(), kBearer.end(), header.begin(), [](char want, char got) {
        return want == absl::ascii_tolower(static_cast<unsigned char>(got));
      }))
    return {};
  return header.substr(kBearer.size());
}

}  // namespace

absl::StatusOr<Authorizer::Tokens> Authorizer::Parse(std::string_view text,
                                                     const std::string& path) {
  Tokens tokens;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    std::string_view line = ToStd(absl::StripAsciiWhitespace(ToAbsl(text.substr(0, end))));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.empty() || line.front() == '#') continue;
    const size_t blank = line.find(' ');
    const std::string_view role = line.substr(0, blank);
    const std::string_view token =
        blank == std::string_view::npos ? std::string_view() : line.substr(blank + 1);
    // The message leaves out the line itself, which is a secret.
    if ((role != "infer" && role != "admin") || !IsToken(token))
      return InvalidArgument(path, " line ", number,
                             ": expected \"infer TOKEN\" or \"admin TOKEN\"", " with a token of ",
                             kMinTokenBytes, " to ", kMaxTokenBytes,
                             " letters, digits and ._~+/=-");
    DEEPPCR_ASSIGN_OR_RETURN(const std::string digest, Sha256Hex(token));
    tokens[digest] = std::max(tokens[digest], role == "admin" ? Role::kAdmin : Role::kInfer);
  }
  if (tokens.empty()) return InvalidArgument(path, ": expected at least one token, got none");
  return tokens;
}

absl::Status Authorizer::Reload() {
  if (!enabled()) return absl::OkStatus();
  const std::lock_guard reading(reading_);
  const std::string& path = options_.token_file;
  DEEPPCR_ASSIGN_OR_RETURN(const std::string text, ReadLinkedFile(path, kMaxFileBytes));
  DEEPPCR_ASSIGN_OR_RETURN(Tokens tokens, Parse(text, path));
  const std::lock_guard lock(mutex_);
  tokens_ = std::move(tokens);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Authorizer::Identify(std::string_view header) const {
  if (!enabled()) return std::string();
  return Sha256Hex(TokenOf(header).substr(0, kMaxTokenBytes + 1));
}

absl::Status Authorizer::Check(const Shown& shown, Role needed) const {
  const auto is_admin = [this](std::string_view name) {
    return options_.admin_names.contains(name);
  };
  if (IsOpen(needed) || shown.admin_socket || std::ranges::any_of(shown.names, is_admin))
    return absl::OkStatus();
  if (!enabled())
    return absl::PermissionDeniedError(
        "models are loaded and unloaded by callers who show that they may: over the socket of "
        "--admin_listen, with a token of --token_file, or with a certificate of --admin_names");
  const std::string_view token = TokenOf(shown.header);
  if (token.empty())
    return absl::UnauthenticatedError(
        "expected the metadata \"authorization: Bearer TOKEN\", got none");
  DEEPPCR_ASSIGN_OR_RETURN(const std::string digest,
                           Sha256Hex(token.substr(0, kMaxTokenBytes + 1)));
  const std::lock_guard lock(mutex_);
  const auto found = tokens_.find(digest);
  if (found == tokens_.end()) return absl::UnauthenticatedError("the token is not known here");
  if (found->second >= needed) return absl::OkStatus();
  return absl::PermissionDeniedError("this needs a token of the role admin");
}

}  // namespace deeppcr
