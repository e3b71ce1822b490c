// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_COMPARE_CALL_H_
#define DEEPPCR_SERVER_RPC_COMPARE_CALL_H_

#include <memory>
#include <vector>

#include "server/codec/request_codec.h"
#include "server/rpc/call.h"

namespace deeppcr {

// Compare. Comparisons take seconds and must not disturb one another's times: they run one after
// the other on a thread of their own, beside the batches.
class CompareCall final : public UnaryCall, public SystemPreparer::Waiter {
 public:
  CompareCall(ServiceContext& context, UnaryCallOfQueue* call)
      : UnaryCall(context, Method::kCompare, call) {}

  // Decodes and queues; answers at once where that fails. `this` may be gone afterwards.
  void Start();
  // Answers at once if the comparison still waits, so that it holds neither a place nor memory.
  void OnCancelled() override;
  // Queues the comparison of the system that the call waited for.
  void Ready(SystemPreparer::Made made) override;

 private:
  ~CompareCall() override = default;

  absl::Status Admit();
  absl::Status Post();
  void Run();
  void NoteQueueTime();
  absl::Status Compute(v1::CompareResponse* reply);
  void End(const absl::Status& error);
  void FreeRequest() override;

  v1::CompareRequest request_;
  CompareInput input_;
  std::shared_ptr<ServedModel> served_;
  std::shared_ptr<const LoadedSystem> system_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_COMPARE_CALL_H_
