// SPDX-License-Identifier: Apache-2.0
#include "server/schedule/system_preparer.h"

#include <algorithm>
#include <utility>

#include "kernels/base/strings.h"
#include "server/schedule/schedule.h"

namespace deeppcr {

SystemPreparer::SystemPreparer(Make make)
    : make_(std::move(make)), maker_([this] { RunMaker(); }), sweeper_([this] { RunSweeper(); }) {}

SystemPreparer::~SystemPreparer() { Stop(); }

absl::Status SystemPreparer::Wait(std::shared_ptr<ServedModel> model, const SystemKey& key,
                                  const CancelToken* token, Waiter* waiter) {
  std::lock_guard lock(mutex_);
  if (stopping_) return absl::UnavailableError("the server is shutting down");
  if (num_waiting_ >= kMaxWaiting)
    return absl::ResourceExhaustedError(
        "too many requests wait for their numbers of inference steps; try again later");
  Wanted* wanted = Find(model.get(), key);
  if (wanted == nullptr) {
    auto of_model = std::ranges::find_if(
        models_, [&](const OfModel& systems) { return systems.front().model == model; });
    if (of_model == models_.end()) of_model = models_.emplace(models_.end());
    if (of_model->size() >= kMaxNumbersPerModel)
      return absl::ResourceExhaustedError(
          StrCat("requests wait for ", kMaxNumbersPerModel,
                 " other kinds of steps (numbers, beginnings, guidance, known elements) of ",
                 model->name, "; try again later"));
    wanted = &of_model->emplace_back(Wanted{.model = std::move(model), .key = key, .requests = {}});
    wake_maker_.notify_one();
  }
  wanted->requests.push_back({waiter, token});
  if (num_waiting_++ == 0) wake_sweeper_.notify_one();
  return absl::OkStatus();
}

SystemPreparer::Wanted* SystemPreparer::Find(const ServedModel* model, const SystemKey& key) {
  const auto is_it = [&](const Wanted& wanted) {
    return wanted.model.get() == model && wanted.key == key;
  };
  if (is_it(current_)) return &current_;
  for (OfModel& systems : models_) {
    const auto found = std::ranges::find_if(systems, is_it);
    if (found != systems.end()) return &*found;
  }
  return nullptr;
}

void SystemPreparer::RunMaker() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_maker_.wait(lock, [this] { return stopping_ || !models_.empty(); });
    if (models_.empty()) return;
    OfModel& systems = models_.front();
    current_ = std::move(systems.front());
    systems.pop_front();
    if (systems.empty()) {
      models_.pop_front();
    } else {
      models_.splice(models_.end(), models_, models_.begin());
    }
    const std::shared_ptr<ServedModel> model = current_.model;
    const SystemKey key = current_.key;
    lock.unlock();
    const Made made = make_(*model, key);
    lock.lock();
    const Wanted done = std::exchange(current_, {});
    num_waiting_ -= done.requests.size();
    lock.unlock();
    for (const Request& request : done.requests) request.waiter->Ready(made);
    lock.lock();
  }
}

std::vector<SystemPreparer::Request> SystemPreparer::TakeExpired() {
  std::vector<Request> expired;
  const auto take = [&](Wanted& wanted) {
    const auto fired =
        std::stable_partition(wanted.requests.begin(), wanted.requests.end(),
                              [](const Request& request) { return !Fired(request.token); });
    expired.insert(expired.end(), fired, wanted.requests.end());
    wanted.requests.erase(fired, wanted.requests.end());
    return wanted.requests.empty();
  };
  // What is being made goes on: the next request finds it.
  take(current_);
  for (OfModel& systems : models_) std::erase_if(systems, take);
  std::erase_if(models_, [](const OfModel& systems) { return systems.empty(); });
  num_waiting_ -= expired.size();
  return expired;
}

void SystemPreparer::RunSweeper() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_sweeper_.wait(lock, [this] { return stopping_ || num_waiting_ > 0; });
    if (num_waiting_ == 0) return;
    const std::vector<Request> expired = TakeExpired();
    lock.unlock();
    for (const Request& request : expired)
      request.waiter->Ready(ExpiredStatus(*request.token, CancelToken::Clock::now()));
    std::this_thread::sleep_for(kSweepInterval);
    lock.lock();
  }
}

void SystemPreparer::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_maker_.notify_one();
  wake_sweeper_.notify_one();
  if (maker_.joinable()) maker_.join();
  if (sweeper_.joinable()) sweeper_.join();
}

}  // namespace deeppcr
