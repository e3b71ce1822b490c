// SPDX-License-Identifier: Apache-2.0
#include "server/flag_kinds.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/base/model_name.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr::flags {
namespace {

// "64MiB" -> 67108864. Plain integers pass as they are.
bool ParseBytes(std::string_view text, int64_t* value) {
  int64_t factor = 1;
  for (const auto& [suffix, scale] :
       {std::pair<std::string_view, int64_t>{"KiB", 1024}, {"MiB", kMiB}, {"GiB", 1024 * kMiB}}) {
    if (!text.ends_with(suffix)) continue;
    factor = scale;
    text.remove_suffix(suffix.size());
  }
  return absl::SimpleAtoi(ToAbsl(text), value) && !__builtin_mul_overflow(*value, factor, value);
}

// The shortest text that is this number.
std::string Shortest(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

}  // namespace

absl::Status Mismatch(std::string_view flag, std::string_view expected, std::string_view got) {
  return InvalidArgument("--", flag, ": expected ", expected, ", got ", Quoted(got, 200));
}

FlagSpec Text(std::string name, std::string unit, std::string ServerConfig::*field,
              std::string help) {
  FlagSpec spec{name, unit, ServerConfig{}.*field, std::move(help)};
  spec.get = [field](const ServerConfig& config) { return config.*field; };
  spec.set = [name, unit, field](std::string_view text, ServerConfig& config) {
    if (text.empty()) return Mismatch(name, unit, text);
    config.*field = std::string(text);
    return absl::OkStatus();
  };
  return spec;
}

FlagSpec Address(std::string name, std::string ServerConfig::*field, std::string help) {
  FlagSpec spec = Text(name, "host:port | unix:file", field, std::move(help));
  spec.set = [name, field](std::string_view text, ServerConfig& config) {
    const bool is_socket = text.starts_with(kUnixScheme) && text.size() > kUnixScheme.size();
    if (!is_socket && !ParseHostPort(text).ok())
      return Mismatch(name, "host:port with a port in [0, 65535], or unix:file", text);
    config.*field = std::string(text);
    return absl::OkStatus();
  };
  return spec;
}

FlagSpec Socket(std::string name, std::string ServerConfig::*field, std::string help) {
  FlagSpec spec = Text(name, "unix:file", field, std::move(help));
  spec.get = [field](const ServerConfig& config) {
    return (config.*field).empty() ? std::string() : StrCat(kUnixScheme, config.*field);
  };
  spec.set = [name, field](std::string_view text, ServerConfig& config) {
    if (!text.starts_with(kUnixScheme) || text.size() == kUnixScheme.size())
      return Mismatch(name, "unix:file", text);
    config.*field = std::string(text.substr(kUnixScheme.size()));
    return absl::OkStatus();
  };
  return spec;
}

FlagSpec Name(std::string name, std::string ServerConfig::*field, std::string help) {
  FlagSpec spec = Text(name, "name", field, std::move(help));
  spec.set = [name, field](std::string_view text, ServerConfig& config) {
    if (!CheckModelName(text).ok()) return Mismatch(name, "1 to 128 letters, digits and ._-", text);
    config.*field = std::string(text);
    return absl::OkStatus();
  };
  return spec;
}

FlagSpec Url(std::string name, std::string ServerConfig::*field, std::string help) {
  FlagSpec spec = Text(name, "URL", field, std::move(help));
  spec.set = [name, field](std::string_view text, ServerConfig& config) {
    const bool is_http = text.starts_with("http://") || text.starts_with("https://");
    if (!is_http || text.find_first_of("@?#") != text.npos)
      return InvalidArgument("--", name,
                             ": expected http://HOST:PORT/PATH or https, without user, ",
                             "password and query; what came may be secret and is not shown");
    config.*field = std::string(text);
    return absl::OkStatus();
  };
  return spec;
}

FlagSpec Names(std::string name, std::vector<std::string> ServerConfig::*field, std::string help) {
  FlagSpec spec{name, "names, by commas", "", std::move(help)};
  spec.get = [field](const ServerConfig& config) { return absl::StrJoin(config.*field, ","); };
  spec.set = [name, field](std::string_view text, ServerConfig& config) {
    std::vector<std::string> names = absl::StrSplit(ToAbsl(text), ',');
    for (std::string& each : names) {
      absl::StripAsciiWhitespace(&each);
      if (each.empty()) return Mismatch(name, "names, by commas", text);
    }
    config.*field = std::move(names);
    return absl::OkStatus();
  };
  return spec;
}

FlagSpec Choice(std::string name, std::vector<std::string> choices,
                std::string ServerConfig::*field, std::string help) {
  FlagSpec spec = Text(name, absl::StrJoin(choices, " | "), field, std::move(help));
  spec.set = [name, choices, field](std::string_view text, ServerConfig& config) {
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
      return Mismatch(name, StrCat("one of ", absl::StrJoin(choices, ", ")), text);
    }
    config.*field = std::string(text);
    return absl::OkStatus();
  };
  return spec;
}

