// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_MODELS_SERVING_FILE_H_
#define DEEPPCR_SERVER_MODELS_SERVING_FILE_H_

// The file serving.json in the folder of a model, beside its versions: what the model asks of the
// server for itself. Read with every load of a version.

#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/schedule/serving_settings.h"

namespace deeppcr {

inline constexpr char kServingFile[] = "serving.json";

// Parses the text of such a file: an object with any of
//   max_queue (samples, 1 .. 2^20), max_queue_seconds (0 .. 86400), batch_delay_seconds (0 .. 1),
//   max_instances (0 .. 256), shadow_rate (0 .. 1), weight (0.01 .. 100)
// as the flags of these names. Errors: kInvalidArgument naming the key, what was expected and what
// came; another key is an error.
absl::StatusOr<ServingSettings> ParseServingFile(std::string_view text);

// The settings of the model in this folder; without a file those that leave everything out.
// `shown`: the folder's name in errors. Errors: those of ParseServingFile, and kFailedPrecondition
// for what is no plain file or cannot be read.
absl::StatusOr<ServingSettings> ReadServingFile(const std::filesystem::path& folder,
                                                const std::string& shown);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_MODELS_SERVING_FILE_H_
