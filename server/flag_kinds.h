// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_FLAG_KINDS_H_
#define DEEPPCR_SERVER_FLAG_KINDS_H_

// Kinds of flags, as cells of the table in flags.cc: each makes the row of a flag that sets a field
// of ServerConfig, whose initialiser is the default.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/config.h"

namespace deeppcr::flags {

inline constexpr int64_t kMiB = int64_t{1} << 20;

// The error of a value that is not what its flag takes.
absl::Status Mismatch(std::string_view flag, std::string_view expected, std::string_view got);

FlagSpec Text(std::string name, std::string unit, std::string ServerConfig::*field,
              std::string help);
FlagSpec Address(std::string name, std::string ServerConfig::*field, std::string help);
// unix:FILE; the field takes the file alone.
FlagSpec Socket(std::string name, std::string ServerConfig::*field, std::string help);
// The name of a model.
FlagSpec Name(std::string name, std::string ServerConfig::*field, std::string help);
// A URL of http or https, without user, password and query, which would be in the log.
FlagSpec Url(std::string name, std::string ServerConfig::*field, std::string help);
FlagSpec Names(std::string name, std::vector<std::string> ServerConfig::*field, std::string help);
FlagSpec Choice(std::string name, std::vector<std::string> choices,
                std::string ServerConfig::*field, std::string help);
FlagSpec Integer(std::string name, std::string unit, int64_t low, int64_t high,
                 int64_t ServerConfig::*field, std::string help);
// Bytes that are set aside, by default by the memory that there is.
FlagSpec Budget(std::string name, int64_t ServerConfig::*field, std::string help);
FlagSpec Real(std::string name, std::string unit, double low, double high,
              double ServerConfig::*field, std::string help);
FlagSpec Switch(std::string name, bool ServerConfig::*field, std::string help);

}  // namespace deeppcr::flags

#endif  // DEEPPCR_SERVER_FLAG_KINDS_H_
