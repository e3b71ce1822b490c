// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/v2/log_settings.h"

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

// What the settings say of the level, before and after a request.
struct Settings {
  bool verbose, info, warning;

  absl::Status Apply(const std::string& name, const Request::SettingValue& value) {
    if (name == "log_verbose_level") {
      if (!value.has_uint32_param()) return Expected(name, "an unsigned integer");
      verbose = value.uint32_param() > 0;
      return absl::OkStatus();
    }
    if (name == "log_info") {
      DEEPPCR_ASSIGN_OR_RETURN(info, Switch(name, value));
      return absl::OkStatus();
    }
    if (name == "log_warning") {
      DEEPPCR_ASSIGN_OR_RETURN(warning, Switch(name, value));
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

  LogLevel level() const {
    if (verbose) return LogLevel::kDebug;
    if (info) return LogLevel::kInfo;
    return warning ? LogLevel::kWarn : LogLevel::kError;
  }
};

Settings SettingsOf(LogLevel level) {
  return {.verbose = level <= LogLevel::kDebug,
          .info = level <= LogLevel::kInfo,
          .warning = level <= LogLevel::kWarn};
}

}  // namespace

absl::StatusOr<LogLevel> DecodeLogSettings(const Request& request, LogLevel now) {
  Settings settings = SettingsOf(now);
  for (const auto& [name, value] : request.settings())
    DEEPPCR_RETURN_IF_ERROR(settings.Apply(name, value));
  return settings.level();
}

void FillLogSettings(LogLevel level, inference::LogSettingsResponse* reply) {
  const Settings settings = SettingsOf(level);
  auto& values = *reply->mutable_settings();
  values["log_verbose_level"].set_uint32_param(settings.verbose ? 1 : 0);
  values["log_info"].set_bool_param(settings.info);
  values["log_warning"].set_bool_param(settings.warning);
  values["log_error"].set_bool_param(true);
}

}  // namespace deeppcr
