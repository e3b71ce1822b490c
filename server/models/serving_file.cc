// SPDX-License-Identifier: Apache-2.0
#include "server/models/serving_file.h"

#include <algorithm>
#include <array>
#include <system_error>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kMaxFileBytes = int64_t{1} << 16;

// One key of the file: its range, and what it sets.
struct Setting {
  std::string_view key;
  double least, most;
  bool integer;
  void (*set)(double, ServingSettings&);
};

constexpr std::array kSettings = {
    Setting{"max_queue", 1, 1 << 20, true,
            [](double value, ServingSettings& to) { to.max_queue = static_cast<int64_t>(value); }},
    Setting{"max_queue_seconds", 0, 86400, false,
            [](double value, ServingSettings& to) { to.max_queue_seconds = value; }},
    Setting{"batch_delay_seconds", 0, 1, false,
            [](double value, ServingSettings& to) {
              to.max_delay = std::chrono::duration_cast<std::chrono::microseconds>(
                  std::chrono::duration<double>(value));
            }},
    Setting{"max_instances", 0, 256, true,
            [](double value, ServingSettings& to) { to.max_instances = static_cast<int>(value); }},
    Setting{"shadow_rate", 0, 1, false,
            [](double value, ServingSettings& to) { to.shadow_rate = value; }},
    Setting{"weight", 0.01, 100, false,
            [](double value, ServingSettings& to) { to.weight = value; }},
};

std::string Keys() {
  std::string keys;
  for (const Setting& setting : kSettings) keys += StrCat(keys.empty() ? "" : ", ", setting.key);
  return keys;
}

absl::StatusOr<double> Number(const Setting& setting, const json& value) {
  if (setting.integer)
    return JsonInteger(value, setting.key, static_cast<int64_t>(setting.least),
                       static_cast<int64_t>(setting.most));
  DEEPPCR_ASSIGN_OR_RETURN(const double number, JsonNumber(value, setting.key));
  if (number >= setting.least && number <= setting.most) return number;
  return InvalidArgument(setting.key, ": expected a number in [", setting.least, ", ", setting.most,
                         "], got ", number);
}

}  // namespace

absl::StatusOr<ServingSettings> ParseServingFile(std::string_view text) {
  DEEPPCR_ASSIGN_OR_RETURN(const json file,
                           ParseJson(text, {.max_bytes = kMaxFileBytes, .max_depth = 2}));
  if (!file.is_object()) return InvalidArgument("expected an object, got ", DescribeJson(file));
  ServingSettings settings;
  for (const auto& [key, value] : file.items()) {
    const auto setting = std::ranges::find(kSettings, std::string_view(key), &Setting::key);
    if (setting == kSettings.end())
      return InvalidArgument(Quoted(key), ": expected one of ", Keys());
    DEEPPCR_ASSIGN_OR_RETURN(const double number, Number(*setting, value));
    setting->set(number, settings);
  }
  return settings;
}

absl::StatusOr<ServingSettings> ReadServingFile(const fs::path& folder, const std::string& shown) {
  const fs::path path = folder / kServingFile;
  const std::string name = StrCat(shown, "/", kServingFile);
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::not_found) return ServingSettings();
  if (status.type() != fs::file_type::regular)
    return absl::FailedPreconditionError(StrCat(name, ": expected a plain file"));
  const auto text = ReadFile(path.string(), kMaxFileBytes);
  if (!text.ok())
    return absl::FailedPreconditionError(
        StrCat(name, " cannot be read, or has more than ", kMaxFileBytes, " bytes"));
  auto settings = ParseServingFile(*text);
  if (settings.ok()) return settings;
  return InvalidArgument(name, ": ", ToStd(settings.status().message()));
}

}  // namespace deeppcr
