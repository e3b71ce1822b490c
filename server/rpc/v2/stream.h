// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_V2_STREAM_H_
#define DEEPPCR_SERVER_RPC_V2_STREAM_H_

// ModelStreamInfer: many requests on one stream, computed as they come and answered in their order.
// To the rest of the server each request is a call of its own.

#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "server/rpc/call_queue.h"
#include "server/rpc/responder.h"
#include "server/rpc/service.h"

namespace deeppcr {

class V2Stream;

// Answers one request of a stream.
class V2StreamResponder final : public Responder {
 public:
  V2StreamResponder(CallEvents& call, V2Stream& stream) : call_(call), stream_(stream) {}

  // `reply` is a ModelStreamInferResponse; an error becomes one too.
  void Respond(const grpc::Status& status, grpc::ByteBuffer&& reply) override;
  bool in_turns() const override { return true; }
  void SetId(const std::string& id) override { id_ = id; }

 private:
  friend class V2Stream;
  CallEvents& call_;
  V2Stream& stream_;
  std::string id_;
  // Guarded by the stream's mutex.
  bool answered_ = false;
  grpc::ByteBuffer reply_;
};

// Reads on while fewer than kMostOpen requests are open; otherwise the client waits to be read.
class V2Stream final : QueuedEvents {
 public:
  static constexpr size_t kMostOpen = 64;

  V2Stream(ServiceContext& context, DuplexOfQueue* call);

  // Begins to read, or refuses the stream, which may be gone afterwards.
  void Start();
  void Answer(V2StreamResponder* responder, grpc::ByteBuffer&& reply);

 private:
  ~V2Stream() = default;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // The next things for gRPC, taken with the lock held and given without: they may end the stream,
  // and this object with it, before gRPC's function returns.
  struct Next {
    bool read = false, finish = false;
    V2StreamResponder* write = nullptr;    // the owner of the reply to write; stays until then
    std::vector<V2StreamResponder*> done;  // requests with nothing left to write
  };

  absl::Status Admit();
  // Adds a request's responder, before it can answer.
  void Open(V2StreamResponder* responder);
  Next Take();
  void Give(Next next);

  ServiceContext& context_;
  DuplexOfQueue& call_;
  std::mutex mutex_;
  std::deque<V2StreamResponder*> open_;  // in the order of their requests
  grpc::ByteBuffer read_, written_;
  size_t releasing_ = 0;  // requests in OnDone, which still know the RPC
  bool reading_ = false, writing_ = false;
  bool ended_ = false;   // no more requests will come
  bool broken_ = false;  // no more replies will be read
  bool finished_ = false;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_V2_STREAM_H_
