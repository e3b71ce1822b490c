// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_SCHEDULE_SYSTEM_PREPARER_H_
#define DEEPPCR_SERVER_SCHEDULE_SYSTEM_PREPARER_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/cancel_token.h"
#include "kernels/engine.h"
#include "server/schedule/served_model.h"

namespace deeppcr {

// Makes the systems that requests wait for: those of a name, as a number of inference steps, that
// no request has given before. One thread makes them, which takes seconds each: one for all
// requests that give the same name, and the models take turns. Another thread ends the requests
// that wait too long. Thread-safe.
class SystemPreparer {
 public:
  using Made = absl::StatusOr<std::shared_ptr<const LoadedSystem>>;
  // Makes a system of the model.
  using Make = std::function<Made(const ServedModel& model, const SystemKey& key)>;

  // A request. It is borrowed from Wait until Ready is called, exactly once, after which it may be
  // gone.
  class Waiter {
   public:
    // made: the system; the error of Make; or kCancelled or kDeadlineExceeded of the token. Called
    // on a thread of the preparer.
    virtual void Ready(Made made) = 0;

   protected:
    ~Waiter() = default;
  };

  static constexpr size_t kMaxWaiting = 1024;  // requests
  static constexpr size_t kMaxNumbersPerModel =
      16;  // distinct systems, without one that is being made
  static constexpr std::chrono::milliseconds kSweepInterval{10};

  explicit SystemPreparer(Make make);
  ~SystemPreparer();

  // Calls waiter->Ready when the system is there, or the token has fired; both outlive that call.
  // Errors, after which Ready is not called: kResourceExhausted if too many wait; kUnavailable
  // after Stop.
  absl::Status Wait(std::shared_ptr<ServedModel> model, const SystemKey& key,
                    const CancelToken* token, Waiter* waiter);

  // Ends the requests that wait as Make does, then joins the threads. Idempotent.
  void Stop();

 private:
  struct Request {
    Waiter* waiter;
    const CancelToken* token;
  };
  // A system to make, and the requests that wait for it.
  struct Wanted {
    std::shared_ptr<ServedModel> model;
    SystemKey key;
    std::vector<Request> requests;
  };
  // The systems of one model that are to be made, never empty.
  using OfModel = std::deque<Wanted>;

  void RunMaker();
  void RunSweeper();
  Wanted* Find(const ServedModel* model, const SystemKey& key);
  // Moves out the requests whose tokens have fired.
  std::vector<Request> TakeExpired();

  const Make make_;
  std::mutex mutex_;
  std::condition_variable wake_maker_, wake_sweeper_;
  std::list<OfModel> models_;  // in the order of their turns
  Wanted current_;             // being made; no model: none is
  size_t num_waiting_ = 0;
  bool stopping_ = false;
  std::thread maker_, sweeper_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_SCHEDULE_SYSTEM_PREPARER_H_
