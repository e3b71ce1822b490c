// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_SCHEDULE_WAIT_PREDICTION_H_
#define DEEPPCR_SERVER_SCHEDULE_WAIT_PREDICTION_H_

// Predictions of how long requests wait, from what has been measured of those before them.

#include <algorithm>
#include <cmath>
#include <span>

namespace deeppcr {

// The seconds until somebody is free for what comes after `ahead` seconds of work, which those who
// are free sooner begin sooner. `busy`: the seconds that each has to do yet, at least one of them;
// gets sorted. This is the least T with sum of max(0, T - busy[i]) = ahead.
double SecondsUntilFree(std::span<double> busy, double ahead);

// How measured seconds compare to expected ones, lately: sums over batches, each of which counts
// less with every one that follows, so that large batches count for more than small ones. One batch
// alone, as of a solver that took many times its plan, changes it by a factor of two at most.
class SecondsPerCost {
 public:
  void Add(double seconds, double cost) {
    if (cost_ > 0) seconds = std::clamp(seconds, value() * cost / 2, value() * cost * 2);
    seconds_ = kMemory * seconds_ + seconds;
    cost_ = kMemory * cost_ + cost;
  }
  // Learns from a batch that was given up, after so many seconds for less than all of its cost.
  void AddAtLeast(double seconds, double cost) {
    if (!(seconds > value() * cost)) return;
    if (cost_ > 0) return Add(seconds, cost);
    least_ = seconds / cost;
  }
  // 0 before the first batch.
  double value() const { return cost_ > 0 ? seconds_ / cost_ : least_; }

 private:
  static constexpr double kMemory = 0.8;
  double seconds_ = 0, cost_ = 0;
  double least_ = 0;  // while there is nothing else
};

// By how much predictions have to be lengthened so that about 199 of 200 of those who are let in
// wait no longer than the limit. Stochastic approximation: a step up for each that did, and a 199th
// of one down for each that did not. It fades with time too, so slowly that it stays where it is
// while there is traffic.
class WaitCaution {
 public:
  // Learns from a wait that is over. `now`: seconds, at or after those before; `limit`: seconds.
  void Add(double now, double limit, bool waited_too_long) {
    factor_ = value(now, limit) + (waited_too_long ? kStep : -kStep / 199);
    factor_ = std::clamp(factor_, 1.0, kMost);
    since_ = now;
  }
  // In [1, 2]; 1 before anybody waited.
  double value(double now, double limit) const {
    return 1 + (factor_ - 1) * std::exp((since_ - now) / (kFade * limit));
  }

 private:
  static constexpr double kStep = 0.005, kMost = 2;
  static constexpr double kFade = 600;  // limits until 1/e of it is left
  double factor_ = 1, since_ = 0;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_SCHEDULE_WAIT_PREDICTION_H_
