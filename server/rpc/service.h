// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_SERVICE_H_
#define DEEPPCR_SERVER_RPC_SERVICE_H_

// The RPC methods: thin. A handler parses, validates and enqueues; a worker computes and answers,
// or, where that is quicker than waking one, the handler does. The threads that run handlers are
// few and health checks share them, so no handler ever blocks.

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deeppcr/v1/deeppcr.grpc.pb.h"
#include "server/models/model_store.h"
#include "server/observe/log.h"
#include "server/observe/metrics.h"
#include "server/observe/reply_watch.h"
#include "server/observe/request_lines.h"
#include "server/observe/tracer.h"
#include "server/rpc/authorizer.h"
#include "server/rpc/call_queue.h"
#include "server/schedule/batcher.h"
#include "server/schedule/shadow.h"
#include "server/schedule/system_preparer.h"
#include "server/schedule/task_thread.h"
#include "server/schedule/trajectory_store.h"

namespace deeppcr {

// Who may ask for comparisons, which take a core for seconds.
enum class ComparePolicy : uint8_t { kInfer, kAdmin, kOff };

// The objects that every call works with. All references outlive the service.
struct ServiceContext {
  ModelStore& store;
  Batcher& batcher;
  TaskThread& loader;
  TaskThread& comparisons;
  SystemPreparer& preparer;
  TrajectoryStore& trajectories;
  Metrics& metrics;
  ShadowSampler& shadow;
  Logger& logger;
  ReplyWatch& replies;
  const Authorizer& authorizer;
  Tracer& tracer;
  int64_t max_message_bytes = 0;
  bool gradients = false;  // models are loaded with their backward passes
  ComparePolicy compare = ComparePolicy::kInfer;
  double compare_seconds = 10;  // that one comparison may take
  ScheduleOptions schedule;     // the batcher's
  VersionPolicies versions;
  RequestLines lines;

  std::atomic<bool> draining{false};   // new calls are refused; also before Start is done
  std::atomic<bool> leaving{false};    // not ready any more, whatever the models say
  CancelToken stop;                    // fires to cancel every call: by us, not by its client
  std::atomic<int64_t> calls{0};       // from arrival until gRPC is rid of the reply
  std::atomic<int64_t> unanswered{0};  // from arrival until the answer is made, not all of it sent
  std::atomic<int64_t> streams{0};     // open streams of many calls, however idle
  // Bytes of the replies of calls that solve nothing. Their budget is their own, so that a server
  // whose queue is full still says what it serves.
  std::atomic<int64_t> small_reply_bytes{0};

  // The reasons against readiness: draining, or models that are not there.
  std::vector<std::string> Missing() const {
    return leaving.load() ? std::vector<std::string>{"the server is shutting down"}
                          : store.Missing();
  }
  bool Ready() const { return Missing().empty(); }
};

// SystemPreparer::Make of a service: makes the system of this name, unless the version was
// unloaded. Requests that wait for it end on their model, also where it has been loaded again.
SystemPreparer::Made PrepareSteps(const ServedModel& model, const SystemKey& key,
                                  ServiceContext& context);

// All methods take and give bytes: requests are checked before they are parsed, see wire.h.
using V1 = v1::DeepPcr;
using RawDeepPcrService = V1::WithRawMethod_Forward<V1::WithRawMethod_Generate<
    V1::WithRawMethod_StreamGenerate<V1::WithRawMethod_Compare<V1::WithRawMethod_Gradient<
        V1::WithRawMethod_StreamGradient<V1::WithRawMethod_ListModels<V1::WithRawMethod_GetModel<
            V1::WithRawMethod_LoadModel<V1::WithRawMethod_UnloadModel<V1::Service>>>>>>>>>>;

class DeepPcrService final : public RawDeepPcrService {
 public:
  explicit DeepPcrService(ServiceContext& context) : context_(context) {}

  std::vector<QueuedMethod> Methods();

 private:
  ServiceContext& context_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_SERVICE_H_
