// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_SCHEDULE_CLIENT_ACCOUNT_H_
#define DEEPPCR_SERVER_SCHEDULE_CLIENT_ACCOUNT_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

namespace deeppcr {

// A client that the operator has named, and its share: the part of each queue, of the time that a
// queue may be long, and of the bytes of all requests that it may take at one time. Queues are
// served in the order of arrival, so that shares of the queue are shares of the throughput as long
// as all ask for more than that; what others leave is used. Thread-safe.
struct ClientAccount {
  ClientAccount(std::string client_name, double part) : name(std::move(client_name)), share(part) {}

  const std::string name;
  std::atomic<double> share;      // (0, 1]
  std::atomic<int64_t> bytes{0};  // of its requests in progress and their replies
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_SCHEDULE_CLIENT_ACCOUNT_H_
