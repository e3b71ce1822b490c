// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/v2/log_settings.h"

#include <gtest/gtest.h>

#include "tests/testing/expect_error.h"

namespace deeppcr {
namespace {

using Request = inference::LogSettingsRequest;

Request With(const char* name, bool value) {
  Request request;
  (*request.mutable_settings())[name].set_bool_param(value);
  return request;
}

TEST(LogSettingsTest, SayTheLevelAndTakeItBack) {
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError}) {
    inference::LogSettingsResponse reply;
    FillLogSettings(level, &reply);
    Request request;
    for (const auto& [name, value] : reply.settings()) {
      if (value.has_bool_param()) {
        (*request.mutable_settings())[name].set_bool_param(value.bool_param());
      } else {
        (*request.mutable_settings())[name].set_uint32_param(value.uint32_param());
      }
    }
    for (const LogLevel now : {LogLevel::kDebug, LogLevel::kError})
      EXPECT_EQ(*DecodeLogSettings(request, now), level);
  }
}

TEST(LogSettingsTest, ChangeWhatIsNamedAlone) {
  EXPECT_EQ(*DecodeLogSettings({}, LogLevel::kWarn), LogLevel::kWarn);
  EXPECT_EQ(*DecodeLogSettings(With("log_info", false), LogLevel::kInfo), LogLevel::kWarn);
  EXPECT_EQ(*DecodeLogSettings(With("log_info", true), LogLevel::kError), LogLevel::kInfo);
  EXPECT_EQ(*DecodeLogSettings(With("log_warning", false), LogLevel::kWarn), LogLevel::kError);
  EXPECT_EQ(*DecodeLogSettings(With("log_error", true), LogLevel::kDebug), LogLevel::kDebug);
  Request verbose;
  (*verbose.mutable_settings())["log_verbose_level"].set_uint32_param(2);
  EXPECT_EQ(*DecodeLogSettings(verbose, LogLevel::kError), LogLevel::kDebug);
}

TEST(LogSettingsTest, WhatIsTurnedOffTakesWhatIsLouderWithIt) {
  EXPECT_EQ(*DecodeLogSettings(With("log_info", false), LogLevel::kDebug), LogLevel::kWarn);
  EXPECT_EQ(*DecodeLogSettings(With("log_warning", false), LogLevel::kDebug), LogLevel::kError);
  EXPECT_EQ(*DecodeLogSettings(With("log_warning", false), LogLevel::kInfo), LogLevel::kError);
  EXPECT_EQ(*DecodeLogSettings(With("log_info", false), LogLevel::kError), LogLevel::kError);
  Request quiet_verbose = With("log_info", false);
  (*quiet_verbose.mutable_settings())["log_verbose_level"].set_uint32_param(1);
  testing::ExpectError(DecodeLogSettings(quiet_verbose, LogLevel::kInfo),
                       absl::StatusCode::kInvalidArgument,
                       "settings.log_info: expected true, as log_verbose_level includes it");
}

TEST(LogSettingsTest, AreRefusedByName) {
  const auto refused = [](const Request& request, const char* why) {
    testing::ExpectError(DecodeLogSettings(request, LogLevel::kInfo),
                         absl::StatusCode::kInvalidArgument, why);
  };
  refused(With("log_error", false), "settings.log_error: expected true: errors are always");
  refused(With("log_verbose_level", true),
          "settings.log_verbose_level: expected an unsigned integer");
  refused(With("log_file", true), "settings.log_file: expected no such setting here");
  refused(With("log_infos", true), "got \"log_infos\"");
  Request text;
  (*text.mutable_settings())["log_info"].set_string_param("true");
  refused(text, "settings.log_info: expected true or false");
}

}  // namespace
}  // namespace deeppcr