FlagSpec Integer(std::string name, std::string unit, int64_t low, int64_t high,
                 int64_t ServerConfig::*field, std::string help) {
  const bool bytes = unit == "bytes";
  const std::string range = StrCat(unit, " in [", low, ", ", high, "]");
  FlagSpec spec{name, range, StrCat(ServerConfig{}.*field), std::move(help)};
  spec.get = [field](const ServerConfig& config) { return StrCat(config.*field); };
  spec.set = [=](std::string_view text, ServerConfig& config) {
    int64_t value = 0;
    const bool parsed = bytes ? ParseBytes(text, &value) : absl::SimpleAtoi(ToAbsl(text), &value);
    if (!parsed || value < low || value > high) return Mismatch(name, range, text);
    config.*field = value;
    return absl::OkStatus();
  };
  return spec;
}

FlagSpec Budget(std::string name, int64_t ServerConfig::*field, std::string help) {
  FlagSpec spec =
      Integer(name, "bytes", -1, int64_t{1} << 40, field,
              help + " -1: 512 MiB, or an eighth of the memory that the process may have.");
  spec.set = [name, field, parse = spec.set](std::string_view text, ServerConfig& config) {
    DEEPPCR_RETURN_IF_ERROR(parse(text, config));
    if (config.*field == -1 || config.*field >= kMiB) return absl::OkStatus();
    return Mismatch(name, "bytes: -1, or 1 MiB or more", text);
  };
  return spec;
}

FlagSpec Real(std::string name, std::string unit, double low, double high,
              double ServerConfig::*field, std::string help) {
  const std::string range = StrCat(unit, " in [", low, ", ", high, "]");
  FlagSpec spec{name, range, StrCat(ServerConfig{}.*field), std::move(help)};
  spec.get = [field](const ServerConfig& config) { return Shortest(config.*field); };
  spec.set = [=](std::string_view text, ServerConfig& config) {
    double value = 0;
    // The condition is written so that NaN fails too.
    if (!absl::SimpleAtod(ToAbsl(text), &value) || !(value >= low && value <= high)) {
      return Mismatch(name, range, text);
    }
    config.*field = value;
    return absl::OkStatus();
  };
  return spec;
}

FlagSpec Switch(std::string name, bool ServerConfig::*field, std::string help) {
  FlagSpec spec{name, "true | false", ServerConfig{}.*field ? "true" : "false", std::move(help),
                true};
  spec.get = [field](const ServerConfig& config) { return config.*field ? "true" : "false"; };
  spec.set = [name, field](std::string_view text, ServerConfig& config) {
    if (text != "true" && text != "false") return Mismatch(name, "true or false", text);
    config.*field = text == "true";
    return absl::OkStatus();
  };
  return spec;
}

}  // namespace deeppcr::flags
