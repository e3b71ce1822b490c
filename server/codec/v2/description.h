// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CODEC_V2_DESCRIPTION_H_
#define DEEPPCR_SERVER_CODEC_V2_DESCRIPTION_H_

// Descriptions of the server and its models in the v2 protocol.

#include <cstdint>
#include <span>
#include <string_view>

#include "inference/grpc_service.pb.h"
#include "server/models/model_store.h"

namespace deeppcr {

void FillServer(std::string_view version, inference::ServerMetadataResponse* reply);

// Lists as versions all ready ones of this name in `all`.
void FillMetadata(const ServedModel& model, std::span<const ModelStatus> all,
                  inference::ModelMetadataResponse* reply);

void FillConfig(const ServedModel& model, const ScheduleOptions& schedule,
                const VersionPolicy& versions, inference::ModelConfig* config);

void FillStatistics(const ServedModel& model, inference::ModelStatistics* statistics);

// Lists the models of the repository, or only the ready ones.
void FillIndex(std::span<const ModelStatus> all, bool ready,
               inference::RepositoryIndexResponse* reply);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CODEC_V2_DESCRIPTION_H_
