// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/team.h"

#include <algorithm>
#include <thread>

namespace deeppcr {
namespace {

// Rounds of a wait at full speed, some 20 us. Beyond it another thread may need this core: on a
// busy machine perhaps the very one that is waited for.
constexpr int kSpins = 1000;

template <class Condition>
void Await(const Condition& condition) {
  for (int i = 0; !condition(); ++i) {
    if (i < kSpins) {
      __builtin_ia32_pause();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace

void Team::Do(Piece piece, void* context) {
  const int64_t helpers = std::min(helpers_.load(std::memory_order_acquire), kMostHelpers);
  if (helpers == 0) return piece(context, 0, 1);
  piece_ = piece;
  context_ = context;
  const int64_t shares = 1 + helpers;
  state_.store(++pieces_ << kShareBits | static_cast<uint64_t>(shares), std::memory_order_release);
  piece(context, 0, shares);
  given_ += helpers;
  Await([&] { return done_.load(std::memory_order_acquire) == given_; });
}

void Team::Help() {
  uint64_t seen = state_.load(std::memory_order_acquire);
  if (seen == kDisbanded) return;
  const int64_t share = 1 + helpers_.fetch_add(1, std::memory_order_acq_rel);
  for (;;) {
    Await([&] { return state_.load(std::memory_order_acquire) != seen; });
    seen = state_.load(std::memory_order_acquire);
    if (seen == kDisbanded) return;
    const auto shares = static_cast<int64_t>(seen & ((uint64_t{1} << kShareBits) - 1));
    // A piece that was begun before this thread came has no share for it.
    if (share >= shares) continue;
    piece_(context_, share, shares);
    done_.fetch_add(1, std::memory_order_release);
  }
}

}  // namespace deeppcr
