// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PLAN_CANDIDATES_H_
#define DEEPPCR_KERNELS_PLAN_CANDIDATES_H_

// The tuning numbers of plans: what is tried, at what expense, and what counts as faster. The word
// behind a number says where it comes from: measured, on what, or assumed.

#include <cstddef>
#include <cstdint>

#include "kernels/iteration/pass.h"

namespace deeppcr {

// ---- What is tried
// Shooting intervals, in the order in which they are tried: likely ones first, so that worse ones
// are soon given up (assumed).
inline constexpr int32_t kIntervalCandidates[] = {16, 8, 32, 4, 64, 128, 1, 256};
// C of a solver for which neither the request nor the plan has one (assumed).
inline constexpr int64_t kDefaultInterval = 16;
// Largest C for systems with short intervals, whose iterations hardly depend on C (assumed).
inline constexpr int64_t kMostOfShortIntervals = 16;
// Warm sweeps, each as a change of the best choice so far (assumed).
inline constexpr int32_t kSweepCandidates[] = {2, 4, 6};

// ---- At what expense
// Seconds of counted work on plans, and of timing, for all systems of a model (assumed).
inline constexpr double kPlanSeconds = 4;
// Number of inputs, the first ones, that every candidate must get right (assumed).
inline constexpr int kJudgedSamples = 8;
// Factor of the sequential cost from which a choice is judged by fewer inputs, and their number
// (assumed).
inline constexpr double kHopeless = 10;
inline constexpr int kJudgedIfHopeless = 2;
// Share of the work allowed to all candidates that the reference may take (assumed).
inline constexpr double kReferenceShare = 0.25;
// Factor of the best candidate's counted work at which a candidate is given up (assumed).
inline constexpr double kGiveUp = 3;
// Factor of the sequential cost from which a parallel choice is timed for one sample alone
// (assumed).
inline constexpr double kNotTimed = 10;
// Runs of each choice in turns, and the seconds after which there are no more (assumed).
inline constexpr int kRepetitions = 5;
inline constexpr double kRepeatedSeconds = 0.25;

// Bytes of the trajectories at which ways back are timed, and seconds after which they are timed no
// more, of one sample count and in all (assumed).
inline constexpr int64_t kMostWayBytes = int64_t{64} << 20;
inline constexpr double kRepeatedWaySeconds = 0.05;
inline constexpr double kWaySeconds = 0.5;

// ---- The calibrated guess
// Limits on its memory, and on the flops of trajectories and normal equations: some seconds. The
// work is counted, as a limit by a clock would give another guess, and other bits, at every load
// (assumed).
inline constexpr int64_t kMaxGuessBytes = int64_t{32} << 20;
inline constexpr double kMostGuessFlops = 8e9;

// ---- What counts as faster
// Factor of counted work within which candidates are taken to be equally fast, and the candidate
// with fewer dependent stages is chosen. A clock tells no more: medians of one and the same run
// spread by 1.2 (digits-mlp) to 1.6 (digits-resnet) over twenty loads beside a load generator
// (measured by tests/integration/same_plans.py on two cores).
inline constexpr double kEqualWork = 1.3;
// Factor by which the clock has to contradict the counts about sequential or parallel, in the
// shortest of at least kFewestTimes runs of each: a busy machine makes runs longer, never shorter,
// and medians of a few runs were seen to be off by a factor of 18 beside a load generator (measured
// likewise).
inline constexpr double kClearlyFaster = 2;
inline constexpr size_t kFewestTimes = 3;
// Factor from the worst effect of rounding that was seen to the least rtol: the certificate takes
// the effect kRoundingFactor times, other inputs may see twice as much, and half of the tolerance
// is for the error that the iteration leaves.
inline constexpr double kRoundingMargin = 4 * kRoundingFactor;

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PLAN_CANDIDATES_H_
