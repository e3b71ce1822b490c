// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_V2_LOG_SETTINGS_H_
#define DEEPPCR_SERVER_RPC_V2_LOG_SETTINGS_H_

#include "absl/status/statusor.h"
#include "inference/grpc_service.pb.h"
#include "server/observe/log.h"

namespace deeppcr {

// Triton's settings of a log, of which this server has one level: debug with a log_verbose_level
// above 0, else the first of log_info, log_warning, log_error that is true.

// The level after a request that changes some of them. Errors: kInvalidArgument naming the setting,
// for one that is none, a value of another type, and what is set where the server is started
// (log_file, log_format).
absl::StatusOr<LogLevel> DecodeLogSettings(const inference::LogSettingsRequest& request,
                                           LogLevel now);

void FillLogSettings(LogLevel level, inference::LogSettingsResponse* reply);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_V2_LOG_SETTINGS_H_
