// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_TEAM_H_
#define DEEPPCR_KERNELS_BASE_TEAM_H_

#include <atomic>
#include <cstdint>

namespace deeppcr {

// Threads that share the work of one solve, piece by piece: its leader, and those helpers that came
// while it went on. A piece is over within microseconds, so helpers wait for the next one at full
// speed. Nobody waits for a helper that has not come: a team of the leader alone works as well.
class Team {
 public:
  // A piece of work: does share `share` of `shares`. Any split gives the same result.
  using Piece = void (*)(void* context, int64_t share, int64_t shares);

  Team() = default;
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Called by the leader: does a piece together with the helpers that are there.
  void Do(Piece piece, void* context);
  // Called by the leader once, at the end: sends the helpers away.
  void Disband() { state_.store(kDisbanded, std::memory_order_release); }

  // Called by any other thread: helps until the team is disbanded.
  void Help();

 private:
  // The number of the current piece, and below it the number of shares.
  static constexpr uint64_t kShareBits = 16, kDisbanded = ~uint64_t{0};
  static constexpr int64_t kMostHelpers = (int64_t{1} << kShareBits) - 2;

  std::atomic<uint64_t> state_{0};
  std::atomic<int64_t> helpers_{0};
  std::atomic<int64_t> done_{0};  // shares that helpers have done, of all pieces
  int64_t given_ = 0;             // shares that helpers were given, of all pieces
  uint64_t pieces_ = 0;
  Piece piece_ = nullptr;  // the current piece, written before state_
  void* context_ = nullptr;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_TEAM_H_
