// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_SCHEDULE_WAIT_PREDICTION_H_
#define DEEPPCR_SERVER_SCHEDULE_WAIT_PREDICTION_H_

// Predictions of how long requests wait, from what has been measured of those before them.

#include <algorithm>
#include <span>

namespace deeppcr {

// The seconds until somebody is free for what comes after `ahead` seconds of work, which those who
// are free sooner begin sooner. `busy`: the seconds that each has to do yet, at least one of them;
// gets sorted. This is the least T with sum of max(0, T - busy[i]) = ahead.
double SecondsUntilFree(std::span<double> busy, double ahead);

// How measured seconds compare to expected ones, lately: sums over batches, each of which counts
// less with every one that follows, so that large batches count for more than small ones.
class SecondsPerCost {
 public:
  void Add(double seconds, double cost) {
    seconds_ = kMemory * seconds_ + seconds;
    cost_ = kMemory * cost_ + cost;
  }
  // 0 before the first batch.
  double value() const { return cost_ > 0 ? seconds_ / cost_ : 0; }

 private:
  static constexpr double kMemory = 0.8;
  double seconds_ = 0, cost_ = 0;
};

// By how much predictions have to be lengthened so that about 199 of 200 of those who are let in
// wait no longer than the limit. Stochastic approximation: a step up for each that did, and a 199th
// of one down for each that did not.
class WaitCaution {
 public:
  void Add(bool waited_too_long) {
    factor_ += waited_too_long ? kStep : -kStep / 199;
    factor_ = std::clamp(factor_, 1.0, kMost);
  }
  // In [1, 2]; 1 before anybody waited.
  double value() const { return factor_; }

 private:
  static constexpr double kStep = 0.005, kMost = 2;
  double factor_ = 1;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_SCHEDULE_WAIT_PREDICTION_H_
