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

bool Team::Take(uint64_t* state, int64_t* share, int64_t* shares) {
  *state = state_.load(std::memory_order_acquire);
  while (*state != kDisbanded) {
    *share = static_cast<int64_t>(*state & kMask);
    *shares = static_cast<int64_t>(*state >> kShareBits & kMask);
    if (*share >= *shares) return false;
    if (state_.compare_exchange_weak(*state, *state + 1, std::memory_order_acq_rel,
                                     std::memory_order_acquire))
      return true;
  }
  return false;
}

void Team::Do(Piece piece, void* context, int64_t most) {
  const int64_t shares =
      std::min({1 + helpers_.load(std::memory_order_acquire), most, static_cast<int64_t>(kMask)});
  if (shares <= 1) return piece(context, 0, 1);
  piece_ = piece;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  pieces_ = (pieces_ + 1) & (kDisbanded >> (kPieceShift + 1));
  state_.store(pieces_ << kPieceShift | static_cast<uint64_t>(shares) << kShareBits,
               std::memory_order_release);
  uint64_t state;
  int64_t share, of, mine = 0;
  for (; Take(&state, &share, &of); ++mine) piece(context, share, of);
  Await([&] { return done_.load(std::memory_order_acquire) == shares - mine; });
}

void Team::Help() {
  helpers_.fetch_add(1, std::memory_order_acq_rel);
  for (;;) {
    uint64_t state;
    int64_t share, shares;
    while (Take(&state, &share, &shares)) {
      piece_(context_, share, shares);
      done_.fetch_add(1, std::memory_order_release);
    }
    if (state == kDisbanded) return;
    Await([&] { return state_.load(std::memory_order_acquire) != state; });
  }
}

}  // namespace deeppcr
