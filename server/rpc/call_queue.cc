// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/call_queue.h"

#include <algorithm>
#include <utility>

namespace deeppcr {
namespace {

// Calls of a method that are asked for at a time. More that come together wait in gRPC for as long
// as it takes to ask for the next one.
constexpr int kAskedFor = 32;

constexpr std::chrono::milliseconds kLookInterval(2);

}  // namespace

CallQueue::CallQueue(int threads) : num_threads_(std::max(1, threads)) {}

CallQueue::~CallQueue() {
  while (!Stop(std::chrono::minutes(1))) {
  }
}

void CallQueue::AddTo(grpc::ServerBuilder* builder) { queue_ = builder->AddCompletionQueue(); }

void CallQueue::Start(std::vector<QueuedMethod> methods) {
  methods_ = std::move(methods);
  for (const QueuedMethod& method : methods_) {
    for (int i = 0; i < kAskedFor; ++i) Await(method);
  }
  for (int i = 0; i < num_threads_; ++i) threads_.emplace_back([this] { Run(); });
}

void CallQueue::Await(const QueuedMethod& method) { (new QueuedCall(*this, method))->Ask(); }

void CallQueue::Run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) {
    const auto* event = static_cast<QueuedCall::Event*>(tag);
    (event->call->*event->member)(ok);
  }
}

// A server that has shut down refuses every request for a call at once, so that the count comes to
// zero; from then on nobody asks the queue for anything, and it may shut down, too.
bool CallQueue::Stop(std::chrono::milliseconds patience) {
  const auto start = std::chrono::steady_clock::now();
  while (calls_.load() > 0) {
    if (std::chrono::steady_clock::now() - start > patience) return false;
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

QueuedCall::QueuedCall(CallQueue& owner, const QueuedMethod& method)
    : owner_(owner), method_(method) {
  owner_.calls_.fetch_add(1);
}

void QueuedCall::Ask() {
  rpc_.AsyncNotifyWhenDone(&closed_);
  grpc::ServerCompletionQueue* const queue = owner_.queue_.get();
  method_.request(&rpc_, &request_, &writer_, queue, queue, &arrival_);
}

void QueuedCall::OnArrival(bool ok) {
  // A server that shuts down: no call has come, and nobody tells of its end.
  if (!ok) return Release();
  owner_.Await(method_);
  method_.start(this);
}

void QueuedCall::Bind(CallEvents* events) {
  events_.store(events);
  TellCancelled();
}

void QueuedCall::TellCancelled() {
  CallEvents* const events = events_.load();
  if (events != nullptr && cancelled_.load() && !told_.exchange(true)) events->OnCancelled();
}

void QueuedCall::Finish(const grpc::Status& status, const grpc::ByteBuffer& reply) {
  if (status.ok()) return writer_.Finish(reply, status, &finished_);
  writer_.FinishWithError(status, &finished_);
}

// gRPC is rid of the reply, sent or not.
void QueuedCall::OnFinished(bool) {
  if (awaited_.fetch_sub(1) == 1) Release();
}

// The call is over, for its client or for both sides.
void QueuedCall::OnClosed(bool) {
  if (rpc_.IsCancelled()) {
    cancelled_.store(true);
    TellCancelled();
  }
  if (awaited_.fetch_sub(1) == 1) Release();
}

void QueuedCall::Release() {
  if (CallEvents* events = events_.load(); events != nullptr) events->OnDone();
  CallQueue& owner = owner_;
  delete this;
  // Last: once the count is 0 the queue may go.
  owner.calls_.fetch_sub(1);
}

}  // namespace deeppcr
