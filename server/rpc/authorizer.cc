// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/authorizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "kernels/base/linked_file.h"
#include "kernels/base/model_name.h"
#include "kernels/base/sha256.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 20;
constexpr std::string_view kBearer = "bearer ";
constexpr std::string_view kName = "name=", kShare = "share=";

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
  std::map<std::string, double> shares;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const std::string_view line = ToStd(absl::StripAsciiWhitespace(ToAbsl(text.substr(0, end))));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.empty() || line.front() == '#') continue;
    // The messages leave out the line itself, which is a secret.
    const auto wrong = [&](const auto&... what) {
      return InvalidArgument(path, " line ", number, ": ", what...);
    };
    const std::vector<std::string> words = absl::StrSplit(ToAbsl(line), ' ', absl::SkipEmpty());
    const std::string& role = words[0];
    if ((role != "infer" && role != "admin") || words.size() < 2 || !IsToken(words[1]))
      return wrong("expected \"infer TOKEN\" or \"admin TOKEN\", with a token of ", kMinTokenBytes,
                   " to ", kMaxTokenBytes, " letters, digits and ._~+/=-");
    Grant grant{.role = role == "admin" ? Role::kAdmin : Role::kInfer};
    for (size_t i = 2; i < words.size(); ++i) {
      const std::string_view word = words[i];
      const bool is_name =
          word.starts_with(kName) && CheckModelName(word.substr(kName.size())).ok();
      if (is_name) grant.name = word.substr(kName.size());
      const bool is_share = word.starts_with(kShare) &&
                            absl::SimpleAtod(ToAbsl(word.substr(kShare.size())), &grant.share) &&
                            grant.share > 0 && grant.share <= 1;
      if (!is_name && !is_share)
        return wrong(
            "expected after the token only name=NAME, of letters, digits and ._-, and "
            "share=S with S in (0, 1]");
    }
    if (grant.name.empty() && grant.share != 1) return wrong("expected a name with the share");
    if (!grant.name.empty() &&
        shares.try_emplace(grant.name, grant.share).first->second != grant.share)
      return wrong("expected the share that '", grant.name, "' has in the lines before");
    DEEPPCR_ASSIGN_OR_RETURN(const std::string digest, Sha256Hex(words[1]));
    const auto [found, is_new] = tokens.try_emplace(digest, grant);
    if (is_new) continue;
    // A token of both roles has the greater.
    grant.role = found->second.role = std::max(found->second.role, grant.role);
    if (found->second != grant) return wrong("expected the name and share of this token before");
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
  for (const auto& [digest, grant] : tokens_) {
    if (grant.name.empty()) continue;
    std::shared_ptr<ClientAccount>& account = accounts_[grant.name];
    if (account == nullptr) account = std::make_shared<ClientAccount>(grant.name, grant.share);
    account->share.store(grant.share);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Authorizer::Identify(std::string_view header) const {
  if (!enabled()) return std::string();
  return Sha256Hex(TokenOf(header).substr(0, kMaxTokenBytes + 1));
}

// What the token in the header grants; null for one that is not known. The caller holds mutex_.
const Authorizer::Grant* Authorizer::Find(std::string_view header) const {
  const auto digest = Sha256Hex(TokenOf(header).substr(0, kMaxTokenBytes + 1));
  if (!digest.ok()) return nullptr;
  const auto found = tokens_.find(*digest);
  return found == tokens_.end() ? nullptr : &found->second;
}

std::shared_ptr<ClientAccount> Authorizer::ClientOf(std::string_view header) const {
  if (!enabled()) return nullptr;
  const std::lock_guard lock(mutex_);
  // Where no client has a name, no request pays for another digest of its token.
  if (accounts_.empty()) return nullptr;
  const Grant* grant = Find(header);
  return grant == nullptr || grant->name.empty() ? nullptr : accounts_.find(grant->name)->second;
}

std::string Authorizer::Describe(const Shown& shown) const {
  if (shown.admin_socket) return "socket of --admin_listen";
  for (const std::string_view name : shown.names)
    if (options_.admin_names.contains(name)) return StrCat("certificate of ", name);
  if (!enabled()) return "nobody in particular";
  const std::lock_guard lock(mutex_);
  const Grant* grant = Find(shown.header);
  if (grant == nullptr) return "unknown token";
  return grant->name.empty() ? "token without a name" : StrCat("token of ", grant->name);
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
  if (TokenOf(shown.header).empty())
    return absl::UnauthenticatedError(
        "expected the metadata \"authorization: Bearer TOKEN\", got none");
  const std::lock_guard lock(mutex_);
  const Grant* grant = Find(shown.header);
  if (grant == nullptr) return absl::UnauthenticatedError("the token is not known here");
  if (grant->role >= needed) return absl::OkStatus();
  return absl::PermissionDeniedError("this needs a token of the role admin");
}

}  // namespace deeppcr
