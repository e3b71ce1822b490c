// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_TEAM_H_
#define DEEPPCR_KERNELS_BASE_TEAM_H_

#include <atomic>
#include <cstdint>

namespace deeppcr {

// Threads that share the work of one solve, piece by piece: its leader, and those helpers that came
// while it went on. A piece is over within microseconds, so helpers wait for the next one at full
// speed. A share belongs to whoever takes it first, the leader included: nobody waits for a helper
// that has not come, or that is not running, but only for shares that were begun.
class Team {
 public:
  // A piece of work: does share `share` of `shares`. Any split gives the same result.
  using Piece = void (*)(void* context, int64_t share, int64_t shares);

  Team() = default;
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Called by the leader: does a piece together with the helpers that are there, in at most `most`
  // shares.
  void Do(Piece piece, void* context, int64_t most);
  // Called by the leader once, at the end: sends the helpers away.
  void Disband() { state_.store(kDisbanded, std::memory_order_release); }

  // Called by any other thread: helps until the team is disbanded.
  void Help();

 private:
  // The number of the current piece in the upper half, then its shares, and those taken.
  static constexpr int kPieceShift = 32, kShareBits = 16;
  static constexpr uint64_t kMask = (uint64_t{1} << kShareBits) - 1, kDisbanded = ~uint64_t{0};

  // Takes the next share of the current piece; false if all are taken, or the team is disbanded.
  bool Take(uint64_t* state, int64_t* share, int64_t* shares);

  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<int64_t> done_{0};  // shares of the current piece that helpers have done
  std::atomic<int64_t> helpers_{0};
  uint64_t pieces_ = 0;
  Piece piece_ = nullptr;  // the current piece, which stays until its last share is done
  void* context_ = nullptr;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_TEAM_H_
