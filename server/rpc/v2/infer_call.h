// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_V2_INFER_CALL_H_
#define DEEPPCR_SERVER_RPC_V2_INFER_CALL_H_

// ModelInfer, and one request of ModelStreamInfer, for models of every kind.

#include "server/rpc/call.h"

namespace deeppcr {

class V2Stream;

grpc::ServerUnaryReactor* StartV2Infer(ServiceContext& context, const RawCall& call,
                                       grpc::ByteBuffer* reply);
// Opens a call in the stream, which outlives the call.
void StartV2StreamInfer(ServiceContext& context, const RawCall& call, V2Stream& stream);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_V2_INFER_CALL_H_
