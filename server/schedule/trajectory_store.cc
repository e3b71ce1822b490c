// SPDX-License-Identifier: Apache-2.0
#include "server/schedule/trajectory_store.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/escaping.h"
#include "kernels/base/never_fits.h"
#include "kernels/base/sha256.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

absl::StatusOr<std::string> NewHandle() {
  std::array<char, TrajectoryStore::kHandleDigits / 2> bits;
  // So few bytes come whole or not at all.
  if (getrandom(bits.data(), bits.size(), 0) != std::ssize(bits))
    return absl::InternalError("the system has no random numbers");
  return absl::BytesToHexString({bits.data(), bits.size()});
}

bool IsHandle(std::string_view text) {
  return text.size() == TrajectoryStore::kHandleDigits && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

template <class Pointer>
bool Same(const std::weak_ptr<ServedModel>& a, const Pointer& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

template <class Models>
bool Holds(const Models& models, const std::weak_ptr<ServedModel>& wanted) {
  return std::ranges::any_of(models, [&](const auto& model) { return Same(wanted, model); });
}

}  // namespace

TrajectoryStore::TrajectoryStore(const TrajectoryStoreOptions& options, Metrics& metrics)
    : options_(options), metrics_(metrics) {
  if (options_.max_bytes > 0) sweeper_ = std::thread([this] { Sweep(); });
}

TrajectoryStore::~TrajectoryStore() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (sweeper_.joinable()) sweeper_.join();
}

int64_t TrajectoryStore::BytesOf(const SampleInputs& samples, int64_t state_values) {
  const auto floats = static_cast<int64_t>(samples.inputs.size() + samples.initial_noise.size() +
                                           samples.step_noise.size());
  const int64_t labels = std::ssize(samples.labels) * int64_t{sizeof(int32_t)};
  return (state_values + floats) * int64_t{sizeof(float)} + labels + kEntryBytes;
}

absl::StatusOr<std::string> TrajectoryStore::Keep(KeptTrajectory trajectory) {
  const int64_t bytes = BytesOf(trajectory.samples.View(), std::ssize(trajectory.states));
  if (bytes > options_.max_bytes)
    return NeverFits("the trajectory has ", bytes, " bytes; the limit is ", options_.max_bytes);
  DEEPPCR_ASSIGN_OR_RETURN(std::string handle, NewHandle());
  DEEPPCR_ASSIGN_OR_RETURN(std::string digest, Sha256Hex(handle));
  Entry entry = {.digest = std::move(digest),
                 .trajectory = std::make_shared<const KeptTrajectory>(std::move(trajectory)),
                 .bytes = bytes,
                 .end = Clock::now() + options_.life};
  Entries dropped;  // freed without the lock
  {
    const std::lock_guard lock(mutex_);
    // Nobody can find what it is of any more.
    if (Holds(gone_, entry.trajectory->served)) {
      metrics_.CountTrajectoryDrop(TrajectoryDrop::kUnloaded);
      return handle;
    }
    while (bytes_ > options_.max_bytes - bytes)
      Take(entries_.begin(), TrajectoryDrop::kNoRoom, &dropped);
    entries_.push_back(std::move(entry));
    by_digest_[entries_.back().digest] = std::prev(entries_.end());
    bytes_ += bytes;
    metrics_.SetTrajectories(std::ssize(by_digest_), bytes_);
    // With others before it, the sweeper's next time is theirs.
    if (entries_.size() == 1) wake_.notify_one();
  }
  return handle;
}

absl::Status TrajectoryStore::Missing() const {
  return absl::NotFoundError(
      StrCat("expected one that this server keeps, got one that it does not know: trajectories end "
             "after ",
             options_.life.count() / 1000.0,
             " seconds (--trajectory_seconds), when others need their room "
             "(--max_trajectory_bytes) and with a reload of their model, and other servers and "
             "other tokens have their own; pay for the solve again, with options in its place"));
}

absl::StatusOr<std::shared_ptr<const KeptTrajectory>> TrajectoryStore::Find(
    std::string_view handle, const std::shared_ptr<ServedModel>& model,
    std::string_view owner) const {
  if (!IsHandle(handle))
    return InvalidArgument("expected ", kHandleDigits, " hexadecimal digits, got ", Quoted(handle));
  DEEPPCR_ASSIGN_OR_RETURN(const std::string digest, Sha256Hex(handle));
  std::shared_ptr<const KeptTrajectory> kept;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_digest_.find(digest);
    if (found == by_digest_.end() || found->second->end <= Clock::now()) return Missing();
    kept = found->second->trajectory;
  }
  if (kept->owner != owner) return Missing();
  if (kept->model != model->name || kept->version != model->version)
    return InvalidArgument("expected one of ", model->name, " version ", model->version,
                           ", got one of ", kept->model, " version ", kept->version);
  if (!Same(kept->served, model)) return Missing();
  return kept;
}

void TrajectoryStore::KeepOnly(std::span<const std::shared_ptr<ServedModel>> served) {
  Entries dropped;
  const std::lock_guard lock(mutex_);
  for (const auto& before : served_)
    if (!Holds(served, before)) gone_.push_back(before);
  std::erase_if(gone_, [](const auto& model) { return model.expired(); });
  served_.assign(served.begin(), served.end());
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (!Holds(served, entry->trajectory->served)) Take(entry, TrajectoryDrop::kUnloaded, &dropped);
    entry = next;
  }
  metrics_.SetTrajectories(std::ssize(by_digest_), bytes_);
}

// The caller holds mutex_.
void TrajectoryStore::Take(Entries::iterator entry, TrajectoryDrop reason, Entries* dropped) {
  bytes_ -= entry->bytes;
  by_digest_.erase(entry->digest);
  dropped->splice(dropped->end(), entries_, entry);
  metrics_.CountTrajectoryDrop(reason);
}

// Frees what has ended, also where nobody asks for it any more.
void TrajectoryStore::Sweep() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (entries_.empty()) {
      wake_.wait(lock);
      continue;
    }
    const Clock::time_point first = entries_.front().end;
    if (first > Clock::now()) {
      wake_.wait_until(lock, first);
      continue;
    }
    Entries dropped;
    Take(entries_.begin(), TrajectoryDrop::kExpired, &dropped);
    metrics_.SetTrajectories(std::ssize(by_digest_), bytes_);
    lock.unlock();
    dropped.clear();
    lock.lock();
  }
}

}  // namespace deeppcr
