// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/call_queue.h"

#include <algorithm>
#include <utility>

namespace deeppcr {
namespace {

using Clock = std::chrono::steady_clock;

// Calls of a method that are asked for at a time. More that come together wait in gRPC for as long
// as it takes to ask for the next one. Builds of gRPC with assertions, as distributions have them,
// look for each event among all that is asked for.
constexpr int kAskedFor = 4;

// A longer message takes longer to be parsed than a thread to wake.
constexpr size_t kShortMessage = size_t{32} << 10;
bool IsLong(const grpc::ByteBuffer& message) { return message.Length() > kShortMessage; }

// So many events in a row that were there within this time are a sign that more of them wait, and
// so is one that comes after one that took so long: meanwhile nobody looked for others. (The first
// call after a pause takes 100 us and more, as nothing is in the caches.) What one and two leaders
// cost few clients and many: tests/bench/results/NOTES.md.
constexpr int kEventsInARow = 4;
constexpr std::chrono::microseconds kAtOnce(10), kLong(250);

constexpr std::chrono::milliseconds kLookInterval(2);

// True while this thread has the place of a leader.
thread_local bool leads = false;

}  // namespace

CallQueue::CallQueue(const Threads& threads, const std::atomic<int64_t>& unanswered)
    : num_threads_(std::max(1, threads.all)),
      busy_poll_(threads.leaders > 1 ? std::chrono::microseconds(0) : threads.busy_poll),
      unanswered_(unanswered),
      polls_(threads.always_poll),
      free_places_(std::clamp(threads.leaders, 1, num_threads_)) {}

CallQueue::~CallQueue() {
  while (!Stop(std::chrono::minutes(1))) {
  }
}

void CallQueue::AddTo(grpc::ServerBuilder* builder) { queue_ = builder->AddCompletionQueue(); }

void CallQueue::Start(std::vector<QueuedMethod> methods) {
  methods_ = std::move(methods);
  for (const QueuedMethod& ask : methods_) {
    for (int i = 0; i < kAskedFor; ++i) ask(*this);
  }
  for (int i = 0; i < num_threads_; ++i) threads_.emplace_back([this] { Run(); });
}

// Returns true if the place was not this thread's already: it may have waited for it.
bool CallQueue::Lead() {
  if (leads) return false;
  std::unique_lock lock(mutex_);
  free_.wait(lock, [this] { return free_places_ > 0; });
  --free_places_;
  return leads = true;
}

void CallQueue::Follow() {
  if (!leads) return;
  leads = false;
  {
    const std::lock_guard lock(mutex_);
    ++free_places_;
  }
  free_.notify_one();
}

void CallQueue::Run() {
  void* tag = nullptr;
  bool ok = false;
  int come_at_once = 0;
  bool took_long = false;
  Clock::time_point done = Clock::now();
  while (true) {
    const Clock::time_point asked = Lead() ? Clock::now() : done;
    if (!Next(&tag, &ok)) break;
    const Clock::time_point came = Clock::now();
    const auto* event = static_cast<AnyQueuedCall::Event*>(tag);
    const bool ends =
        event->member == &AnyQueuedCall::OnFinished || event->member == &AnyQueuedCall::OnClosed;
    const bool requests = event->member == &AnyQueuedCall::OnArrival ||
                          (event->member == &AnyQueuedCall::OnRead && ok);
    if (requests && busy_poll_.count() > 0)
      polls_.Came(AllAnswered(), came - std::exchange(last_request_, came));
    if (requests) beginning_.fetch_add(1);  // before another leads
    come_at_once = came - asked < kAtOnce ? come_at_once + 1 : 0;
    // The end of a call is soon done.
    if (come_at_once >= kEventsInARow || (!ends && took_long && come_at_once > 0)) Follow();
    (event->call->*event->member)(ok);
    if (requests) beginning_.fetch_sub(1);
    done = Clock::now();
    took_long = (took_long && ends) || done - came > kLong;
  }
  Follow();
  free_.notify_all();  // a wake that is lost keeps nobody from its end
}

// The next event; false once there will be none.
bool CallQueue::Next(void** tag, bool* ok) {
  if (busy_poll_.count() > 0 && polls_.Looks() && AllAnswered()) {
    const Clock::time_point end = Clock::now() + busy_poll_;
    do {
      const auto status = queue_->AsyncNext(tag, ok, gpr_inf_past(GPR_CLOCK_MONOTONIC));
      if (status != grpc::CompletionQueue::TIMEOUT)
        return status == grpc::CompletionQueue::GOT_EVENT;
    } while (Clock::now() < end && AllAnswered());
  }
  return queue_->Next(tag, ok);
}

// A server that has shut down refuses every request for a call at once, so that the count comes to
// zero; from then on nobody asks the queue for anything, and it may shut down, too.
bool CallQueue::Stop(std::chrono::milliseconds patience) {
  const Clock::time_point start = Clock::now();
  while (calls_.load() > 0) {
    if (Clock::now() - start > patience) return false;
    std::this_thread::sleep_for(kLookInterval);
  }
  if (queue_ == nullptr) return true;
  queue_->Shutdown();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  // A queue has to be seen empty before it goes, and without Start there were no threads for that.
  Run();
  queue_.reset();
  return true;
}

AnyQueuedCall::AnyQueuedCall(CallQueue& owner) : owner_(owner) {
  owner_.calls_.fetch_add(1);
  rpc_.AsyncNotifyWhenDone(&closed_);
}

void AnyQueuedCall::MayTakeLong() { owner_.Follow(); }

void AnyQueuedCall::OnArrival(bool ok) {
  // A server that shuts down: no call has come, and nobody tells of its end.
  if (!ok) return Forget();
  if (IsLong(request_)) MayTakeLong();
  Begin();
  TellCancelled();
  Release();
}

void AnyQueuedCall::OnRead(bool ok) {
  if (ok && IsLong(*message_)) MayTakeLong();
  events_->OnReadDone(ok);
  Release();
}

void AnyQueuedCall::OnWritten(bool ok) {
  events_->OnWriteDone(ok);
  Release();
}

// gRPC is rid of the reply, sent or not.
void AnyQueuedCall::OnFinished(bool) { Release(); }

// The call is over, for its client or for both sides.
void AnyQueuedCall::OnClosed(bool) {
  if (rpc_.IsCancelled()) TellCancelled();
  Release();
}

void AnyQueuedCall::TellCancelled() {
  if (untold_.fetch_sub(1) == 1 && events_ != nullptr) events_->OnCancel();
}

void AnyQueuedCall::Release() {
  if (awaited_.fetch_sub(1) > 1) return;
  if (events_ != nullptr) events_->OnDone();
  Forget();
}

void AnyQueuedCall::Forget() {
  CallQueue& owner = owner_;
  delete this;
  // Last: once the count is 0 the queue may go.
  owner.calls_.fetch_sub(1);
}

}  // namespace deeppcr
