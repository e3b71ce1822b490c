// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_SCHEDULE_WAIT_PREDICTION_H_
#define DEEPPCR_SERVER_SCHEDULE_WAIT_PREDICTION_H_

// Predictions of how long requests wait, from what has been measured of those before them.

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

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_SCHEDULE_WAIT_PREDICTION_H_
