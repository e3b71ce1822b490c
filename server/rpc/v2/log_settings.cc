// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/v2/log_settings.h"

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

using Request = inference::LogSettingsRequest;

absl::Status Expected(std::string_view setting, std::string_view expected) {
  return InvalidArgument("settings.", setting, ": expected ", expected);
}

absl::StatusOr<bool> Switch(std::string_view name, const Request::SettingValue& value) {
  if (!value.has_bool_param()) return Expected(name, "true or false");
  return value.bool_param();
}

// The settings that choose the level, from the loudest: one includes those that follow.
enum Loudness { kVerbose, kInfo, kWarning };
constexpr std::array<std::string_view, 3> kNames = {"log_verbose_level", "log_info", "log_warning"};
constexpr std::array<LogLevel, 3> kLevels = {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn};

// What a request says of each of them.
using Asked = std::array<std::optional<bool>, 3>;

absl::Status Note(const std::string& name, const Request::SettingValue& value, Asked& asked) {
  if (name == kNames[kVerbose]) {
    if (!value.has_uint32_param()) return Expected(name, "an unsigned integer");
    asked[kVerbose] = value.uint32_param() > 0;
    return absl::OkStatus();
  }
  for (const Loudness each : {kInfo, kWarning}) {
    if (name != kNames[each]) continue;
    DEEPPCR_ASSIGN_OR_RETURN(asked[each], Switch(name, value));
    return absl::OkStatus();
  }
  if (name == "log_error") {
    DEEPPCR_ASSIGN_OR_RETURN(const bool error, Switch(name, value));
    return error ? absl::OkStatus() : Expected(name, "true: errors are always written");
  }
  if (name == "log_file" || name == "log_format")
    return Expected(name, "no such setting here: the log goes to stderr, as --log_format says");
  return InvalidArgument("settings: expected names among log_verbose_level, log_info, ",
                         "log_warning, log_error, got ", Quoted(name));
}

// The level after the request. What is turned off takes with it what is louder.
absl::StatusOr<LogLevel> LevelAfter(const Asked& asked, LogLevel now) {
  std::array<bool, 3> on = {};
  for (size_t i = 0; i < on.size(); ++i) on[i] = asked[i].value_or(now <= kLevels[i]);
  for (size_t quiet = 0; quiet < on.size(); ++quiet) {
    for (size_t loud = 0; loud < quiet; ++loud) {
      if (asked[quiet].value_or(true)) continue;
      if (asked[loud].value_or(false))
        return Expected(kNames[quiet], StrCat("true, as ", kNames[loud], " includes it"));
      on[loud] = false;
    }
  }
  for (size_t i = 0; i < on.size(); ++i)
    if (on[i]) return kLevels[i];
  return LogLevel::kError;
}

}  // namespace

absl::StatusOr<LogLevel> DecodeLogSettings(const Request& request, LogLevel now) {
  Asked asked;
  for (const auto& [name, value] : request.settings())
    DEEPPCR_RETURN_IF_ERROR(Note(name, value, asked));
  return LevelAfter(asked, now);
}

void FillLogSettings(LogLevel level, inference::LogSettingsResponse* reply) {
  auto& values = *reply->mutable_settings();
  values["log_verbose_level"].set_uint32_param(level <= LogLevel::kDebug ? 1 : 0);
  values["log_info"].set_bool_param(level <= LogLevel::kInfo);
  values["log_warning"].set_bool_param(level <= LogLevel::kWarn);
  values["log_error"].set_bool_param(true);
}

}  // namespace deeppcr
